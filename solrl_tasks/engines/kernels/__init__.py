"""Kernels for accelerators, each with a plain torch twin that gives the same bits.

One module is the kernels of one format. Triton is imported when a kernel is first needed, never with the module.
"""

import functools
import importlib.util


@functools.cache
def triton_available() -> bool:
    """Whether Triton is installed; nothing is said of a device that it could compile for."""
    return importlib.util.find_spec("triton") is not None
