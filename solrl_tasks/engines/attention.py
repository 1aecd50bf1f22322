"""Which of torch's attention kernels are preferred."""

import functools
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

ORDER = (
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
)
"""The first that can is used. cuDNN's is about twice as fast as torch's own flash attention on Hopper; it has no
deterministic backward, so that updates, which ask for one, are given the next."""


def describe_attention(device: torch.device) -> str:
    """What decides attention's bits, for keys."""
    return "sdpa, cudnn first" if device.type == "cuda" else "sdpa"


@functools.cache
def prefer_cudnn() -> AbstractContextManager[Any]:
    """Set the order for this process, for good: it is one for all threads, so that it must not change while one of
    them computes."""
    # Kept in the cache: the order falls back when nothing holds the context any longer.
    context: AbstractContextManager[Any] = sdpa_kernel(list(ORDER), set_priority=True)
    context.__enter__()
    return context


def torch_order() -> AbstractContextManager[Any]:
    """A context with the order that torch begins with, to compare with."""
    order = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH, SDPBackend.CUDNN_ATTENTION)
    context: AbstractContextManager[Any] = sdpa_kernel(list(order), set_priority=True)
    return context
