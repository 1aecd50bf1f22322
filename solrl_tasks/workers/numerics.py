"""What decides the bits of a result besides its inputs."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch

from solrl_tasks.config.extensions import find_extension, parse_options
from solrl_tasks.config.recipe import ExtensionSpec, ModelSpec
from solrl_tasks.engines.attention import describe_attention
from solrl_tasks.models.dtypes import device_class

THREADS: Final = "OMP_NUM_THREADS"


def default_device() -> torch.device:
    """The accelerator where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def host_threads(device: torch.device, given: int, environment: Mapping[str, str] = os.environ) -> int:
    """Threads of torch on the host for work on a device: those given, but one beside a GPU, unless the user chose.

    Beside a GPU a host has small work alone, such as averages of policies: thousands of operations, after each of which
    threads wait for one another without letting others run. Two processes that do so on the same cores
    hinder each other until an update takes many times as long. What a CPU computes depends on its threads, so theirs
    are as given.

    Args:
        environment: whose ``OMP_NUM_THREADS`` is the user's choice.
    """
    return given if device.type != "cuda" or environment.get(THREADS) else 1


def describe_numerics(model: ModelSpec, engine: ExtensionSpec | None, device: torch.device) -> dict[str, str]:
    """Device class, compute dtypes, compilation, TF32 and attention backend, without loading any weights.

    Args:
        engine: the engine that samples; None describes training, which runs on the base module.
    """
    kind = device_class(device)
    family = find_extension("family", model.family)
    described: dict[str, str] = {
        "device": kind,
        "attention": describe_attention(device),
        "tf32": "on" if device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32 else "off",
        **family.numerics(model, kind),
    }
    if engine is not None:
        extension = find_extension("engine", engine.name)
        options = parse_options("engine", extension, dict(engine.options))
        described |= extension.numerics(options, kind)
    else:
        # Adapters are float32; in a network of lower precision their products are autocast to it.
        described["autocast"] = "off" if described["transformer"] == "float32" else described["transformer"]
        described["algorithms"] = "deterministic" if device.type == "cuda" else "default"
    return described


@contextmanager
def reproducible(device: torch.device) -> Iterator[None]:
    """Gradients that are the same at every try: attention and others sum in no fixed order on CUDA unless told to."""
    if device.type != "cuda":
        yield
        return
    settings: Any = torch.utils.deterministic
    enabled, warned = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    filled = settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    settings.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warned)
        settings.fill_uninitialized_memory = filled
