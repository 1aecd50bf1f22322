import math

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from scipy.stats import spearmanr

from solrl_tasks.pretrain.architecture import MICRO, build_pipeline
from solrl_tasks.pretrain.base import VelocityModel
from solrl_tasks.pretrain.curves import (
    CurveSettings,
    as_records,
    decode,
    euler,
    generate,
    mean_spearman,
    measure,
    sigmas,
    spearman,
    table,
)
from solrl_tasks.scenes.grammar import parse
from solrl_tasks.scenes.layout import captions_of

CPU = torch.device("cpu")


@pytest.mark.parametrize("shift", [1.0, 3.0])
@pytest.mark.parametrize("steps", [1, 6, 10])
def test_the_grid_is_the_schedulers(steps, shift):
    scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
    scheduler.set_timesteps(sigmas=np.linspace(1.0, 1.0 / steps, steps).tolist())
    torch.testing.assert_close(sigmas(steps, shift), scheduler.sigmas.float())


def test_pictures_are_those_of_the_pipeline():
    pipeline = build_pipeline(MICRO)
    text = "two green stars and a blue ring on black"
    noise = torch.randn(3, MICRO.grid**2, MICRO.packed_channels, generator=torch.Generator().manual_seed(0))
    images = pipeline(
        [text] * 3,
        height=MICRO.image,
        width=MICRO.image,
        num_inference_steps=5,
        guidance_scale=0.0,
        max_sequence_length=16,
        latents=noise,
        output_type="np",
    ).images
    captions = captions_of([parse(text)] * 3).index()
    model = VelocityModel(pipeline, CPU).eval()
    own = decode(pipeline.vae, euler(model, captions, noise, sigmas(5)))
    assert np.abs(own / 255 - images).max() < 1.5 / 255


def test_filling_up_batches_changes_nothing():
    pipeline = build_pipeline(MICRO)
    model = VelocityModel(pipeline, CPU).eval()
    noise = torch.randn(5, MICRO.grid**2, MICRO.packed_channels, generator=torch.Generator().manual_seed(0))
    captions = torch.arange(5)
    whole, parts = (generate(model, pipeline.vae, captions, noise, sigmas(2), batch) for batch in (5, 2))
    assert np.abs(whole.astype(int) - parts).max() <= 1


def test_rank_correlation():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 6, 40).astype(float), rng.integers(0, 6, 40).astype(float)
    assert spearman(a, b) == pytest.approx(spearmanr(a, b).statistic)
    assert spearman(a, np.exp(a)) == pytest.approx(1.0)
    assert math.isnan(spearman(a, np.ones(40)))
    assert mean_spearman(np.stack([a, a]), np.stack([a, np.ones(40)])) == pytest.approx(1.0)
    assert math.isnan(mean_spearman(np.ones((2, 4)), np.ones((2, 4))))


def test_a_curve_has_a_point_for_every_count_of_steps():
    pipeline = build_pipeline(MICRO)
    model = VelocityModel(pipeline, CPU).eval()
    rng = np.random.default_rng(0)

    def score(images, prompts):
        return rng.random(len(prompts)).astype(np.float32), np.zeros(len(prompts), np.float32)

    settings = CurveSettings(prompts=2, seeds=6, steps=(2, 4), regenerate=4, batch=4)
    points, soft = measure(model, pipeline.vae, settings, score)
    assert [point.steps for point in points] == [2, 4]
    assert soft[2].shape == (2, 6)
    assert points[1].rho_reference == points[1].rho_regenerate == pytest.approx(1.0)
    assert "rho" in table(points)
    missing = measure(model, pipeline.vae, CurveSettings(2, 6, (2,), regenerate=4, batch=4), score)[0]
    assert as_records(missing)[0]["rho_regenerate"] is None
