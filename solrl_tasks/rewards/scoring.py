"""Rewards by name, and scoring that survives what single images do to them."""

import copy
import inspect
import math
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue

from solrl_tasks.config.base import Frozen
from solrl_tasks.config.extensions import find_extension, parse_options
from solrl_tasks.config.recipe import RewardSpec
from solrl_tasks.config.words import counted
from solrl_tasks.rewards.base import (
    Explained,
    Images,
    NamedReward,
    Reward,
    RewardError,
    Scorer,
    declared_range,
    declared_version,
    presentable,
)
from solrl_tasks.store.keys import digest

Metadata = Mapping[str, JsonValue]


@dataclass(frozen=True)
class Scores:
    """Scores of a batch.

    Attributes:
        values: float32 ``[B]``, NaN where the image could not be scored.
        failures: everything that went wrong, in words and in order; empty if nothing did.
        reasons: of these, what each image without a score failed by, by its index.
    """

    values: NDArray[np.float32]
    failures: tuple[str, ...] = ()
    reasons: Mapping[int, str] = field(default_factory=dict)


def make_reward(spec: RewardSpec, device: torch.device | None = None) -> NamedReward:
    """The reward that a recipe names, not yet set up.

    Classes are instantiated on first use, with their options where they have any; plain functions
    ``module:function`` are called as they are. What of the options decides scores becomes part of the version, so
    that their values are kept apart in the store: what a class's ``identity(options)`` says, or else all that
    differ from their defaults.

    Args:
        device: where a class computes whose constructor has a parameter ``device``; None is the CPU. The identity
            does not depend on it.

    Raises:
        UnknownExtensionError: nothing answers to the name.
        ValueError: an option is refused.
        RewardError: what the name stands for cannot be called, or cannot be identified.
    """
    extension = find_extension("reward", spec.use or spec.name)
    options = parse_options("reward", extension, dict(spec.options))
    _require_callable(extension, spec.name)
    changed = _identity(extension, options)
    if spec.use is not None:
        # Under a label of one's own, the name no longer tells what computes the values.
        changed = {"use": spec.use, "options": changed}
    version = declared_version(extension, spec.name) + (f"+{digest(changed)[:8]}" if changed else "")
    build = _builder(extension, options, device or torch.device("cpu"))
    return NamedReward(spec.name, version, declared_range(extension), build)


def score(
    reward: Reward, images: Images, prompts: Sequence[str], metadata: Sequence[Metadata], timeout: float | None = None
) -> Scores:
    """Score a batch; what fails is tried once more image by image.

    An image that still fails, and one whose score is not finite, is invalid: its value is NaN and its failure is
    listed. Each attempt gets its own copy of images and metadata.

    Args:
        images: uint8 ``[B, H, W, 3]``.
        prompts: B texts.
        metadata: B mappings.
        timeout: seconds that one attempt may take, a batch or a single image alike. Python cannot stop a
            thread: an attempt that hangs is left behind and goes on using what it uses until the process
            ends.

    Raises:
        RewardError: the reward returned something else than one number an image, cannot be set up, or found no memory
            for a single image.
        ValueError: the inputs are not of one length.
    """
    if images.ndim != 4 or not len(images) == len(prompts) == len(metadata):
        raise ValueError(
            f"a batch needs images [B, H, W, 3] and as many prompts and metadata, found {images.shape}, "
            f"{len(prompts)} and {len(metadata)}"
        )
    if isinstance(reward, NamedReward):
        # Loading its weights is not part of scoring: it must not run into the timeout.
        reward.prepare()
    attempt = _Attempt(reward, images, prompts, metadata, timeout)
    values, reasons = attempt.run(slice(None))
    if values is None:
        return _one_by_one(attempt, f"{reward.name}: batch of {len(images)}: {reasons[0]}; scored image by image")
    return _marked(reward.name, values, reasons)


@dataclass(frozen=True)
class _Attempt:
    reward: Reward
    images: Images
    prompts: Sequence[str]
    metadata: Sequence[Metadata]
    timeout: float | None

    def run(self, rows: slice) -> tuple[NDArray[np.float64] | None, Mapping[int, str]]:
        """Scores of some rows with the reasons of those that are missing, or None and the reason under 0."""
        images, prompts = self.images[rows].copy(), list(self.prompts[rows])
        metadata = copy.deepcopy([dict(item) for item in self.metadata[rows]])
        try:
            result = _within(self.timeout, lambda: self.reward(images, prompts, metadata), self.reward.name)
        except RewardError:
            raise
        except (MemoryError, torch.OutOfMemoryError) as error:
            # An image alone may fit where a batch does not. Where it does not, that says nothing of the image.
            if len(images) > 1:
                return None, {0: presentable(f"{type(error).__name__}: {error}")}
            raise RewardError(
                f"reward {self.reward.name!r} found no memory for a single image ({presentable(str(error))}): nothing "
                "was stored for it; free some, and start again"
            ) from error
        except Exception as error:
            return None, {0: presentable(f"{type(error).__name__}: {error}")}
        values = _numbers(self.reward.name, result, len(images))
        reasons = result.reasons if isinstance(result, Explained) else {}
        return values, {row: presentable(str(reason)) for row, reason in reasons.items()}


def _one_by_one(attempt: _Attempt, first_failure: str) -> Scores:
    values = np.full(len(attempt.images), np.nan)
    failures: dict[int, str] = {}
    for row in range(len(values)):
        value, reasons = attempt.run(slice(row, row + 1))
        if value is not None:
            values[row] = value[0]
        if 0 in reasons:
            failures[row] = reasons[0]
    marked = _marked(attempt.reward.name, values, failures)
    return replace(marked, failures=(first_failure, *marked.failures))


def _marked(name: str, values: NDArray[np.float64], failures: Mapping[int, str]) -> Scores:
    with np.errstate(over="ignore"):
        stored = values.astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(stored)).tolist()
    reasons = {row: failures.get(row, f"score is {values[row]}") for row in bad}
    stored[bad] = np.nan
    return Scores(stored, tuple(f"{name}: image {row}: {reason}" for row, reason in reasons.items()), reasons)


def _numbers(name: str, result: Any, expected: int) -> NDArray[np.float64]:
    if isinstance(result, set | frozenset | Mapping):
        raise RewardError(f"reward {name!r} returned a {type(result).__name__}, which has no order: return a list")
    try:
        found = len(result)
    except TypeError as error:
        kind = type(result).__name__
        raise RewardError(
            f"reward {name!r} returned {kind}, expected a sequence of {counted(expected, 'number')}"
        ) from error
    if found != expected:
        raise RewardError(
            f"reward {name!r} returned {counted(found, 'score')} for {counted(expected, 'image')}: it must return one "
            "each"
        )
    values = list(result)
    if len(values) != expected:
        raise RewardError(
            f"reward {name!r} says that it returned {counted(expected, 'score')}, but gives {len(values)}"
        )
    try:
        return np.array([_number(value) for value in values], dtype=np.float64)
    except (TypeError, ValueError) as error:
        shown = presentable(repr(values[:3]))
        raise RewardError(f"reward {name!r} must return numbers, found {shown}: {error}") from error


def _number(value: Any) -> float:
    if isinstance(value, str | bytes):
        raise TypeError("text is not a number")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _within(timeout: float | None, call: Callable[[], Any], name: str) -> Any:
    if timeout is None:
        return call()
    outcome: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def work() -> None:
        try:
            outcome.put((call(), None))
        except BaseException as error:
            outcome.put((None, error))

    threading.Thread(target=work, name=f"reward {name}", daemon=True).start()
    try:
        result, error = outcome.get(timeout=timeout)
    except queue.Empty:
        raise TimeoutError(f"no scores within {timeout:g} s") from None
    if error is not None:
        raise error
    return result


def _identity(extension: Any, options: Frozen | None) -> dict[str, JsonValue]:
    if options is None:
        return {}
    identity: Callable[[Frozen], dict[str, JsonValue]] | None = getattr(extension, "identity", None)
    return options.model_dump(mode="json", exclude_defaults=True) if identity is None else identity(options)


def _builder(extension: Any, options: Frozen | None, device: torch.device) -> Callable[[], Scorer]:
    if not isinstance(extension, type):
        return lambda: extension
    arguments = [] if options is None else [options]
    named = {"device": device} if "device" in inspect.signature(extension).parameters else {}
    return lambda: extension(*arguments, **named)


def _require_callable(extension: Any, name: str) -> None:
    if isinstance(extension, type):
        fits = any("__call__" in vars(base) for base in extension.__mro__)
    else:
        fits = callable(extension)
    if not fits:
        raise RewardError(
            f"reward {name!r} is {extension!r}, which cannot be called: "
            "a reward is a function of (images, prompts, metadata), or a class with such a __call__"
        )
