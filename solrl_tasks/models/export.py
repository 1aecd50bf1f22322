"""Adapters in the format of other tools."""

import json
from pathlib import Path

from safetensors.torch import save_file

from solrl_tasks.models.lora import LoraState

FILE = "pytorch_lora_weights.safetensors"


def save_diffusers_lora(state: LoraState, folder: Path, component: str = "transformer") -> Path:
    """Write an adapter so that ``pipe.load_lora_weights(folder)`` of diffusers applies it unchanged.

    Args:
        folder: made if absent; a file of an earlier export in it is overwritten.
        component: the pipeline's name for the adapted network.

    Returns:
        The file written.
    """
    weights = {
        f"{component}.{path}.{factor}.weight": state.weights[f"{path}.{factor}"]
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
