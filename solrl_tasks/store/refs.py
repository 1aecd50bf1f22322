"""References: what stages hand to each other instead of data."""

from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from solrl_tasks.config.base import Frozen

Kind = Literal["pools", "samples", "selections", "policies", "evaluations"]
KINDS: tuple[Kind, ...] = ("pools", "samples", "selections", "policies", "evaluations")


UNKNOWN = "0" * 64
"""Digest of an object that is still being filled: the reference only says where it is."""


def _inside(path: str) -> str:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or "\\" in path or ".." in parts:
        raise ValueError(f"path must be relative to the store root and stay inside it, found {path!r}")
    return path


class Ref(Frozen):
    """Where a stored object is and what it holds.

    ``kind`` is the folder of the store, ``key`` the address computed from the spec (24 hex digits),
    ``digest`` the sha256 over the content (64 hex digits), ``path`` posix and relative to the store root, so
    that a moved store still resolves.
    """

    kind: Kind
    key: Annotated[str, Field(pattern=r"^[0-9a-f]{24}$")]
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    path: Annotated[str, AfterValidator(_inside)]
