"""Diffusers pipelines, loaded quietly but completely."""

import importlib
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from solrl_tasks.config.recipe import ModelSpec
from solrl_tasks.models import random_pipeline
from solrl_tasks.models.dtypes import ComputeDtypes
from solrl_tasks.models.families.base import FamilyError
from solrl_tasks.models.sources import (
    INDEX,
    SourceError,
    components,
    fetch,
    is_random,
    read_config,
    require_components,
)

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LIBRARIES = ("diffusers", "transformers")


def fetch_class(class_name: str, spec: ModelSpec) -> Path:
    """The local folder of a pipeline of one class; see ``fetch``.

    Raises:
        FamilyError: the source is a pipeline of another class.
    """
    folder = fetch(spec)
    found = read_config(folder, "", INDEX).get("_class_name")
    if found != class_name:
        raise FamilyError(
            f"model.source {spec.source!r} is a {found}, but model.family {spec.family!r} runs a "
            f"{class_name}: choose the family that fits"
        )
    return folder


def load_pipeline(class_name: str, spec: ModelSpec, dtypes: ComputeDtypes, device: torch.device) -> Any:
    """A pipeline with all but its text encoders, every part frozen, in evaluation mode, on ``device``.

    Args:
        class_name: the class of diffusers that the source must be.

    Raises:
        SourceError: the source is absent or damaged, or lacks weights that the library would make up.
        FamilyError: the source is a pipeline of another class.
    """
    folder = fetch_class(class_name, spec)
    with _reading(spec, folder):
        cls = _pipeline_class(class_name)
        pipeline = _draw(cls, folder, dtypes, device) if is_random(spec) else _read(cls, folder, dtypes)
    pipeline.set_progress_bar_config(disable=True)
    for part in pipeline.components.values():
        if isinstance(part, nn.Module):
            part.requires_grad_(False).eval()
    return pipeline.to(device)


def _read(cls: Any, folder: Path, dtypes: ComputeDtypes) -> Any:
    require_components(folder)
    dtype = {"transformer": dtypes.transformer, "vae": dtypes.vae, "default": torch.float32}
    return cls.from_pretrained(folder, dtype=dtype, local_files_only=True, use_safetensors=True, **_absent(folder))


def _draw(cls: Any, folder: Path, dtypes: ComputeDtypes, device: torch.device) -> Any:
    networks = {"transformer": dtypes.transformer, "vae": dtypes.vae}
    parts = {name: random_pipeline.draw_part(folder, name, dtype, device) for name, dtype in networks.items()}
    return cls(**parts, **random_pipeline.small_parts(folder), **_absent(folder))


def _absent(folder: Path) -> dict[str, None]:
    """The parts that a pipeline begins without: text encoders, and what it was saved without."""
    index = read_config(folder, "", INDEX)
    parts = [name for name, value in index.items() if isinstance(value, list)]
    never = set(parts) - set(components(folder))
    return {name: None for name in parts if name.startswith("text_encoder") or name in never}


def text_encoder_names(folder: Path) -> tuple[str, ...]:
    """Names of a pipeline's text encoders, in the order in which its own code numbers them."""
    return tuple(sorted(name for name in components(folder) if name.startswith("text_encoder")))


def load_text_encoders(
    spec: ModelSpec, names: Sequence[str], dtype: torch.dtype, device: torch.device
) -> dict[str, nn.Module]:
    """Some of a pipeline's text encoders, frozen, in evaluation mode, on ``device``.

    Raises:
        SourceError: the source is absent or damaged, or lacks weights that the library would make up.
    """
    folder = fetch(spec)
    loaded: dict[str, nn.Module] = {}
    with _reading(spec, folder):
        for name in names:
            if is_random(spec):
                loaded[name] = random_pipeline.draw_part(folder, name, dtype, device)
                continue
            cls = random_pipeline.part_class(folder, name)
            encoder = cls.from_pretrained(folder / name, dtype=dtype, local_files_only=True, use_safetensors=True)
            loaded[name] = encoder.requires_grad_(False).eval().to(device)
    return loaded


@contextmanager
def _reading(spec: ModelSpec, folder: Path) -> Iterator[None]:
    """Load quietly, and turn what goes wrong into an error that names the source."""
    try:
        with _silent_bars(), _complete(spec):
            yield
    except SourceError:
        raise
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise SourceError(f"model.source {spec.source!r} ({folder}) cannot be loaded: {error}") from error


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
