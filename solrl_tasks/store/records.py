"""The environment that a block was computed in: recorded with it, and not mixed without leave."""

import importlib.metadata
import platform
from pathlib import Path
from typing import Any, Final

from solrl_tasks.store import atomic
from solrl_tasks.store.errors import DamagedError
from solrl_tasks.store.keys import digest
from solrl_tasks.store.object_path import Place

_LIBRARIES: Final = ("torch", "numpy", "diffusers", "transformers", "peft", "safetensors", "triton")
_ABSENT: Final = object()
_SHOWN: Final = 120  # characters of a value in a message


def environment_record(device: str = "cpu") -> dict[str, Any]:
    """Library versions, hardware name, device class and threads of this process, as JSON.

    Args:
        device: the torch device that computes, such as ``cpu`` or ``cuda:0``.
    """
    import torch

    kind = torch.device(device).type
    if kind == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        device_class, hardware = f"sm_{major}{minor}", torch.cuda.get_device_name(device)
    else:
        device_class, hardware = kind, _processor()
    return {
        "libraries": {"python": platform.python_version(), **_versions()},
        "hardware": hardware,
        "device_class": device_class,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def record_id(record: dict[str, Any]) -> str:
    """The name of a record: the head of its digest, 16 hex digits."""
    return digest(record)[:16]


def decisive_differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """What of two environments may tell in results, as ``differences`` shows it.

    The threads of a host do not tell in what its GPU computes; what a CPU sums depends on how many share the work.
    """
    return differences(_decisive(one), _decisive(other))


def _decisive(record: dict[str, Any]) -> dict[str, Any]:
    ignored = () if record.get("device_class", "cpu") == "cpu" else ("threads",)
    return {name: value for name, value in record.items() if name not in ignored}


def differences(one: Any, other: Any, field: str = "") -> list[str]:
    """What differs between two JSON trees: ``dotted.field: one -> other``, an entry each.

    A field that only one of them has is shown as ``(absent)`` in the other.
    """
    if isinstance(one, dict) and isinstance(other, dict):
        found = []
        for name in sorted({*one, *other}):
            inner = f"{field}.{name}" if field else name
            found += differences(one.get(name, _ABSENT), other.get(name, _ABSENT), inner)
        return found
    if isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [line for at, (a, b) in pairs for line in differences(a, b, f"{field}[{at}]")]
    if one is not _ABSENT and other is not _ABSENT and digest(one) == digest(other):
        return []
    return [f"{field}: {_show(one)} -> {_show(other)}"]


class RecordShelf:
    """Records in a folder, one sealed file each, named by their id."""

    def __init__(self, folder: Place) -> None:
        self._folder = folder
        self._saved: set[str] = set()

    def save(self, record: dict[str, Any]) -> int:
        """Store a record if it is new, and return its id as a number of 64 bits."""
        name = record_id(record)
        path = self._folder / f"{name}.json"
        if name not in self._saved and not path.is_file():
            atomic.write_sealed(path, record)
        self._saved.add(name)
        return int(name, 16)

    def forget(self) -> None:
        """Look again for what was saved before: somebody else may have removed it."""
        self._saved.clear()

    def load(self, number: int) -> dict[str, Any] | None:
        """The record with this number; None if its file is lost or damaged."""
        try:
            found = atomic.read_sealed(self._folder / f"{number:016x}.json", once=True)
        except (FileNotFoundError, DamagedError):
            return None
        return found if isinstance(found, dict) else None


def _show(value: Any) -> str:
    text = "(absent)" if value is _ABSENT else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _versions() -> dict[str, str]:
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
