"""A second module over the same weights."""

import copy

from torch import nn


def share(module: nn.Module) -> nn.Module:
    """A structural copy of a module whose parameters and buffers are the very same tensors.

    Layers of the copy can be replaced or wrapped without the original noticing, and no weight is held twice.
    Writing into a shared tensor in place changes both: whoever needs other values gives the copy tensors of
    its own.
    """
    memo = {id(tensor): tensor for tensor in [*module.parameters(), *module.buffers()]}
    twin: nn.Module = copy.deepcopy(module, memo)
    return twin
