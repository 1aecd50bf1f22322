"""Blocks of known networks that hand quantised rows to the layers of a twin.

A fused block is the very same module with another ``forward``: it has the class of this package that derives from the
block's own, keeps its submodules, and computes what is in front of a matrix multiplication (norm and modulation, gelu,
gates) in the kernel that quantises. One module is the blocks of one network; it lists its classes in ``FUSED``. Blocks
of other networks stay as they are.
"""

import importlib
import pkgutil
from typing import ClassVar, Protocol, cast

from torch import nn


class FusedBlock(Protocol):
    """What a class in ``FUSED`` has beside its ``forward``."""

    block: ClassVar[type[nn.Module]]
    """The class that it takes the place of."""

    @staticmethod
    def obstacle(block: nn.Module) -> str | None:
        """Why this block cannot be fused, or None."""
        ...


def fuse(twin: nn.Module) -> int:
    """Fuse the blocks of a twin that can be; returns how many.

    Layers must have been replaced: a block is fused if those that would be given quantised rows can take them.
    """
    known = _known()
    count = 0
    for module in twin.modules():
        fused = known.get(type(module))
        if fused is not None and fused.obstacle(module) is None:
            module.__class__ = cast(type[nn.Module], fused)
            count += 1
    return count


def _known() -> dict[type[nn.Module], type[FusedBlock]]:
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    return {fused.block: fused for module in modules for fused in getattr(module, "FUSED", ())}
