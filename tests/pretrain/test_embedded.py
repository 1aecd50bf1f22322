"""The model that is shipped."""

from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import FluxPipeline

from solrl_tasks.pretrain.architecture import EMBEDDED
from solrl_tasks.pretrain.base import VelocityModel
from solrl_tasks.pretrain.curves import CurveSettings, measure
from solrl_tasks.scenes.checker import score_scenes
from solrl_tasks.scenes.grammar import training_prompts
from solrl_tasks.scenes.renderer import draw_prompts

FOLDER = Path(__file__).parents[2] / "solrl_tasks" / "models" / "embedded"


@pytest.fixture(scope="module")
def embedded():
    pipeline = FluxPipeline.from_pretrained(FOLDER, local_files_only=True, dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def test_it_is_small_and_complete():
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 8e6
    assert {path.suffix for path in files} <= {".json", ".safetensors", ".md"}
    assert (FOLDER / "README.md").is_file()


def test_pictures_survive_its_autoencoder(embedded):
    prompts = list(training_prompts(96))
    signal = draw_prompts(prompts, 1).permute(0, 3, 1, 2).float() / 127.5 - 1
    with torch.no_grad():
        decoded = embedded.vae.decode(embedded.vae.encode(signal).latent_dist.mode()).sample
    images = ((decoded + 1) * 127.5).clamp(0, 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    assert score_scenes(images, prompts)[1].mean() > 0.95


def test_it_draws_what_it_is_told_now_and_then(embedded):
    images = embedded(
        ["a blue square"] * 16,
        height=EMBEDDED.image,
        width=EMBEDDED.image,
        num_inference_steps=10,
        guidance_scale=0.0,
        max_sequence_length=16,
        generator=torch.Generator().manual_seed(0),
        output_type="np",
    ).images
    smooth, _ = score_scenes((images * 255).round().astype(np.uint8), ["a blue square"] * 16)
    assert smooth.mean() > 0.4
    assert smooth.std() > 0.1


def test_few_steps_say_something_about_more(embedded):
    model = VelocityModel(embedded, torch.device("cpu")).eval()
    shift = embedded.scheduler.config.shift
    assert shift == CurveSettings.shift
    settings = CurveSettings(prompts=6, seeds=16, steps=(6, 10), shift=shift, batch=96)
    points, _ = measure(model, embedded.vae, settings)
    model.release()
    assert points[0].rho_regenerate > 0.4
    assert 0.2 < points[1].soft < 0.7
    assert points[1].sigma > 0.15
