"""Where the device's time goes within a call."""

import re
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import torch

from solrl_tasks.config.base import Frozen

KERNELS: Final = 12
"""How many of the longest are named."""
_NAME_LENGTH: Final = 96
_GROUPS: Final = (
    # A fused kernel has the names of the operations around it too: its own kind comes first.
    ("fused or own kernel", r"^triton_(?!tem)|^_"),
    ("attention", r"flash|fmha|sdpa|attention|_attn"),
    ("convolution", r"conv|wgrad|dgrad"),
    ("matrix multiplication", r"gemm|cutlass|nvjet|xmma|triton_tem|cublas|scaled_mm|addmm|::mm|::bmm|linear"),
    ("copy", r"memcpy|memset|copy_|::copy|::to\b"),
)
"""Kinds of kernels by their names, the first that fits; the rest is ``other``."""


class Kernel(Frozen):
    """A kernel (on a CPU, an operation) and its part of the time."""

    name: str
    calls: int
    seconds: float
    share: float


class Profile(Frozen):
    """Where the time of a call went.

    Attributes:
        seconds: of all kernels together; idle time between them is not in it.
        groups: kind of kernel to its share.
        kernels: the longest, in order.
    """

    seconds: float
    groups: dict[str, float]
    kernels: tuple[Kernel, ...]


def profile(call: Callable[[], object], device: torch.device) -> Profile:
    """Run a call once under torch's profiler."""
    activity = torch.profiler.ProfilerActivity
    watched = [activity.CUDA, activity.CPU] if device.type == "cuda" else [activity.CPU]
    with torch.profiler.profile(activities=watched) as recorded:
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    times: dict[str, float] = {}
    calls: Counter[str] = Counter()
    for event in recorded.key_averages():
        taken = _taken(event, device)
        if taken > 0:
            times[event.key] = times.get(event.key, 0.0) + taken
            calls[event.key] += event.count
    total = sum(times.values())
    if total == 0:
        return Profile(seconds=0.0, groups={}, kernels=())
    groups: dict[str, float] = {}
    for name, taken in times.items():
        group = group_of(name)
        groups[group] = groups.get(group, 0.0) + taken / total
    return Profile(
        seconds=total / 1e6,
        groups=dict(_longest(groups)),
        kernels=tuple(
            Kernel(name=name[:_NAME_LENGTH], calls=calls[name], seconds=taken / 1e6, share=taken / total)
            for name, taken in _longest(times)[:KERNELS]
        ),
    )


def _longest(times: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(times.items(), key=lambda item: -item[1])


def group_of(name: str) -> str:
    """The kind of a kernel, by its name."""
    low = name.lower()
    return next((group for group, pattern in _GROUPS if re.search(pattern, low)), "other")


def _taken(event: Any, device: torch.device) -> float:
    """Microseconds of the event itself; on CUDA of kernels alone, which the operations that queued them also count."""
    if device.type != "cuda":
        return float(event.self_cpu_time_total)
    kernel = str(event.device_type).endswith("CUDA") and not getattr(event, "is_user_annotation", False)
    return float(event.self_device_time_total) if kernel else 0.0
