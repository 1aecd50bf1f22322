"""The environment that a block was computed in: recorded with it, and not mixed without leave."""

from typing import Any


def environment_record(device: str = "cpu") -> dict[str, Any]:
    """Library versions, hardware name, device class and threads of this process, as JSON.

    Args:
        device: the torch device that computes, such as ``cpu`` or ``cuda:0``.
    """
    raise NotImplementedError


def record_id(record: dict[str, Any]) -> str:
    """The name of a record: the head of its digest, 16 hex digits."""
    raise NotImplementedError


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """What differs between two JSON trees, one ``dotted.field: one -> other`` a line."""
    raise NotImplementedError
