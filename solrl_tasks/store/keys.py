"""Content addresses: the sha256 of canonical JSON."""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, Final

KEY_LENGTH: Final = 24


def canonical_json(value: Any) -> str:
    """JSON with sorted keys, no blanks, and floats by ``repr``, so that equal values give equal text.

    Tuples count as lists. ``1`` and ``1.0`` are different values.

    Raises:
        ValueError: the value holds a NaN or infinity, a key that is no string, or anything else that is not
            JSON; the message says where.
    """
    _check(value, "")
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def sha256_hex(data: bytes | memoryview) -> str:
    """The sha256 of bytes, 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def digest(value: Any) -> str:
    """The sha256 of the canonical JSON of a value, 64 hexadecimal digits. Raises as ``canonical_json``."""
    return sha256_hex(canonical_json(value).encode("ascii"))


def key(spec: Any) -> str:
    """The address of what a spec describes: the head of its digest, 24 hexadecimal digits."""
    return digest(spec)[:KEY_LENGTH]


def _check(value: Any, where: str) -> None:
    at = where or "the value"
    if value is None or isinstance(value, str | bool | int):
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{at} is {value}: only finite numbers have a canonical form")
        return
    if isinstance(value, Mapping):
        if not isinstance(value, dict):
            raise ValueError(f"{at} is a {type(value).__name__}, which is not JSON: pass a plain dict")
        for name, item in value.items():
            if not isinstance(name, str):
                raise ValueError(f"{at} has the key {name!r}: keys must be strings")
            _check(item, f"{where}.{name}" if where else name)
        return
    if isinstance(value, list | tuple):
        for position, item in enumerate(value):
            _check(item, f"{where}[{position}]")
        return
    raise ValueError(f"{at} is a {type(value).__name__}, which is not JSON")
