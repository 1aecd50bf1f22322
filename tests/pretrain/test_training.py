import math

import pytest
import torch

from solrl_tasks.pretrain import vae as vae_stage
from solrl_tasks.pretrain.architecture import MICRO, build_pipeline
from solrl_tasks.pretrain.base import BaseSettings, VelocityModel, draw_times, image_ids, train_base
from solrl_tasks.pretrain.curves import euler, sigmas
from solrl_tasks.pretrain.data import encode_scenes
from solrl_tasks.pretrain.loop import Budget, Optimizer, Schedule, train
from solrl_tasks.pretrain.straighten import heun, make_pairs

CPU = torch.device("cpu")


def quiet(_text):
    pass


def test_a_budget_ends_by_steps_or_time():
    assert Budget(steps=10).progress(5, 99.0) == 0.5
    assert Budget(steps=10, seconds=4.0).progress(5, 3.0) == 0.75
    assert Budget(seconds=4.0).progress(5, 9.0) == 1.0
    with pytest.raises(ValueError, match="number of steps or of seconds"):
        Budget()


def test_the_rate_rises_stays_and_falls_to_zero():
    schedule = Schedule(1.0, warmup=10, flat=0.2)
    assert schedule.rate(0, 0.0) == pytest.approx(0.1)
    assert schedule.rate(50, 0.2) == pytest.approx(1.0)
    assert schedule.rate(50, 0.6) == pytest.approx(0.5)
    assert schedule.rate(50, 1.0) == pytest.approx(0.0)


def test_a_loss_that_is_not_finite_stops_the_training():
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = Optimizer([weight], 0.9)
    with pytest.raises(FloatingPointError, match="nan at step 1"):
        train(lambda: optimizer.descend(weight.sum() * math.nan), optimizer, Schedule(0.1), Budget(5), quiet)


def test_the_average_follows_the_weights():
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = Optimizer([weight], 0.9)
    train(lambda: optimizer.descend(weight.square().sum()), optimizer, Schedule(0.05, 1, 0.9), Budget(100), quiet)
    assert weight.abs().max() < 0.1
    optimizer.load_average()
    assert 0 < weight.abs().max() < 0.3


def test_the_autoencoder_learns_and_latents_are_normal():
    pipeline = build_pipeline(MICRO)
    settings = vae_stage.VaeSettings(batch=16, pool=128, ema_decay=0.9)
    history = vae_stage.train_autoencoder(pipeline.vae, MICRO.image, settings, Budget(60), CPU, quiet)
    assert history.steps == 60
    losses = [loss for _, _, loss in history.reports]
    assert losses[-1] < 0.9 * losses[0]
    data = encode_scenes(pipeline.vae, 256, MICRO.image, torch.Generator().manual_seed(9), quiet)
    assert data.clean.shape == (256, MICRO.grid**2, MICRO.packed_channels)
    assert abs(float(data.clean.mean())) < 0.1
    assert float(data.clean.std()) == pytest.approx(1.0, abs=0.1)
    quality = vae_stage.reconstruction(pipeline.vae, MICRO.image, 32, 3, CPU)
    assert set(quality) == {"l1", "truth_soft", "truth_strict", "soft", "strict"}


def learn(model, steps, **changes):
    data = encode_scenes(build_pipeline(MICRO).vae, 64, MICRO.image, torch.Generator().manual_seed(9), quiet)
    kept = []
    settings = BaseSettings(batch=32, learning_rate=5e-3, warmup=5, ema_decay=0.9, **changes)
    history = train_base(model, data, settings, Budget(steps), quiet, kept.append)
    return [loss for _, _, loss in history.reports]


def test_the_base_learns_and_gives_its_pipeline_back():
    pipeline = build_pipeline(MICRO)
    rope, before = pipeline.transformer.pos_embed, pipeline.text_encoder.get_input_embeddings().weight.clone()
    model = VelocityModel(pipeline, CPU)
    losses = learn(model, 100)
    assert losses[-1] < 0.8 * losses[0]
    model.release()
    assert pipeline.transformer.pos_embed is rope
    assert not torch.equal(before, pipeline.text_encoder.get_input_embeddings().weight)


def test_frozen_text_encoders_stay_and_say_the_same():
    pipeline = build_pipeline(MICRO)
    model = VelocityModel(pipeline, CPU)
    rows = torch.tensor([3, 900])
    before = [part.detach() for part in model.encode(rows)]
    weight = pipeline.text_encoder.get_input_embeddings().weight.clone()
    learn(model, 3, train_text=False)
    assert torch.equal(weight, pipeline.text_encoder.get_input_embeddings().weight)
    for now, then in zip(model.encode(rows), before, strict=True):
        torch.testing.assert_close(now, then)


def test_training_repeats_itself_and_leaves_the_global_generator_alone():
    state = torch.random.get_rng_state()
    first, second = (learn(VelocityModel(build_pipeline(MICRO), CPU), 50) for _ in range(2))
    assert first == second
    assert torch.equal(state, torch.random.get_rng_state())


def test_times_lie_between_data_and_noise():
    times = draw_times(1000, 0.25, CPU)
    assert 0 < times.min() < 0.05
    assert 0.95 < times.max() < 1


def test_position_ids_are_those_of_flux():
    from diffusers import FluxPipeline

    assert torch.equal(image_ids(4), FluxPipeline._prepare_latent_image_ids(1, 4, 4, CPU, torch.float32))


def test_solvers_agree_at_many_steps_and_heun_is_closer():
    model = VelocityModel(build_pipeline(MICRO), CPU).eval()
    noise = torch.randn(4, MICRO.grid**2, MICRO.packed_channels, generator=torch.Generator().manual_seed(0))
    captions = torch.tensor([1, 20, 300, 4000])
    exact = heun(model, captions, noise, sigmas(64))
    near = (heun(model, captions, noise, sigmas(8)) - exact).abs().mean()
    far = (euler(model, captions, noise, sigmas(8)) - exact).abs().mean()
    assert near < far
    assert (euler(model, captions, noise, sigmas(256)) - exact).abs().mean() < far


def test_pairs_are_what_the_model_makes_of_the_noise():
    model = VelocityModel(build_pipeline(MICRO), CPU).eval()
    pairs = make_pairs(model, 10, 4, 8, seed=3, say=quiet)
    assert len(pairs.clean) == len(pairs.captions) == 16
    again = heun(model, pairs.captions.index()[:8], pairs.noise[:8], sigmas(4))
    torch.testing.assert_close(again, pairs.clean[:8])
    history = train_base(model, pairs, BaseSettings(batch=16, train_text=False), Budget(3), quiet)
    assert history.steps == 3
