"""Twins share every weight and nothing else."""

import torch
from torch import nn

from solrl_tasks.models.twin import share


def make_net() -> nn.Module:
    first = nn.Linear(4, 4)
    return nn.Sequential(first, nn.BatchNorm1d(4), first, nn.Linear(4, 4)).eval()


def test_parameters_and_buffers_are_the_same_tensors():
    net = make_net()
    twin = share(net)
    mine, theirs = net.state_dict(keep_vars=True), twin.state_dict(keep_vars=True)
    assert list(mine) == list(theirs)
    assert all(mine[name] is theirs[name] for name in mine)
    assert twin is not net
    assert twin[0] is not net[0]


def test_tied_modules_stay_tied():
    twin = share(make_net())
    assert twin[2] is twin[0]


def test_replacing_a_layer_of_the_twin_leaves_the_original():
    net = make_net()
    x = torch.randn(3, 4)
    before = net(x)
    twin = share(net)
    assert torch.equal(twin(x), before)
    twin[3] = nn.Linear(4, 2)
    assert twin(x).shape == (3, 2)
    assert torch.equal(net(x), before)
