"""Micro pipelines: random weights, every part a real diffusers or transformers class."""

import pytest


@pytest.fixture(scope="session")
def micro_model(tmp_path_factory):
    """The folder of a random FluxPipeline of the embedded model's kind."""
    from solrl_tasks.pretrain.architecture import MICRO, build_pipeline

    folder = tmp_path_factory.mktemp("models") / "micro"
    build_pipeline(MICRO).save_pretrained(folder)
    return folder
