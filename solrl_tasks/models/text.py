"""The text encoders of a pipeline: there while prompts are encoded, and elsewhere in between."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from solrl_tasks.config.recipe import ModelSpec
from solrl_tasks.models.pipelines import load_text_encoders


class TextEncoders:
    """Loads text encoders into a pipeline on first use; ``spec.text_encoders`` says what follows each use."""

    def __init__(
        self, pipeline: Any, names: Sequence[str], spec: ModelSpec, dtype: torch.dtype, device: torch.device
    ) -> None:
        """
        Args:
            pipeline: gets the encoders as its parts.
            names: which of its text encoders are used; the others stay absent.
            dtype: what they compute in.
        """
        self._pipeline = pipeline
        self._names = tuple(names)
        self._spec = spec
        self._dtype = dtype
        self._device = device
        self._loaded: dict[str, nn.Module] = {}
        self._ready = False

    def prepare(self) -> None:
        """Have the encoders on the device.

        Raises:
            SourceError: they are absent or damaged.
        """
        if self._ready:
            return
        if self._loaded:
            for encoder in self._loaded.values():
                encoder.to(self._device)
        else:
            self._loaded = load_text_encoders(self._spec, self._names, self._dtype, self._device)
            self._pipeline.register_modules(**self._loaded)
        self._ready = True

    def release(self) -> None:
        """Leave the device, as ``spec.text_encoders`` says; the next ``prepare`` brings them back."""
        if not self._ready or self._spec.text_encoders == "keep":
            return
        if self._spec.text_encoders == "release":
            self._pipeline.register_modules(**dict.fromkeys(self._loaded))
            self._loaded = {}
        else:
            for encoder in self._loaded.values():
                encoder.to("cpu")
        self._ready = False
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def networks(self) -> tuple[nn.Module, ...]:
        """What is loaded, wherever it lies."""
        return tuple(self._loaded.values())
