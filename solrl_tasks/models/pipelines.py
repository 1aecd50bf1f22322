"""Diffusers pipelines, loaded quietly but completely."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import diffusers
import torch
import transformers
from torch import nn

from solrl_tasks.config.recipe import ModelSpec
from solrl_tasks.models.dtypes import ComputeDtypes
from solrl_tasks.models.families.base import FamilyError
from solrl_tasks.models.sources import INDEX, SourceError, fetch, read_config

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LIBRARIES = (diffusers.utils.logging, transformers.utils.logging)


def load_pipeline(pipeline_class: Any, spec: ModelSpec, dtypes: ComputeDtypes, device: torch.device) -> Any:
    """A pipeline with every part frozen, in evaluation mode, on ``device``.

    Raises:
        SourceError: the source is absent or damaged, or lacks weights that the library would make up.
        FamilyError: the source is a pipeline of another class.
    """
    folder = fetch(spec)
    found = read_config(folder, "", INDEX).get("_class_name")
    if found != pipeline_class.__name__:
        raise FamilyError(
            f"model.source {spec.source!r} is a {found}, but model.family {spec.family!r} runs a "
            f"{pipeline_class.__name__}: choose the family that fits"
        )
    dtype = {"transformer": dtypes.transformer, "vae": dtypes.vae, "default": dtypes.text}
    try:
        with _silent_bars(), _complete(spec):
            pipeline = pipeline_class.from_pretrained(
                folder, dtype=dtype, local_files_only=True, use_safetensors=True
            )
    except SourceError:
        raise
    except Exception as error:
        raise SourceError(f"model.source {spec.source!r} ({folder}) cannot be loaded: {error}") from error
    pipeline.set_progress_bar_config(disable=True)
    for part in pipeline.components.values():
        if isinstance(part, nn.Module):
            part.requires_grad_(False).eval()
    return pipeline.to(device)


@contextmanager
def _silent_bars() -> Iterator[None]:
    shown = [library for library in _LIBRARIES if library.is_progress_bar_enabled()]
    for library in shown:
        library.disable_progress_bar()
    try:
        yield
    finally:
        for library in shown:
            library.enable_progress_bar()


class _Listener(logging.Handler):
    """Keeps what the libraries say about weights that they had to make up."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.made_up: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if "newly initialized" in message:
            self.made_up.append(" ".join(_COLOURS.sub("", message).split()))


@contextmanager
def _complete(spec: ModelSpec) -> Iterator[None]:
    """Turn random weights in place of absent ones, which the libraries only warn of, into an error."""
    listener = _Listener()
    loggers = [logging.getLogger(name) for name in ("diffusers", "transformers")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(min(logger.getEffectiveLevel(), logging.WARNING))
        logger.addHandler(listener)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(listener)
            logger.setLevel(level)
    if listener.made_up:
        said = "; ".join(listener.made_up)
        raise SourceError(
            f"model.source {spec.source!r} lacks weights: copy it again. The library says: {said}"
        )
