"""What a feature is, and how the one that a recipe names is identified."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from solrl_tasks.config.base import Frozen
from solrl_tasks.config.extensions import find_extension, parse_options
from solrl_tasks.config.recipe import ExtensionSpec
from solrl_tasks.store.keys import digest

Metric = Literal["rms", "cosine"]
Images = NDArray[np.uint8]
Embedder = Callable[[Images], NDArray[np.floating]]

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,119}")
_VERSION: Final = re.compile(r"[A-Za-z0-9_.:+-]{1,60}")


class FeatureError(RuntimeError):
    """A feature that cannot be used as it is."""


class Feature(Protocol):
    """A vector for an image, a function of that image alone; ``version`` is to change whenever the vectors do.

    ``metric`` is how two vectors are compared: ``rms``, the root of the mean squared difference, or ``cosine``, 1 minus
    the cosine of their angle.
    """

    @property
    def name(self) -> str:
        """As a recipe names it."""
        ...

    @property
    def version(self) -> str:
        """Of what the vectors mean."""
        ...

    @property
    def metric(self) -> Metric:
        """How two vectors are compared."""
        ...

    def __call__(self, images: Images) -> NDArray[np.floating]:
        """Vectors [B, D] of uint8 images [B, H, W, 3]; D depends on name and version alone."""
        ...


@dataclass
class NamedFeature:
    """A feature under the name that a recipe uses, set up on first use: asking for its identity loads nothing."""

    name: str
    version: str
    metric: Metric
    build: Callable[[], Embedder] = field(repr=False)
    _embedder: Embedder | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        for what, value, pattern in (("name", self.name, _NAME), ("version", self.version, _VERSION)):
            if not pattern.fullmatch(value):
                raise FeatureError(
                    f"feature {self.name!r} has the {what} {value!r}, which the store cannot use in a file name: "
                    "allowed are letters, digits and _ . : -"
                )

    def __call__(self, images: Images) -> NDArray[np.float32]:
        """float32 vectors [B, D] of uint8 images [B, H, W, 3].

        Raises:
            FeatureError: it cannot be set up, fails, or gives something else than one finite vector an image.
        """
        try:
            embedder = self._embedder or self.build()
            getattr(embedder, "load", _nothing)()
            self._embedder = embedder
            found = np.asarray(embedder(images.copy()), dtype=np.float32)
        except Exception as error:
            raise FeatureError(f"feature {self.name!r} failed: {type(error).__name__}: {error}") from error
        if found.ndim != 2 or len(found) != len(images) or not np.isfinite(found).all():
            raise FeatureError(
                f"feature {self.name!r} must give one finite vector for each of {len(images)} images, "
                f"found an array of {list(found.shape)}"
            )
        return found

    def memory(self) -> int:
        """Bytes that its weights hold on the device; 0 for what is not loaded or has none."""
        return int(getattr(self._embedder, "memory", _nothing)() or 0)

    def unload(self) -> None:
        """Give the memory back; the next batch loads again."""
        getattr(self._embedder, "unload", _nothing)()


def make_feature(spec: ExtensionSpec, device: torch.device | None = None) -> NamedFeature:
    """The feature that a recipe names, not yet set up.

    A class is instantiated on first use, with its options where it has any, and with ``device`` where its constructor
    has such a parameter. Options that decide vectors become part of the version: what the class's ``identity(options)``
    says, or else all that differ from their defaults.

    Raises:
        UnknownExtensionError: nothing answers to the name.
        ValueError: an option is refused.
        FeatureError: what the name stands for is no feature.
    """
    extension = find_extension("feature", spec.name)
    options = parse_options("feature", extension, dict(spec.options))
    metric, version = getattr(extension, "metric", None), getattr(extension, "version", None)
    if not isinstance(extension, type) or metric not in ("rms", "cosine") or not isinstance(version, str):
        raise FeatureError(
            f"feature {spec.name!r} is {extension!r}: a feature is a class with the attributes version (a text) and "
            "metric (rms or cosine) and a __call__ of images"
        )
    changed = _identity(extension, options)
    version += f"+{digest(changed)[:8]}" if changed else ""
    return NamedFeature(spec.name, version, metric, lambda: _built(extension, options, device))


def feature_id(feature: Feature) -> str:
    """The name of the vectors in the store: ``name@version``."""
    return f"{feature.name}@{feature.version}"


def _identity(extension: Any, options: Frozen | None) -> dict[str, Any]:
    if options is None:
        return {}
    identity = getattr(extension, "identity", None)
    return dict(options.model_dump(mode="json", exclude_defaults=True) if identity is None else identity(options))


def _built(extension: Any, options: Frozen | None, device: torch.device | None) -> Embedder:
    named = {"device": device or torch.device("cpu")} if "device" in inspect.signature(extension).parameters else {}
    embedder: Embedder = extension(*([] if options is None else [options]), **named)
    return embedder


def _nothing() -> None:
    """What a feature without weights has to load, and to unload."""
