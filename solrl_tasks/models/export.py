"""Adapters in the format of other tools."""

import json
import re
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from solrl_tasks.models.lora import LoraState

FILE = "pytorch_lora_weights.safetensors"


def save_diffusers_lora(state: LoraState, folder: Path, convolutions: str = "", component: str = "transformer") -> Path:
    """Write an adapter so that ``pipe.load_lora_weights(folder)`` of diffusers applies it unchanged.

    Args:
        folder: made if absent; a file of an earlier export in it is overwritten.
        convolutions: regular expression of the paths of layers that are 1x1 convolutions, whose factors are too.
        component: the pipeline's name for the adapted network.

    Returns:
        The file written.
    """
    weights = {
        f"{component}.{path}.{factor}.weight": _as_kernel(state.weights[f"{path}.{factor}"], path, convolutions)
        for path in state.paths
        for factor in ("lora_A", "lora_B")
    }
    config = {"r": state.rank, "lora_alpha": state.alpha, "target_modules": list(state.paths)}
    metadata = {f"{component}.{key}": value for key, value in config.items()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        weights,
        folder / FILE,
        metadata={"format": "pt", "lora_adapter_metadata": json.dumps(metadata, sort_keys=True)},
    )
    return folder / FILE


def _as_kernel(factor: Tensor, path: str, convolutions: str) -> Tensor:
    return factor[:, :, None, None] if re.fullmatch(convolutions, path) else factor
