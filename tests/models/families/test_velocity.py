"""What every family makes of prompts, noise levels and guidance."""

import pytest
import torch

from solrl_tasks.sampling.identity import initial_noise
from tests.support.tiny import EACH, GUIDED, NEGATIVE, PROMPTS, load, tiny_spec


@EACH
def test_prompts_matter_and_their_neighbours_do_not(name):
    family = load(tiny_spec(name, **GUIDED))
    both, alone = family.encode(PROMPTS), family.encode(PROMPTS[1:])
    assert all(torch.equal(both.take([1]).tensors[k], alone.tensors[k]) for k in alone.tensors)
    assert {t.dtype for t in both.tensors.values()} == {torch.float32}
    assert not torch.equal(both.tensors["embeds"][0], both.tensors["embeds"][1])


@EACH
def test_velocity_takes_a_level_a_row_and_passes_gradients(name):
    family = load(tiny_spec(name, dtype="float32", **GUIDED))
    x = initial_noise([1, 2], family.latent_shape).requires_grad_()
    conditioning = family.encode(PROMPTS)
    both = family.velocity(family.transformer, x, torch.tensor([0.9133, 0.25]), conditioning)
    for row, sigma in enumerate((0.9133, 0.25)):
        one = family.velocity(family.transformer, x[row : row + 1], sigma, conditioning.take([row]))
        torch.testing.assert_close(both[row : row + 1], one, rtol=0, atol=1e-5)
    near = family.velocity(family.transformer, x[:1], 0.9130, conditioning.take([0]))
    assert not torch.equal(near, both[:1])
    both.square().sum().backward()
    assert x.grad.abs().sum() > 0


@EACH
def test_guidance_is_the_formula(name):
    plain, guided = load(tiny_spec(name)), load(tiny_spec(name, **GUIDED))
    x = initial_noise([1, 2], plain.latent_shape)
    towards, against = (
        plain.velocity(plain.transformer, x, 0.6, plain.encode(texts)) for texts in (PROMPTS, [NEGATIVE] * 2)
    )
    found = guided.velocity(guided.transformer, x, 0.6, guided.encode(PROMPTS))
    torch.testing.assert_close(found, against + 3.0 * (towards - against), rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="needs a negative prompt, but the conditioning has none for embeds"):
        guided.velocity(guided.transformer, x, 0.6, plain.encode(PROMPTS))
    with pytest.raises(ValueError, match="2 latents have 1 rows"):
        plain.velocity(plain.transformer, x, 0.6, plain.encode(PROMPTS[:1]))


@EACH
def test_bfloat16_computes_in_bfloat16_and_answers_in_float32(name):
    low, exact = load(tiny_spec(name, dtype="bfloat16")), load(tiny_spec(name, dtype="float32"))
    assert {p.dtype for p in low.transformer.parameters()} == {torch.bfloat16}
    x = initial_noise([1, 2], low.latent_shape)
    with torch.no_grad():
        a, b = (f.velocity(f.transformer, x, 0.5, f.encode(PROMPTS)) for f in (low, exact))
    assert a.dtype == torch.float32
    assert 0 < (a - b).norm() / b.norm() < 0.1
