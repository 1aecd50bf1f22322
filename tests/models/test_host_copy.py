"""Weights that wait in host memory: every bit and every tie the same, copied out once, and whole after an error."""

import pytest
import torch
from torch import nn

from solrl_tasks.models.host_copy import HostCopy
from tests.support.copying import Copying

CPU = torch.device("cpu")


class Net(nn.Module):
    """All that a network may hold: ties of two kinds, views, precisions, buffers that are saved and that are not."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.shared = nn.Embedding(50, 8)
        self.again = nn.Embedding(50, 8, _weight=self.shared.weight)
        self.brief = nn.Linear(8, 4, dtype=torch.bfloat16)
        both = torch.randn(6, 8)
        self.whole, self.lower = nn.Parameter(both), nn.Parameter(both[2:])
        self.turned = nn.Parameter(torch.randn(5, 3).t())
        self.nothing = nn.Parameter(torch.empty(0, 4))
        self.register_parameter("absent", None)
        self.register_buffer("places", torch.arange(7)[None].expand(3, 7))
        self.register_buffer("scale", torch.tensor(2.5), persistent=False)
        self.register_buffer("mask", torch.tensor([True, False]), persistent=False)
        self.register_buffer("missing", None)
        self.requires_grad_(False)


STORED = 50 * 8 * 4 + (8 * 4 + 4) * 2 + 6 * 8 * 4 + 5 * 3 * 4 + 7 * 8 + 4 + 2
"""Bytes, each once."""


def tensors(net):
    return {**dict(net.named_parameters(remove_duplicate=False)), **dict(net.named_buffers(remove_duplicate=False))}


def described(net):
    return {
        name: (id(t), t.dtype, tuple(t.shape), t.stride(), t.storage_offset(), t.tolist())
        for name, t in tensors(net).items()
    }


def storages(net):
    return {name: t.untyped_storage()._cdata for name, t in tensors(net).items()}


def ties(net):
    where = storages(net)
    return {(a, b) for a in where for b in where if where[a] == where[b]}


@pytest.fixture
def net():
    return Net()


def test_nothing_changes_but_the_place(net):
    before, tied = described(net), ties(net)
    assert {("shared.weight", "again.weight"), ("whole", "lower")} < tied
    copy = HostCopy([net], pin=False)
    places = [storages(net)]
    for _ in range(3):
        copy.leave()
        assert (described(net), ties(net)) == (before, tied)
        places.append(storages(net))
        copy.arrive(CPU)
        assert (described(net), ties(net)) == (before, tied)
        places.append(storages(net))
    home = places[1]
    assert places[3] == places[5] == home
    assert all(place[name] != home[name] for place in (places[0], *places[2::2]) for name in home)
    assert (copy.refused, copy.refusal) == (0, "")


def test_each_byte_is_copied_once_and_never_back(net):
    with Copying() as out:
        copy = HostCopy([net, net.brief], pin=False)
    assert sum(out.sizes) == STORED
    for _ in range(2):
        with Copying() as left:
            copy.leave()
        assert left.sizes == []
        with Copying() as arrived:
            copy.arrive(CPU)
        assert sum(arrived.sizes) == STORED


def test_what_a_device_held_is_gone_when_the_networks_have_left(net):
    copy = HostCopy([net], pin=False)
    with Copying() as arrived:
        copy.arrive(CPU)
    assert not any(arrived.gone())
    copy.leave()
    assert all(arrived.gone())
    assert len(arrived.made) == len(set(storages(net).values()))


@pytest.mark.parametrize("at", [0, 1, 5])
def test_an_error_half_way_leaves_all_where_it_was_and_holds_nothing(net, at):
    before, copy = described(net), HostCopy([net], pin=False)
    copy.leave()
    home = storages(net)
    with pytest.raises(torch.OutOfMemoryError) as held, Copying(fail_at=at) as failing:
        copy.arrive(CPU)
    # The error, with its frames, is still there.
    assert failing.gone() == [True] * at
    assert held.value.__traceback__ is not None
    assert storages(net) == home
    copy.arrive(CPU)
    assert described(net) == before
    assert not set(storages(net).values()) & set(home.values())


def test_what_has_no_values_stays(net):
    net.brief.weight = nn.Parameter(torch.empty(4, 8, device="meta"), requires_grad=False)
    ghost = net.brief.weight
    copy = HostCopy([net], pin=False)
    copy.leave()
    copy.arrive(CPU)
    assert net.brief.weight is ghost
    assert ghost.is_meta


def test_networks_without_weights_are_no_matter():
    for networks in ([], [nn.Identity()]):
        copy = HostCopy(networks, pin=False)
        copy.leave()
        copy.arrive(CPU)
