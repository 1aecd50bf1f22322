"""An exported adapter gives plain diffusers the image that we evaluate."""

import numpy as np
import pytest
import torch
from diffusers import FluxPipeline

from solrl_tasks.config.recipe import ModelSpec
from solrl_tasks.models.export import save_diffusers_lora
from solrl_tasks.models.families.flux import Flux, pack
from solrl_tasks.models.lora import LoraState, init_lora
from solrl_tasks.models.twin import share
from solrl_tasks.sampling.identity import initial_noise
from solrl_tasks.sampling.samplers.euler import Euler

PROMPT = "two blue squares"


@pytest.fixture(scope="module")
def family(micro_model):
    return Flux.load(ModelSpec(source=str(micro_model), resolution=32, dtype="float32"), torch.device("cpu"))


def random_lora(family, preset):
    zero = init_lora(family.transformer, family.lora_targets(preset), rank=4, alpha=6.0, seed=0)
    generator = torch.Generator().manual_seed(0)
    return LoraState(4, 6.0, {k: 0.3 * torch.randn(v.shape, generator=generator) for k, v in zero.weights.items()})


def our_image(family, lora, noise):
    merged = share(family.transformer)
    for path in lora.paths if lora else ():
        layer = merged.get_submodule(path)
        layer.weight = torch.nn.Parameter(layer.weight + lora.delta(path), requires_grad=False)
    conditioning = family.encode([PROMPT])
    with torch.no_grad():
        x0 = Euler().sample(lambda x, t: family.velocity(merged, x, t, conditioning), noise, family.sigmas(6))
    return family.decode(x0).images[0].astype(int)


def their_image(folder, lora_folder, noise):
    pipe = FluxPipeline.from_pretrained(folder, dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    pipe.load_lora_weights(lora_folder)
    image = pipe(
        PROMPT,
        latents=pack(noise),
        num_inference_steps=6,
        height=32,
        width=32,
        max_sequence_length=16,
        output_type="np",
    ).images[0]
    return (image * 255).round().astype(int)


@pytest.mark.parametrize("preset", ["all", "attention"])
def test_plain_diffusers_gives_the_same_image(micro_model, family, tmp_path, preset):
    lora = random_lora(family, preset)
    noise = initial_noise([11], family.latent_shape)
    save_diffusers_lora(lora, tmp_path / "out")
    ours, theirs = our_image(family, lora, noise), their_image(micro_model, tmp_path / "out", noise)
    assert np.abs(ours - theirs).max() <= 1
    assert np.abs(ours - our_image(family, None, noise)).max() > 5
