"""Diffusers pipelines, loaded quietly but completely."""

import importlib
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from solrl_tasks.config.recipe import ModelSpec
from solrl_tasks.models.dtypes import ComputeDtypes
from solrl_tasks.models.families.base import FamilyError
from solrl_tasks.models.sources import INDEX, SourceError, fetch, read_config, require_components

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LIBRARIES = ("diffusers", "transformers")


def load_pipeline(class_name: str, spec: ModelSpec, dtypes: ComputeDtypes, device: torch.device) -> Any:
    """A pipeline with every part frozen, in evaluation mode, on ``device``.

    Args:
        class_name: the class of diffusers that the source must be.

    Raises:
        SourceError: the source is absent or damaged, or lacks weights that the library would make up.
        FamilyError: the source is a pipeline of another class.
    """
    folder = fetch(spec)
    found = read_config(folder, "", INDEX).get("_class_name")
    if found != class_name:
        raise FamilyError(
            f"model.source {spec.source!r} is a {found}, but model.family {spec.family!r} runs a "
            f"{class_name}: choose the family that fits"
        )
    dtype = {"transformer": dtypes.transformer, "vae": dtypes.vae, "default": dtypes.text}
    require_components(folder)
    try:
        with _silent_bars(), _complete(spec):
            pipeline = _pipeline_class(class_name).from_pretrained(
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


def _pipeline_class(class_name: str) -> Any:
    """A class of diffusers, imported only now (it takes seconds), without its talk of absent optional packages."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        return getattr(importlib.import_module("diffusers"), class_name)
    finally:
        logger.setLevel(level)


@contextmanager
def _silent_bars() -> Iterator[None]:
    libraries = [importlib.import_module(f"{name}.utils.logging") for name in _LIBRARIES]
    shown = [library for library in libraries if library.is_progress_bar_enabled()]
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
    loggers = [logging.getLogger(name) for name in _LIBRARIES]
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
        raise SourceError(f"model.source {spec.source!r} lacks weights: copy it again. The library says: {said}")
