"""In which precision each part of a pipeline computes."""

from dataclasses import dataclass

import torch

from solrl_tasks.config.recipe import Dtype, ModelSpec

_BY_NAME = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class ComputeDtypes:
    """Precision of the text encoders, the transformer and the autoencoder."""

    text: torch.dtype
    transformer: torch.dtype
    vae: torch.dtype

    def describe(self) -> dict[str, str]:
        """Dtype names by part, as they stand in a pool's key."""
        vae = dtype_name(self.vae)
        if self.vae != torch.float32:
            vae += ", float32 where it overflows"
        return {"text": dtype_name(self.text), "transformer": dtype_name(self.transformer), "vae": vae}


def choose(spec: ModelSpec, device_class: str) -> ComputeDtypes:
    """The precision of each part.

    ``auto`` computes transformer and autoencoder in bfloat16 on accelerators that have it and in float32
    elsewhere, and text encoders in float32 everywhere: they run once a prompt, and small ones break in bfloat16.
    On CPUs bfloat16 is several times slower or faster than float32 depending on the model of the processor;
    ``auto`` does not look, so that a recipe gives the same pool on every CPU.

    Args:
        device_class: ``cpu``, or ``sm_90`` and the like.
    """
    fast = torch.bfloat16 if _has_bfloat16(device_class) else torch.float32
    return ComputeDtypes(
        text=_resolve(spec.text_dtype, torch.float32),
        transformer=_resolve(spec.dtype, fast),
        vae=_resolve(spec.vae_dtype, fast),
    )


def _resolve(choice: Dtype, auto: torch.dtype) -> torch.dtype:
    return auto if choice == "auto" else _BY_NAME[choice]


def _has_bfloat16(device_class: str) -> bool:
    kind, _, capability = device_class.partition("_")
    return kind == "sm" and int(capability) >= 80


def dtype_name(dtype: torch.dtype) -> str:
    """``float32``, ``bfloat16`` and so on."""
    return str(dtype).removeprefix("torch.")


def device_class(device: torch.device) -> str:
    """The kind of arithmetic unit: ``cpu``, or ``sm_90`` and the like."""
    if device.type != "cuda":
        return device.type
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"
