import json

import pytest
import torch
from diffusers import FluxPipeline
from safetensors.torch import load_file
from typer.testing import CliRunner

from solrl_tasks.pretrain import stages
from solrl_tasks.pretrain.__main__ import app
from solrl_tasks.pretrain.architecture import SIZES
from solrl_tasks.pretrain.base import BaseSettings, VelocityModel
from solrl_tasks.pretrain.curves import CurveSettings
from solrl_tasks.pretrain.loop import Budget
from solrl_tasks.pretrain.vae import VaeSettings

CPU = torch.device("cpu")


def quiet(_text):
    pass


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    place = stages.Place(tmp_path_factory.mktemp("made"), CPU)
    plan = stages.Plan(
        size="micro",
        vae=Budget(4),
        base=Budget(4),
        straighten=Budget(2),
        scenes=32,
        pairs=8,
        vae_settings=VaeSettings(batch=8, pool=128),
        base_settings=BaseSettings(batch=8),
        curve_settings=CurveSettings(prompts=2, seeds=3, steps=(2, 4), regenerate=2),
    )
    stages.run_plan(place, plan, say=quiet)
    return place


def test_a_plan_leaves_a_pipeline_a_report_and_a_grid(made):
    report = json.loads((made.folder / "report.json").read_text())
    assert set(report) == {"autoencoder", "base", "base curves", "straighten", "straightened curves"}
    assert report["base"]["samples"] == 32
    assert (made.folder / "grid.png").is_file()
    assert stages.load(made).transformer.dtype == torch.float32


def test_the_export_is_bfloat16_and_tells_nothing_of_this_machine(made, tmp_path):
    stages.export(made, tmp_path / "model", shift=1.5)
    shipped = FluxPipeline.from_pretrained(tmp_path / "model", local_files_only=True, dtype=torch.float32)
    assert shipped.scheduler.config.shift == 1.5
    weights = load_file(tmp_path / "model" / "transformer" / "diffusion_pytorch_model.safetensors")
    assert {value.dtype for value in weights.values()} == {torch.bfloat16}
    for path in (tmp_path / "model").rglob("*.json"):
        assert str(made.folder) not in path.read_text()


def test_a_checkpoint_is_put_back(made, tmp_path):
    saved = stages._saver(tmp_path / "weights.safetensors")
    model = VelocityModel(stages.load(made), CPU)
    saved({name: torch.full_like(value, 0.25) for name, value in model.named_parameters()})
    copy = stages.Place(tmp_path / "copy", CPU)
    model.release()
    stages._save(stages.load(made), copy.pipeline)
    stages.restore(copy, tmp_path / "weights.safetensors")
    assert all((value == 0.25).all() for value in stages.load(copy).transformer.parameters())


def test_a_stage_without_its_forerunner_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match="run the autoencoder stage first"):
        stages.base(stages.Place(tmp_path, CPU), BaseSettings(), Budget(1), 8)


def test_unknown_names_are_refused(tmp_path):
    with pytest.raises(ValueError, match=f"known: {', '.join(SIZES)}"):
        stages.autoencoder(stages.Place(tmp_path, CPU), "huge", VaeSettings(), Budget(1))
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="no GPU here"):
            stages.pick_device("cuda")
    assert stages.pick_device("cpu") == CPU


def test_scoring_in_processes_is_scoring():
    import numpy as np

    from solrl_tasks.scenes.checker import score_scenes
    from solrl_tasks.scenes.grammar import training_prompts
    from solrl_tasks.scenes.renderer import draw_prompts

    prompts = list(training_prompts(20))
    images = draw_prompts(prompts, 0).numpy()
    pool = stages.ScorerPool(0)
    for ours, plain in zip(pool(images, prompts), score_scenes(images, prompts), strict=True):
        assert np.array_equal(ours, plain)
    pool.close()


def test_the_command_line_explains_itself():
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    for command in ("autoencoder", "base", "straighten", "curves", "export", "make"):
        assert command in result.output
