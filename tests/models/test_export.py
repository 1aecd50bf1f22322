"""An exported adapter gives plain diffusers the image that we evaluate."""

import diffusers
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from solrl_tasks.config.extensions import build, find_extension
from solrl_tasks.models.export import FILE, save_diffusers_lora
from solrl_tasks.models.families.flux import pack
from solrl_tasks.models.lora import LoraState, init_lora
from solrl_tasks.sampling.identity import initial_noise
from solrl_tasks.sampling.samplers.euler import Euler
from tests.support.tiny import CPU, load, tiny_spec

PROMPT = "two blue squares"
STEPS = 6


def random_lora(family, preset):
    zero = init_lora(family.transformer, family.lora_targets(preset), rank=4, alpha=6.0, seed=0)
    generator = torch.Generator().manual_seed(0)
    return LoraState(4, 6.0, {k: 0.1 * torch.randn(v.shape, generator=generator) for k, v in zero.weights.items()})


def our_image(family, lora, noise):
    """As the evaluate stage: the bf16 engine, synchronised to the adapter."""
    engine = build("engine", "bf16", {}, CPU)
    engine.attach(family.transformer, family.scope)
    engine.sync(lora)
    conditioning = family.encode([PROMPT])
    with torch.no_grad():
        x0 = Euler().sample(
            lambda x, t: family.velocity(engine.module, x, t, conditioning), noise, family.sigmas(STEPS)
        )
    return family.decode(x0).images[0].astype(int)


def their_image(name, folder, lora_folder, noise, grid):
    pipe = getattr(diffusers, find_extension("family", name).pipeline_class).from_pretrained(
        folder, dtype=torch.float32
    )
    pipe.set_progress_bar_config(disable=True)
    pipe.load_lora_weights(lora_folder)
    options = {"guidance_scale": 1.0}
    if name == "sana":
        options |= {"use_resolution_binning": False, "complex_human_instruction": None}
        pipe.scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=1.0)
    if name == "sana":
        options["sigmas"] = grid[:-1]
    image = pipe(
        PROMPT,
        latents=pack(noise) if name == "flux" else noise,
        num_inference_steps=STEPS,
        height=32,
        width=32,
        max_sequence_length=16,
        output_type="np",
        **options,
    ).images[0]
    return (image * 255).round().astype(int)


@pytest.mark.parametrize("preset", ["all", "attention", "paper"])
def test_plain_diffusers_gives_the_same_image(tiny_folder, tmp_path, preset):
    name, folder = tiny_folder
    family = load(tiny_spec(name, source=str(folder), dtype="float32"))
    lora = random_lora(family, preset)
    noise = initial_noise([11], family.latent_shape)
    written = save_diffusers_lora(lora, tmp_path / "out", family.convolutions)
    ours = our_image(family, lora, noise)
    theirs = their_image(name, folder, tmp_path / "out", noise, family.sigmas(STEPS))
    assert np.abs(ours - theirs).max() <= 1
    assert np.abs(ours - our_image(family, None, noise)).max() > 5
    kernels = [key for key, value in load_file(written).items() if value.ndim == 4]
    assert bool(kernels) is (name == "sana" and preset == "all")


def test_rank_and_alpha_are_kept(tiny_folder, tmp_path):
    name, folder = tiny_folder
    family = load(tiny_spec(name, source=str(folder)))
    save_diffusers_lora(random_lora(family, "all"), tmp_path / "out", family.convolutions)
    pipe = getattr(diffusers, find_extension("family", name).pipeline_class).from_pretrained(folder)
    pipe.load_lora_weights(tmp_path / "out", adapter_name="ours")
    config = pipe.transformer.peft_config["ours"]
    assert (config.r, config.lora_alpha) == (4, 6.0)
    scalings = {layer.scaling["ours"] for layer in pipe.transformer.modules() if hasattr(layer, "scaling")}
    assert scalings == {1.5}
    assert (tmp_path / "out" / FILE).is_file()
