"""What kind of device a run had, by its environment record."""

from collections.abc import Mapping
from typing import Any, Literal

DeviceKind = Literal["cpu", "cuda", "unknown"]


def device_kind(record: Mapping[str, Any]) -> DeviceKind:
    """What the hours of a run are hours of; ``unknown`` where its environment record does not say so, or is lost."""
    device_class = record.get("device_class")
    if device_class is None:
        return "unknown"
    return "cuda" if str(device_class).startswith("sm_") else "cpu"
