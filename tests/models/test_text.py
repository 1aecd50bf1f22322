"""Text encoders between uses: where the recipe says, the same when they are back, and whole after any error.

A CPU plays the device that has memory of its own.
"""

import logging

import pytest
import torch

from solrl_tasks.models import host_copy, host_memory, text
from solrl_tasks.models.embeddings import EmbeddingCache
from solrl_tasks.models.host_copy import HostCopy
from tests.support.copying import Copying
from tests.support.tiny import FAMILIES, load, tiny_spec

TEXTS = ["a red circle", "two blue squares"]
MODES = ("keep", "offload", "release")
EACH = pytest.mark.parametrize("name", FAMILIES)


@pytest.fixture
def apart(monkeypatch):
    """The device has memory of its own."""
    monkeypatch.setattr(text, "_has_own_memory", lambda device: True)


def bits(family):
    encoded = family.encode(TEXTS).tensors
    return {name: (tensor.dtype, tensor.stride(), tensor.numpy().tobytes()) for name, tensor in encoded.items()}


def storages(family):
    tensors = [t for network in family._text.networks() for t in [*network.parameters(), *network.buffers()]]
    return {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}


def released(name="flux"):
    """A family whose text encoders wait in host memory."""
    family = load(tiny_spec(name, text_encoders="offload"))
    family.encode(TEXTS)
    family.release_text()
    return family


@EACH
@pytest.mark.parametrize("mode", MODES)
def test_encoders_wait_where_the_recipe_says_and_say_the_same_ever_after(name, mode, apart):
    family = load(tiny_spec(name, text_encoders=mode))
    first, held, device = bits(family), family._text.networks(), storages(family)
    homes = []
    for _ in range(3):
        family.release_text()
        family.release_text()
        assert family._text.networks() == (() if mode == "release" else held)
        homes.append(storages(family))
        assert bits(family) == first
    if mode == "keep":
        assert homes == [device] * 3
    elif mode == "offload":
        assert homes == [homes[0]] * 3
        assert not set(homes[0]) & (set(device) | set(storages(family)))


@EACH
def test_weights_are_copied_out_once_and_each_byte_is_brought_once(name, apart):
    family = load(tiny_spec(name, text_encoders="offload"))
    family.encode(TEXTS)
    whole = sum(storages(family).values())
    with Copying() as out:
        family.release_text()
    assert sum(out.sizes) == whole
    for _ in range(2):
        with Copying() as arrived:
            family._text.prepare()
        assert sum(arrived.sizes) == whole
        with Copying() as left:
            family.release_text()
        assert left.sizes == []
        assert all(arrived.gone())


@EACH
def test_shared_weights_stay_shared(name, apart):
    family = released(name)
    for _ in range(2):
        for encoder in family._text.networks():
            if "shared.weight" in dict(encoder.named_parameters(remove_duplicate=False)):
                assert encoder.shared.weight is encoder.encoder.embed_tokens.weight
        family._text.prepare()


@EACH
@pytest.mark.parametrize("mode", ["keep", "offload"])
def test_on_a_cpu_nothing_is_copied_and_nothing_moves(name, mode):
    family = load(tiny_spec(name, text_encoders=mode))
    first, place, held = bits(family), storages(family), family.memory()["text"]
    with Copying() as copying:
        for _ in range(2):
            family.release_text()
            assert (storages(family), family.memory()["text"]) == (place, held)
            family._text.prepare()
    assert copying.sizes == []
    assert family._text._copy is None
    assert bits(family) == first


@pytest.mark.parametrize("at", [0, 7])
def test_after_a_shortage_half_way_they_are_brought_whole(at, apart):
    family = released()
    home = storages(family)
    with pytest.raises(torch.OutOfMemoryError), Copying(fail_at=at) as failing:
        EmbeddingCache(None, family).get(TEXTS)
    assert failing.gone() == [True] * at
    assert storages(family) == home
    assert bits(family) == bits(load(family.spec))
    assert not set(storages(family)) & set(home)


def test_after_loading_half_of_them_all_are_loaded(monkeypatch):
    family = load(tiny_spec("sd3", text_encoders="offload"))
    with monkeypatch.context() as patch:
        patch.setattr(family._pipeline, "register_modules", lambda **_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            family.encode(TEXTS)
    family.release_text()
    assert bits(family) == bits(load(family.spec))


@pytest.mark.parametrize("mode", ["leave", "arrive"])
def test_an_interrupt_between_two_of_them_is_mended(mode, apart, monkeypatch):
    family = released()
    if mode == "leave":
        family._text.prepare()
    done, view = [], host_copy._view

    def interrupted(*args):
        done.append(view(*args))
        if len(done) == 9:
            raise KeyboardInterrupt
        return done[-1]

    with monkeypatch.context() as patch:
        patch.setattr(host_copy, "_view", interrupted)
        with pytest.raises(KeyboardInterrupt):
            family.release_text() if mode == "leave" else family._text.prepare()
    parted = storages(family)
    assert bits(family) == bits(load(family.spec))
    assert not set(storages(family)) & set(parted)


def test_they_stay_where_the_host_has_no_memory_for_them(apart, monkeypatch):
    family = load(tiny_spec("flux", text_encoders="offload"))
    first, place = bits(family), storages(family)

    def refuse(length, whole):
        raise MemoryError(f"the host has no {whole} bytes for it")

    with monkeypatch.context() as patch:
        patch.setattr(host_memory, "_pageable", refuse)
        with pytest.raises(MemoryError, match=r"^model\.text_encoders is 'offload', but .* no \d+ bytes .*'release'"):
            family.release_text()
    assert storages(family) == place
    assert bits(family) == first
    family.release_text()
    assert not set(storages(family)) & set(place)


def test_memory_that_cannot_be_pinned_is_told_once(apart, monkeypatch, caplog):
    family = load(tiny_spec("flux", text_encoders="offload"))
    first = bits(family)

    def refuse(length):
        raise RuntimeError("CUDA error: out of memory\nand what programmers may do")

    monkeypatch.setattr(host_memory, "_pinned", refuse)
    monkeypatch.setattr(text, "HostCopy", lambda networks, pin: HostCopy(networks, pin=True))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            family.release_text()
            assert bits(family) == first
    (said,) = caplog.messages
    assert said.startswith(
        "the host does not let 0.00 GiB of the text encoders be pinned (CUDA error: out of memory): "
    )
    assert "`model.text_encoders: keep`" in said
