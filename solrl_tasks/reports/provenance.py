"""Where numbers come from, in the words of the store's records."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal

from solrl_tasks.config.extensions import find_extension
from solrl_tasks.config.words import counted
from solrl_tasks.reports.page import Kind, Provenance

UNKNOWN = "unknown"
OTHERS: Final = "others"
"""Field of a joined record: the other environments that blocks come from."""


def joined(records: Iterable[Mapping[str, Any] | None]) -> dict[str, Any]:
    """One record for blocks of several environments: the first, and below it the others that differ from all before.

    Threads alone make no difference to a reader. Records that are lost are left out; empty where all are.
    """
    found: list[dict[str, Any]] = []
    seen: list[dict[str, Any]] = []
    for record in (one for given in records if given for one in _each(given)):
        shown = {name: value for name, value in record.items() if name != "threads"}
        if shown not in seen:
            seen.append(shown)
            found.append(record)
    return {**found[0], **({OTHERS: found[1:]} if found[1:] else {})} if found else {}


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
        record: of the environment, as blocks of the store have it, or ``joined``; empty where none is known.
        engine: name of the engine that computed; empty where none is concerned.
        note: what else to know.
    """
    note = "; ".join(part for part in (note, _mixed_libraries(record)) if part)
    if not engine:
        return Provenance(hardware_name(record), "", None, kind, note)
    classes = {str(one.get("device_class", UNKNOWN)) for one in _each(record)}
    real = all(engine_kind(engine, where) == "real" for where in classes)
    if engine == "bf16" and "cpu" in classes:
        note = "; ".join(part for part in ("bf16 of a CPU computes in float32 unless asked otherwise", note) if part)
    return Provenance(hardware_name(record), engine, real, kind, note)


def hardware_name(record: Mapping[str, Any]) -> str:
    """Hardware in words, such as ``NVIDIA H200`` or ``AMD EPYC (CPU, 2 threads)``; empty where nothing is known.

    Of a joined record all that is different is named.
    """
    return " and ".join(dict.fromkeys(name for one in _each(record) if (name := _name_of(one))))


def _each(record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The records that one was joined from."""
    yield {name: value for name, value in record.items() if name != OTHERS}
    yield from record.get(OTHERS, ())


def _mixed_libraries(record: Mapping[str, Any]) -> str:
    each = [dict(one.get("libraries", {})) for one in _each(record)]
    names = sorted({name for libraries in each for name in libraries})
    versions = {name: list(dict.fromkeys(str(one.get(name, "absent")) for one in each)) for name in names}
    mixed = [f"{name} {' and '.join(found)}" for name, found in versions.items() if len(found) > 1]
    return f"mixed: {', '.join(mixed)}" if mixed else ""


def _name_of(record: Mapping[str, Any]) -> str:
    name = str(record.get("hardware", ""))
    if not name or record.get("device_class") != "cpu":
        return name
    threads = record.get("threads")
    used = "" if threads is None else f", {counted(threads, 'thread')}"
    return f"{name} (CPU{used})"
