from pathlib import Path

import pytest
from diffusers import FluxPipeline
from prefect.exceptions import ParameterTypeError
from typer.testing import CliRunner


def test_the_flow_makes_a_model(prefect_server, tmp_path):
    from flows.pretrain import pretrain

    folder = pretrain(
        output=str(tmp_path),
        size="micro",
        steps=2,
        straighten_seconds=60,
        vae_batch=8,
        batch=8,
        pool=128,
        scenes=16,
        pairs=8,
        curve_prompts=1,
        curve_seeds=2,
        device="cpu",
    )
    assert Path(folder).parent == tmp_path
    assert FluxPipeline.from_pretrained(folder, local_files_only=True).transformer is not None
    assert (tmp_path / "report.json").is_file()


def test_wrong_parameters_are_refused_by_name():
    from flows.pretrain import pretrain

    with pytest.raises(ParameterTypeError, match="batch: Input should be greater"):
        pretrain.validate_parameters({"output": "x", "batch": 0})


def test_it_runs_without_a_deployment():
    import typer

    from flows.pretrain import main

    app = typer.Typer()
    app.command()(main)
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    assert "--vae-seconds" in result.output
