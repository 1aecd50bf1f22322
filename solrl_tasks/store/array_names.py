"""Names of the arrays of a pool or of samples, and what one item of each is."""

import re
from collections.abc import Mapping
from typing import Any, Final

IMAGES: Final = "images"
THUMBNAILS: Final = "thumbnails"
LATENTS: Final = "latents"
PATHS: Final = "paths"
REWARDS: Final = "rewards"
FEATURES: Final = "features"
_NAMED_VALUES: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:+-]*@[A-Za-z0-9_.:+-]+")


def reward_array(name: str) -> str:
    """The array of a reward.

    Raises:
        ValueError: the name is not ``name@version`` in letters, digits and ``_ . : + -``.
    """
    return f"{REWARDS}/{_checked('reward', name)}"


def feature_array(name: str) -> str:
    """The array of a feature. Raises as ``reward_array``."""
    return f"{FEATURES}/{_checked('feature', name)}"


def item_form(name: str, shape: Mapping[str, Any]) -> tuple[tuple[int | None, ...], str]:
    """Shape and dtype of one item of an array; None is a side of any length.

    Args:
        shape: of the folder: ``latent`` (C, H, W) where it holds latents, ``states`` where it holds paths.
    """
    if name in (IMAGES, THUMBNAILS):
        return (None, None, 3), "uint8"
    if name.startswith(f"{FEATURES}/"):
        return (None,), "float32"
    if name == PATHS:
        return (shape["states"], *shape["latent"]), "float32"
    return (tuple(shape["latent"]) if name == LATENTS else ()), "float32"


def item_fits(found: tuple[int, ...], expected: tuple[int | None, ...]) -> bool:
    """Whether an item has the expected shape; None is any length."""
    return len(found) == len(expected) and all(
        want is None or have == want for have, want in zip(found, expected, strict=True)
    )


def _checked(what: str, name: str) -> str:
    if not _NAMED_VALUES.fullmatch(name):
        raise ValueError(f"{what} {name!r}: the store needs name@version, in letters, digits and the signs _ . : + -")
    return name
