"""Random weights: the same everywhere, different by name, and of a size that passes signals on."""

import hashlib

import pytest
import torch
from torch import nn

from solrl_tasks.config.extensions import find_extension
from solrl_tasks.models.random_weights import draw, fill
from solrl_tasks.models.sources import base_digest, text_digest
from solrl_tasks.sampling.identity import initial_noise
from tests.support.tiny import FAMILIES, full_spec, load, tiny_spec


def filled(name, shape=(256, 512), std=1.0, dtype=torch.float32):
    out = torch.empty(shape, dtype=dtype)
    fill(out, name, std)
    return out


def test_the_stored_digest_still_holds():
    found = hashlib.sha256(filled("a.weight").numpy().tobytes()).hexdigest()
    assert found == "0385053ca22e6aa00b58e91962248eb71281216e900979529aa37f898a9c57c1"


def test_values_are_uniform_of_the_deviation_asked_for_and_unrelated():
    values = filled("a", std=0.5)
    assert values.mean().abs() < 0.01
    assert values.std() == pytest.approx(0.5, rel=0.01)
    assert values.abs().max() <= 0.5 * 3**0.5
    counts = torch.histc(values, 16)
    assert counts.min() / counts.max() > 0.93
    flat = values.flatten()
    for other in (flat.roll(1), flat.roll(512), filled("b").flatten(), flat.flip(0)):
        assert torch.corrcoef(torch.stack([flat, other]))[0, 1].abs() < 0.015


def test_a_value_depends_on_its_place_and_not_on_how_much_is_drawn_at_a_time(monkeypatch):
    whole = filled("a")
    monkeypatch.setattr("solrl_tasks.models.random_weights._PART", 1000)
    assert torch.equal(filled("a"), whole)
    assert torch.equal(filled("a", (128, 512)), whole[:128])
    assert torch.equal(filled("a", dtype=torch.bfloat16), whole.bfloat16())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(64, 32)
        self.norm = nn.LayerNorm(32)
        self.conv = nn.Conv2d(4, 8, 3, bias=False)
        self.register_buffer("table", torch.arange(4.0))
        self.register_buffer("angles", torch.arange(4.0), persistent=False)


def test_what_each_kind_of_weight_gets():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    net = draw(Net, torch.bfloat16, torch.device("cpu"), "net")
    assert torch.equal(torch.rand(2), expected)
    assert not net.training
    assert not any(p.requires_grad for p in net.parameters())
    assert {p.dtype for p in net.parameters()} == {torch.bfloat16}
    assert net.lin.weight.float().std() == pytest.approx(1 / 8, rel=0.05)
    assert net.conv.weight.float().std() == pytest.approx(1 / 6, rel=0.08)
    assert not net.lin.bias.any()
    assert (net.norm.weight == 1).all()
    assert (net.table.dtype, net.angles.dtype) == (torch.bfloat16, torch.float32)
    assert net.table.tolist() == [0.0, 1.0, 2.0, 3.0]
    other = draw(Net, torch.bfloat16, torch.device("cpu"), "other")
    assert not torch.equal(other.lin.weight, net.lin.weight)


@pytest.mark.parametrize("name", FAMILIES)
def test_weights_that_a_text_encoder_shares_are_shared(name):
    family = load(tiny_spec(name))
    family.encode(["x"])
    for encoder in family._text.networks():
        stored = {n for n, _ in encoder.named_parameters(remove_duplicate=False)}
        if "shared.weight" in stored:
            assert encoder.shared.weight is encoder.encoder.embed_tokens.weight


def test_the_digest_of_random_models_follows_the_configuration(tmp_path, monkeypatch):
    large, medium = (base_digest(full_spec(n), tmp_path) for n in ("sd3.5-large", "sd3.5-medium"))
    assert large != medium
    assert base_digest(full_spec("sd3.5-large"), tmp_path) == large
    texts = [text_digest(full_spec(n), None) for n in ("sd3.5-large", "sd3.5-medium", "flux.1-dev")]
    assert texts[0] == texts[1] != texts[2]
    monkeypatch.setattr("solrl_tasks.models.random_weights.VERSION", "random-v2")
    assert base_digest(full_spec("sd3.5-large"), tmp_path) != large


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("source", ["flux.1-dev", "sd3.5-large", "sana-1.6b"])
def test_full_size_models_are_drawn_in_seconds_and_stay_finite(source):
    import time

    spec, device = full_spec(source, max_sequence_length=128), torch.device("cuda")
    started = time.perf_counter()
    family = find_extension("family", spec.family).load(spec, device)
    torch.cuda.synchronize()
    assert time.perf_counter() - started < 60
    conditioning = family.encode(["a red circle", "two blue squares"])
    family.release_text()
    noise = initial_noise([1, 2], family.latent_shape).to(device)
    with torch.no_grad():
        velocity = family.velocity(family.transformer, noise, 0.7, conditioning)
    assert velocity.isfinite().all()
    assert 0.1 < velocity.std() < 100
    assert family.decode(noise - 0.7 * velocity).finite.all()
    assert family.memory()["text"] == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_draws_what_a_cpu_draws():
    out = torch.empty(1000, 1000, device="cuda")
    fill(out, "a", 0.3)
    assert torch.equal(out.cpu(), filled("a", (1000, 1000), 0.3))
