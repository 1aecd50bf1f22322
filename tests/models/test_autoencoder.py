"""Decoding: row by row what is finite, and float32 where a lower precision is not enough."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from solrl_tasks.config.extensions import find_extension
from solrl_tasks.config.recipe import ModelSpec
from solrl_tasks.models.autoencoder import Decoder, decode_execution
from solrl_tasks.sampling.identity import initial_noise
from tests.support.tiny import FAMILIES, load, tiny_spec


class Config(dict):
    __getattr__ = dict.__getitem__


class Fragile(nn.Module):
    """Gives infinite pixels in bfloat16 for latents above 2, and counts the rows it is given."""

    def __init__(self, shift=None):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, dtype=torch.bfloat16), requires_grad=False)
        self.config = Config(scaling_factor=0.5, shift_factor=shift)
        self.calls = SimpleNamespace(rows={torch.bfloat16: [], torch.float32: []})

    @property
    def dtype(self):
        return self.weight.dtype

    def __deepcopy__(self, memo):
        twin = Fragile(self.config.shift_factor)
        twin.calls = self.calls
        return twin

    def decode(self, z, return_dict):
        assert return_dict is False
        self.calls.rows[z.dtype].append(len(z))
        pixels = z[:, :1].repeat(1, 3, 2, 2) * self.weight / 8
        if z.dtype == torch.float32:
            return (pixels,)
        return (torch.where(z.amax((1, 2, 3), keepdim=True) > 2, torch.inf, pixels),)


def test_only_rows_that_overflow_are_decoded_again():
    vae = Fragile()
    x0 = torch.tensor([0.5, 1.5, torch.nan, 0.25])[:, None, None, None].expand(4, 2, 4, 4)
    decoded = Decoder(vae, 8).decode(x0)
    assert decoded.finite.tolist() == [True, True, False, True]
    assert vae.calls.rows == {torch.bfloat16: [4], torch.float32: [1]}
    assert decoded.images[1].min() == decoded.images[1].max() == round((3.0 / 8 / 2 + 0.5) * 255)
    assert not decoded.images[2].any()


def test_what_is_infinite_in_float32_too_is_flagged():
    x0 = torch.tensor([3e38, 0.5])[:, None, None, None].expand(2, 2, 4, 4)
    assert Decoder(Fragile(), 8).decode(x0).finite.tolist() == [False, True]


def test_batches_are_cut_by_pixels_and_the_shift_is_added():
    vae = Fragile(shift=0.25)
    decoder = Decoder(vae, 1024)
    decoded = decoder.decode(torch.zeros(9, 2, 4, 4))
    assert vae.calls.rows[torch.bfloat16] == [2, 2, 2, 2, 1]
    assert (decoded.images == round((0.25 / 8 / 2 + 0.5) * 255)).all()
    assert decoder.networks() == [vae]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_compiled_decoder_has_one_graph_for_batches_of_every_size(name):
    family = load(tiny_spec(name))
    decoder = Decoder(family.diffusers_pipeline().vae, 512, "compiled", backend="aot_eager")
    x0 = initial_noise(range(11), family.latent_shape)
    torch._dynamo.reset()
    counters.clear()
    whole = decoder.decode(x0)
    graphs = counters["stats"]["unique_graphs"]
    assert graphs == 1
    for rows in (1, 5, 8):
        assert np.abs(decoder.decode(x0[:rows]).images.astype(int) - whole.images[:rows]).max() <= 1
    assert counters["stats"]["unique_graphs"] == graphs
    plain = family.decode(x0)
    assert np.abs(plain.images.astype(int) - whole.images).max() <= 1
    # The network that is compiled is a twin: whoever uses the pipeline itself finds it as it was.
    assert family.diffusers_pipeline().vae.decoder._compiled_call_impl is None


@pytest.mark.parametrize(
    ("resolution", "kind", "choice", "found"),
    [
        (512, "cpu", "auto", "eager"),
        (512, "sm_90", "auto", "compiled"),
        (64, "sm_90", "auto", "eager"),
        (64, "sm_90", "compiled", "compiled"),
        (512, "sm_90", "eager", "eager"),
    ],
)
def test_what_is_compiled(resolution, kind, choice, found):
    spec = ModelSpec(resolution=resolution, vae_execution=choice)
    assert decode_execution(spec, kind) == find_extension("family", "flux").numerics(spec, kind)["decode"] == found


@pytest.mark.parametrize("name", FAMILIES)
def test_low_precision_shows_nearly_the_same_images(name):
    low, exact = (load(tiny_spec(name, vae_dtype=d)) for d in ("bfloat16", "float32"))
    x0 = initial_noise([1, 2, 3], exact.latent_shape)
    ours, theirs = low.decode(x0), exact.decode(x0)
    assert ours.finite.all()
    difference = np.abs(ours.images.astype(int) - theirs.images.astype(int))
    assert 0 < difference.mean() < 3


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_broken_latents_are_flagged_and_harm_no_other(name, dtype):
    family = load(tiny_spec(name, vae_dtype=dtype))
    x0 = initial_noise([1, 2, 3], family.latent_shape)
    whole = family.decode(x0)
    broken = x0.clone()
    broken[1, 0, 0, 0] = torch.nan
    decoded = family.decode(broken)
    assert decoded.finite.tolist() == [True, False, True]
    assert not decoded.images[1].any()
    assert np.array_equal(decoded.images[::2], whole.images[::2])
