"""The text encoders of a pipeline: there while prompts are encoded, and elsewhere in between."""

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from solrl_tasks.config.recipe import ModelSpec
from solrl_tasks.models.host_copy import HostCopy
from solrl_tasks.models.pipelines import load_text_encoders

_log = logging.getLogger(__name__)


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
        self._copy: HostCopy | None = None
        self._ready = False

    def prepare(self) -> None:
        """Have the encoders on the device. After an error it can be called again, and begins anew.

        Raises:
            SourceError: they are absent or damaged.
            torch.OutOfMemoryError: the device has no memory for them; it holds as much as before.
        """
        if self._ready:
            return
        if not self._loaded:
            loaded = load_text_encoders(self._spec, self._names, self._dtype, self._device)
            self._pipeline.register_modules(**loaded)
            self._loaded = loaded
        elif self._copy is not None:
            self._copy.arrive(self._device)
        self._ready = True

    def release(self) -> None:
        """Leave the device, as ``spec.text_encoders`` says; the next ``prepare`` brings them back.

        To wait in host memory they are copied there the first time that they leave, and never again.

        Raises:
            MemoryError: the host has no memory for them; they stay on the device.
        """
        if not self._ready or self._spec.text_encoders == "keep":
            return
        if self._spec.text_encoders == "release":
            self._pipeline.register_modules(**dict.fromkeys(self._loaded))
            self._loaded = {}
        elif _has_own_memory(self._device):
            if self._copy is None:
                self._copy = self._copy_to_host()
            # Before they leave: where an interrupt lets only some of them, all are brought back.
            self._ready = False
            self._copy.leave()
        self._ready = False
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def networks(self) -> tuple[nn.Module, ...]:
        """What is loaded, wherever it lies."""
        return tuple(self._loaded.values())

    def _copy_to_host(self) -> HostCopy:
        try:
            copy = HostCopy(self._loaded.values(), pin=self._device.type == "cuda")
        except MemoryError as error:
            raise MemoryError(
                f"model.text_encoders is 'offload', but host memory is too short for the text encoders: {error}. "
                "Set it to 'keep', to leave them on the device, or to 'release', to read them again when needed"
            ) from error
        if copy.refusal:
            _log.warning(
                "the host does not let %.2f GiB of the text encoders be pinned (%s): they wait in ordinary memory, and "
                "take longer to come back to the device. More lockable memory mends that; `model.text_encoders: keep` "
                "needs none",
                copy.refused / 2**30,
                copy.refusal,
            )
        return copy


def _has_own_memory(device: torch.device) -> bool:
    """Whether there is anywhere to move to from it."""
    return device.type != "cpu"
