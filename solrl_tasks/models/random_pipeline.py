"""The parts of a pipeline that has configurations and no weights."""

import importlib
from pathlib import Path
from typing import Any

import torch
from torch import nn

from solrl_tasks.models.random_weights import build_from, draw
from solrl_tasks.models.sources import EMBEDDED, INDEX, components, read_config

_WORDS = {"CLIPTokenizer": EMBEDDED / "tokenizer", "T5Tokenizer": EMBEDDED / "tokenizer_2"}
"""Vocabularies that are lent: small, so their tokens are within any text encoder's."""


def part_class(folder: Path, name: str) -> Any:
    """The class of a pipeline's part, as its index says."""
    library, class_name = read_config(folder, "", INDEX)[name]
    return getattr(importlib.import_module(library), class_name)


def draw_part(folder: Path, name: str, dtype: torch.dtype, device: torch.device) -> nn.Module:
    """A network of the pipeline in ``folder`` with random weights, frozen."""
    return draw(build_from(part_class(folder, name), read_config(folder, name)), dtype, device, name)


def small_parts(folder: Path) -> dict[str, Any]:
    """Scheduler and tokenizers."""
    parts: dict[str, Any] = {}
    for name in components(folder):
        if name == "scheduler":
            config = read_config(folder, name, "scheduler_config.json")
            parts[name] = part_class(folder, name).from_config(config)
        elif name.startswith("tokenizer"):
            parts[name] = _tokenizer(part_class(folder, name), read_config(folder, name, "tokenizer_config.json"))
    return parts


def _tokenizer(cls: Any, config: dict[str, Any]) -> Any:
    length = config["model_max_length"]
    if cls.__name__ in _WORDS:
        return cls.from_pretrained(_WORDS[cls.__name__], model_max_length=length, local_files_only=True)
    special = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")
    symbols = [*special, *(f"<0x{byte:02X}>" for byte in range(256))]
    return cls(vocab={symbol: index for index, symbol in enumerate(symbols)}, merges=[], model_max_length=length)
