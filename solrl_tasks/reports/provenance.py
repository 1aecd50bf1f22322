"""Where numbers come from, in the words of the store's records."""

from collections.abc import Mapping
from typing import Any, Literal

from solrl_tasks.config.extensions import find_extension
from solrl_tasks.reports.page import Kind, Provenance

UNKNOWN = "unknown"


def engine_kind(name: str, device_class: str) -> Literal["real", "emulated"]:
    """Whether an engine computes in hardware what its name says, on devices of a class such as ``cpu`` or ``sm_90``.

    An engine of a user's own that does not tell devices apart has ``kind`` alone.
    """
    extension = find_extension("engine", name)
    on = getattr(extension, "kind_on", None)
    kind: Literal["real", "emulated"] = extension.kind if on is None else on(device_class)
    return kind


def provenance(record: Mapping[str, Any], engine: str = "", note: str = "", kind: Kind = "measured") -> Provenance:
    """The line of a figure.

    Args:
        record: of the environment, as blocks of the store have it; empty where none is known.
        engine: name of the engine that computed; empty where none is concerned.
        note: what else to know.
    """
    if not engine:
        return Provenance(hardware_name(record), "", None, kind, note)
    where = str(record.get("device_class", UNKNOWN))
    real = engine_kind(engine, where) == "real"
    if engine == "bf16" and where == "cpu":
        note = "; ".join(part for part in ("bf16 of a CPU computes in float32 unless asked otherwise", note) if part)
    return Provenance(hardware_name(record), engine, real, kind, note)


def hardware_name(record: Mapping[str, Any]) -> str:
    """Hardware in words, such as ``NVIDIA H200`` or ``AMD EPYC (CPU, 2 threads)``; empty where nothing is known."""
    name = str(record.get("hardware", ""))
    if not name or record.get("device_class") != "cpu":
        return name
    threads = record.get("threads")
    used = "" if threads is None else f", {threads} thread{'' if threads == 1 else 's'}"
    return f"{name} (CPU{used})"
