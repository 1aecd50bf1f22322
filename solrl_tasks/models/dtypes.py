"""In which precision each part of a pipeline computes."""

from dataclasses import dataclass
from typing import Literal

import torch

Choice = Literal["auto", "float32", "bfloat16"]
_BY_NAME = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class ComputeDtypes:
    """Precision of the text encoders, the transformer and the autoencoder, and why."""

    text: torch.dtype
    transformer: torch.dtype
    vae: torch.dtype
    reason: str

    def describe(self) -> dict[str, str]:
        """Dtype names by part, as they stand in a pool's key."""
        parts = {"text": self.text, "transformer": self.transformer, "vae": self.vae}
        return {part: str(dtype).removeprefix("torch.") for part, dtype in parts.items()}


def choose(choice: Choice, device_class: str) -> ComputeDtypes:
    """The precision of each part.

    Text encoders and autoencoder always compute in float32: they are a small part of the time, and small text
    encoders break in bfloat16. ``auto`` computes the transformer in bfloat16 on accelerators that have it and
    in float32 elsewhere. On CPUs bfloat16 is several times slower or faster than float32 depending on the
    model of the processor; ``auto`` does not look, so that a recipe gives the same pool on every CPU.

    Args:
        choice: the recipe's ``model.dtype``.
        device_class: ``cpu``, or ``sm_90`` and the like.
    """
    if choice != "auto":
        return ComputeDtypes(torch.float32, _BY_NAME[choice], torch.float32, f"model.dtype is {choice}")
    if _has_bfloat16(device_class):
        return ComputeDtypes(torch.float32, torch.bfloat16, torch.float32, f"{device_class} computes bfloat16 fast")
    reason = f"float32 on {device_class}: bfloat16 is not fast on all of its kind"
    return ComputeDtypes(torch.float32, torch.float32, torch.float32, reason)


def _has_bfloat16(device_class: str) -> bool:
    kind, _, capability = device_class.partition("_")
    return kind == "sm" and int(capability) >= 80


def device_class(device: torch.device) -> str:
    """The kind of arithmetic unit: ``cpu``, or ``sm_90`` and the like."""
    if device.type != "cuda":
        return device.type
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"
