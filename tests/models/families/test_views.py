"""Views of one family: the same networks at another guidance or resolution."""

import numpy as np
import pytest
import torch

from solrl_tasks.models.families.base import FamilyError
from solrl_tasks.sampling.identity import initial_noise
from tests.support.tiny import EACH, GUIDED, PROMPTS, load, tiny_spec


@EACH
def test_another_guidance_is_another_view_of_the_same_networks(name):
    plain, guided = load(tiny_spec(name)), load(tiny_spec(name, **GUIDED, guidance=3.5))
    viewed = load(tiny_spec(name, **GUIDED, guidance=3.5)).with_guidance(1.0, 1.0)
    x = initial_noise([1, 2], plain.latent_shape)
    for one, two in ((viewed, plain), (viewed.with_guidance(3.5, 3.0), guided)):
        assert one.negative_prompt == two.negative_prompt
        ours, theirs = (f.velocity(f.transformer, x, 0.6, f.encode(PROMPTS)) for f in (one, two))
        assert torch.equal(ours, theirs)
    assert viewed.with_guidance(2.0, 2.0).transformer is viewed.transformer


@EACH
def test_another_resolution_is_another_view_of_the_same_networks(name):
    small, large = (load(tiny_spec(name, resolution=side)) for side in (32, 64))
    x = {family: initial_noise([1, 2], family.latent_shape) for family in (small, large)}
    before = large.velocity(large.transformer, x[large], 0.6, large.encode(PROMPTS))
    viewed = large.at_resolution(32)
    assert viewed.transformer is large.transformer
    assert (viewed.spec, viewed.latent_shape) == (small.spec, small.latent_shape)
    assert viewed.sigmas(4) == small.sigmas(4)
    ours, theirs = (f.velocity(f.transformer, x[small], 0.6, f.encode(PROMPTS)) for f in (viewed, small))
    assert torch.equal(ours, theirs)
    ours, theirs = (f.decode(x[small]).images for f in (viewed, small))
    assert ours.shape == (2, 32, 32, 3) and np.array_equal(ours, theirs)
    assert torch.equal(large.velocity(large.transformer, x[large], 0.6, large.encode(PROMPTS)), before)
    assert viewed.with_guidance(1.0, 1.0).at_resolution(64).latent_shape == large.latent_shape
    with pytest.raises(FamilyError, match=r"model\.resolution is 30"):
        large.at_resolution(30)
