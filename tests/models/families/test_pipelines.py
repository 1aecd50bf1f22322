"""Every family against its own diffusers pipeline, on tiny pipelines of the real classes."""

import diffusers
import numpy as np
import pytest
import torch

from solrl_tasks.config.extensions import find_extension
from solrl_tasks.models.families.flux import pack, unpack
from solrl_tasks.sampling.identity import initial_noise
from solrl_tasks.sampling.samplers.dpm2 import Dpm2
from solrl_tasks.sampling.samplers.euler import Euler
from tests.support.tiny import GUIDED, NEGATIVE, PROMPTS, load, save_tiny, tiny_spec


def load_folder(tiny_folder, **changes):
    name, folder = tiny_folder
    return load(tiny_spec(name, source=str(folder), dtype="float32", **changes))


def our_latents(family, noise, steps, sampler=Euler):
    conditioning = family.encode(PROMPTS)
    with torch.no_grad():
        return sampler().sample(
            lambda x, s: family.velocity(family.transformer, x, s, conditioning), noise, family.sigmas(steps)
        )


def their_call(name, family, noise, steps):
    """The pipeline's own call for the same images."""
    call = {
        "prompt": PROMPTS,
        "latents": pack(noise) if name == "flux" else noise,
        "num_inference_steps": steps,
        "height": 32,
        "width": 32,
        "max_sequence_length": 16,
        "guidance_scale": family.spec.guidance_scale,
    }
    if name == "flux":
        call |= {"guidance_scale": family.spec.guidance, "true_cfg_scale": family.spec.guidance_scale}
    if name == "sana":
        call |= {"use_resolution_binning": False, "complex_human_instruction": None}
    if family.negative_prompt is not None:
        call["negative_prompt"] = [NEGATIVE] * 2 if name != "sana" else NEGATIVE
    return call


def their_pipeline(tiny_folder):
    name, folder = tiny_folder
    pipe = getattr(diffusers, find_extension("family", name).pipeline_class).from_pretrained(
        folder, dtype=torch.float32
    )
    pipe.set_progress_bar_config(disable=True)
    if name == "sana":
        keep_times_whole(pipe.scheduler)
    return pipe


def keep_times_whole(scheduler):
    """SANA's scheduler cuts what the network is told to integers, of 1000; nothing is cut here."""
    original = scheduler.set_timesteps

    def set_timesteps(*args, **kwargs):
        original(*args, **kwargs)
        scheduler.timesteps = scheduler.sigmas[:-1] * 1000

    scheduler.set_timesteps = set_timesteps


def their_latents(pipe, name, family, noise, steps):
    latents = pipe(**their_call(name, family, noise, steps), output_type="latent").images
    return unpack(latents, family.latent_shape) if name == "flux" else latents


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("guidance", [{"guidance": 3.5}, GUIDED], ids=["plain", "guided"])
def test_sampling_equals_the_pipeline(tiny_folder, guidance):
    name, _ = tiny_folder
    family = load_folder(tiny_folder, **guidance)
    noise = initial_noise([3, 4], family.latent_shape)
    pipe = their_pipeline(tiny_folder)
    if name == "sana":
        pipe.scheduler.register_to_config(solver_order=1)
    theirs = their_latents(pipe, name, family, noise, 6)
    ours = our_latents(family, noise, 6)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)
    images = pipe(**their_call(name, family, noise, 6), output_type="np").images
    decoded = family.decode(ours)
    assert decoded.finite.all()
    assert np.abs(decoded.images.astype(int) - (images * 255).round().astype(int)).max() <= 1
    assert decoded.images.std() > 1


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_dpm2_equals_the_solver_of_sana(tmp_path):
    sana = ("sana", save_tiny("sana", tmp_path / "sana"))
    family = load_folder(sana)
    noise = initial_noise([3, 4], family.latent_shape)
    theirs = their_latents(their_pipeline(sana), "sana", family, noise, 8)
    torch.testing.assert_close(our_latents(family, noise, 8, Dpm2), theirs, rtol=0, atol=1e-4)


def test_a_saved_pipeline_is_the_drawn_one(tiny_folder):
    name, _ = tiny_folder
    saved, drawn = load_folder(tiny_folder), load(tiny_spec(name, dtype="float32"))
    for part in ("transformer", "vae"):
        ours, theirs = (getattr(f._pipeline, part).state_dict() for f in (drawn, saved))
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[k], theirs[k]) and ours[k].dtype == theirs[k].dtype for k in ours)
    encoded = [family.encode(PROMPTS).tensors for family in (saved, drawn)]
    assert all(torch.equal(encoded[0][k], encoded[1][k]) for k in encoded[0])
