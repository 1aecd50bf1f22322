"""What a reward is, and how the ones that a recipe names are identified."""

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from solrl_tasks.store.keys import sha256_hex

Images = NDArray[np.uint8]
Scorer = Callable[[Images, Sequence[str], Sequence[Mapping[str, JsonValue]]], Sequence[float]]

TOLD: Final = 300
"""Characters that are kept of words from elsewhere."""
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,119}")
_VERSION: Final = re.compile(r"[A-Za-z0-9_.:+-]{1,60}")


class RewardError(RuntimeError):
    """A reward that cannot be used as it is: retrying would not help."""


class Explained(list[float]):
    """Scores with the reasons of those that are missing.

    Attributes:
        reasons: why an image could not be scored, by its index; its score is not finite.
    """

    def __init__(self, scores: Iterable[float], reasons: Mapping[int, str]) -> None:
        super().__init__(scores)
        self.reasons = dict(reasons)


class Reward(Protocol):
    """Scores images; higher is better.

    A score must be a function of the image, its prompt and its metadata alone: it is stored once and used again by
    every later study. ``version`` is to change whenever scores do.
    """

    @property
    def name(self) -> str:
        """As a recipe names it."""
        ...

    @property
    def version(self) -> str:
        """Of what the scores mean."""
        ...

    @property
    def range(self) -> tuple[float, float]:
        """Lowest and highest possible score; infinite where there is no bound."""
        ...

    def __call__(
        self, images: Images, prompts: Sequence[str], metadata: Sequence[Mapping[str, JsonValue]]
    ) -> Sequence[float] | NDArray[np.floating]:
        """One score an image.

        Args:
            images: uint8 ``[B, H, W, 3]``.
            prompts: B texts.
            metadata: B mappings, from the prompts file; empty where there was none.

        Returns:
            B numbers; a non-finite one says that the image cannot be scored, and ``Explained`` why.
        """
        ...


@dataclass
class NamedReward:
    """A reward under the name that a recipe uses, set up on first use.

    Whoever only needs the identity loads no weights. A scorer with weights of its own may have ``load()``, called
    before every batch that it is to score, ``unload()`` and ``memory()``: see ``ModelReward``.
    """

    name: str
    version: str
    range: tuple[float, float]
    build: Callable[[], Scorer] = field(repr=False)
    _scorer: Scorer | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        for what, value, pattern in (("name", self.name, _NAME), ("version", self.version, _VERSION)):
            if not pattern.fullmatch(value):
                raise RewardError(
                    f"reward {self.name!r} has the {what} {value!r}, which the store cannot use in a file name: "
                    "allowed are letters, digits and _ . : -"
                )

    def prepare(self) -> Scorer:
        """Set the reward up if that has not been done, its weights included.

        Raises:
            RewardError: it cannot be set up, for instance because its weights are missing.
        """
        try:
            scorer = self._scorer or self.build()
            getattr(scorer, "load", _nothing)()
        except Exception as error:
            reason = str(error) if isinstance(error, RewardError) else f"{type(error).__name__}: {error}"
            raise RewardError(f"reward {self.name!r} cannot be set up: {reason}") from error
        self._scorer = scorer
        return scorer

    def memory(self) -> int:
        """Bytes that its weights hold on the device; 0 for what is not loaded or has none."""
        return int(getattr(self._scorer, "memory", _nothing)() or 0)

    def unload(self) -> None:
        """Give the memory back; the next batch loads again."""
        getattr(self._scorer, "unload", _nothing)()

    def __call__(
        self, images: Images, prompts: Sequence[str], metadata: Sequence[Mapping[str, JsonValue]]
    ) -> Sequence[float]:
        """See ``Reward``."""
        return self.prepare()(images, prompts, metadata)


def _nothing() -> None:
    """What a scorer without weights has to load, and to unload."""


def presentable(text: str) -> str:
    """Words from elsewhere, such as an error, which may quote a prompt of any length: fit for a message or a log.

    On one line, cut, and without characters that could steer a terminal or that UTF-8 does not have.
    """
    # Cut first too: it may be megabytes.
    line = " ".join(text[: 4 * TOLD].split())
    shown = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line[:TOLD])
    return shown if len(line) <= TOLD and len(text) <= 4 * TOLD else f"{shown}…"


def reward_id(reward: Reward) -> str:
    """The name of the reward's values in the store: ``name@version``."""
    return f"{reward.name}@{reward.version}"


def declared_range(extension: Any) -> tuple[float, float]:
    """The range that a class or function declares; unbounded where it declares none."""
    low, high = getattr(extension, "range", (-math.inf, math.inf))
    return float(low), float(high)


def declared_version(extension: Any, name: str) -> str:
    """The ``version`` of a class or function, or a digest of its own source where it has none.

    The digest sees edits of the function itself, not of helpers that it calls: a reward in lasting use should say
    ``version = "1"`` and count up.

    Raises:
        RewardError: it has neither a version nor readable source.
    """
    version = getattr(extension, "version", None)
    if version is not None:
        return str(version)
    try:
        source = inspect.getsource(extension)
    except (OSError, TypeError) as error:
        raise RewardError(
            f"reward {name!r} has no version and no source that can be read: set its attribute version, such as "
            f'{getattr(extension, "__name__", "reward")}.version = "1"'
        ) from error
    return f"src-{sha256_hex(source.encode())[:12]}"
