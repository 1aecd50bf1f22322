"""Cached encodings: exact, one at a time, checked when read, and without text encoders where nothing is new."""

import logging

import pytest
import torch

from solrl_tasks.models.embeddings import EmbeddingCache
from tests.support.tiny import FAMILIES, load, tiny_spec

TEXTS = ["a red circle", "two blue squares", "a red circle"]
GUIDED = {"guidance_scale": 3.0, "negative_prompt": "a green ring"}
EACH = pytest.mark.parametrize("name", FAMILIES)


def equal(one, two):
    assert one.tensors.keys() == two.tensors.keys()
    return all(torch.equal(one.tensors[k].float(), two.tensors[k].float()) for k in one.tensors)


def files(folder):
    return sorted(folder.rglob("*.safetensors"))


@pytest.fixture
def refuse(monkeypatch):
    """Call it, and from then on no text encoder may be loaded."""

    def load_nothing(*args):
        raise AssertionError("text encoders were loaded")

    return lambda: monkeypatch.setattr("solrl_tasks.models.text.load_text_encoders", load_nothing)


@EACH
@pytest.mark.parametrize("guidance", [{}, GUIDED], ids=["plain", "guided"])
def test_disk_gives_what_encoding_gives(name, guidance, tmp_path, refuse):
    family = load(tiny_spec(name, **guidance))
    direct = family.encode(TEXTS)
    assert equal(EmbeddingCache(tmp_path / "e", family).get(TEXTS), direct)
    assert len(files(tmp_path / "e")) == 2 + len(guidance) // 2
    refuse()
    fresh = load(family.spec)
    assert equal(EmbeddingCache(tmp_path / "e", fresh).get(TEXTS), direct)
    assert fresh.memory()["text"] == 0


@EACH
def test_what_is_kept_is_what_the_transformer_sees(name, tmp_path):
    family = load(tiny_spec(name, dtype="bfloat16"))
    cached, direct = EmbeddingCache(tmp_path, family).get(TEXTS), family.encode(TEXTS)
    assert {t.dtype for t in cached.tensors.values()} == {torch.bfloat16}
    x = torch.randn(3, *family.latent_shape)
    with torch.no_grad():
        ours, theirs = (family.velocity(family.transformer, x, 0.5, c) for c in (cached, direct))
    assert torch.equal(ours, theirs)


def test_memory_alone_is_enough(refuse):
    family = load(tiny_spec("flux"))
    cache = EmbeddingCache(None, family)
    first = cache.get(TEXTS)
    family._text.release()
    refuse()
    assert equal(cache.get(TEXTS), first)


def test_memory_is_bounded_and_what_was_dropped_is_read_again(tmp_path, refuse):
    family = load(tiny_spec("flux"))
    cache = EmbeddingCache(tmp_path, family, memory_bytes=1)
    first = cache.get(TEXTS)
    assert len(cache._memory) == 1
    refuse()
    assert equal(cache.get(TEXTS), first)


@pytest.mark.parametrize("damage", ["torn", "changed", "other", "empty"])
def test_damage_is_seen_said_and_mended(tmp_path, damage, caplog):
    family = load(tiny_spec("flux"))
    direct = EmbeddingCache(tmp_path, family).get(TEXTS[:1])
    (path,) = files(tmp_path)
    good = path.read_bytes()
    changed = bytearray(good)
    changed[-5] ^= 1
    path.write_bytes({"torn": good[:-10], "changed": bytes(changed), "other": b"x" * 99, "empty": b""}[damage])
    with caplog.at_level(logging.WARNING):
        assert equal(EmbeddingCache(tmp_path, family).get(TEXTS[:1]), direct)
    assert f"cached embedding {path} is damaged" in caplog.text
    caplog.clear()
    assert equal(EmbeddingCache(tmp_path, family).get(TEXTS[:1]), direct)
    assert "damaged" not in caplog.text


@pytest.mark.parametrize(
    "changes", [{"max_sequence_length": 8}, {"text_dtype": "bfloat16"}, {"dtype": "bfloat16"}, {"source": "embedded"}]
)
def test_what_decides_an_encoding_names_its_file(tmp_path, changes):
    for spec in (tiny_spec("flux"), tiny_spec("flux", **{"resolution": 64, **changes})):
        EmbeddingCache(tmp_path, load(spec)).get(TEXTS[:1])
    assert len(files(tmp_path)) == 2


def test_what_does_not_decide_an_encoding_does_not(tmp_path):
    for spec in (tiny_spec("sd3"), tiny_spec("sd3", resolution=64, shift=2.0, text_encoders="release", **GUIDED)):
        EmbeddingCache(tmp_path, load(spec)).get(TEXTS[:1])
    assert len(files(tmp_path)) == 2  # the prompt, and the negative one
    EmbeddingCache(tmp_path, load(tiny_spec("sd3", t5=False))).get(TEXTS[:1])
    assert len(files(tmp_path)) == 3


def test_a_text_is_another_thing_as_a_negative_prompt(tmp_path):
    spec = tiny_spec("sana", complex_human_instruction=True, guidance_scale=2.0, negative_prompt=TEXTS[0])
    found = EmbeddingCache(tmp_path, load(spec)).get(TEXTS[:1])
    assert not torch.equal(found.tensors["embeds"], found.tensors["negative_embeds"])


def test_encoders_leave_even_after_a_failure(monkeypatch):
    family = load(tiny_spec("flux", text_encoders="release"))
    family.encode(["x"])
    monkeypatch.setattr(family._pipeline, "encode_prompt", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        EmbeddingCache(None, family).get(["y"])
    assert family.memory()["text"] == 0
