"""What a run spent, written down as it is spent."""

import json
import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from solrl_tasks.store.atomic import name_place
from solrl_tasks.store.keys import digest, sha256_hex
from solrl_tasks.store.object_path import ObjectPath, Place

logger = logging.getLogger(__name__)
_CHECK: Final = "check"
_CHECK_LENGTH: Final = 16
_TAIL_BYTES: Final = 64
"""Of what was summed up, to know the same file again."""


class _Sums:
    """Seconds by stage, of all entries and of each iteration."""

    def __init__(self) -> None:
        self._all: dict[str, float] = {}
        self._each: dict[Any, dict[str, float]] = {}

    def add(self, entry: dict[str, Any]) -> None:
        for sums in (self._all, self._each.setdefault(entry.get("iteration"), {})):
            sums[entry["stage"]] = sums.get(entry["stage"], 0.0) + float(entry["seconds"])

    def of(self, iteration: int | None, more: Iterable[dict[str, Any]]) -> dict[str, float]:
        """The sums, with further entries that are not kept."""
        sums = dict(self._all if iteration is None else self._each.get(iteration, {}))
        for entry in more:
            if iteration is None or entry.get("iteration") == iteration:
                sums[entry["stage"]] = sums.get(entry["stage"], 0.0) + float(entry["seconds"])
        return dict(sorted(sums.items()))


class Journal:
    """A file of JSON lines that grows at its end and survives a kill at any moment.

    Every line carries a check of its own. A line that a kill tore, or that is damaged, does not count, and a
    warning says so.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._summed = _Sums()
        self._known, self._line, self._tail = 0, 1, b""

    def append(self, entry: dict[str, Any]) -> None:
        """Add an entry and bring it to the disk.

        Args:
            entry: JSON with ``stage`` (a name) and ``seconds`` (device seconds, at least 0), and with
                ``iteration`` and more as wanted.

        Raises:
            ValueError: one of the two is not there, or the entry is not JSON.
        """
        line = _line(entry)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            # After a torn line the next one must begin on its own.
            start = "" if _ends_whole(handle) else "\n"
            os.write(handle, start.encode() + line)
            os.fsync(handle)
        except OSError as error:
            name_place(error, self.path)
            raise
        finally:
            os.close(handle)

    def entries(self) -> list[dict[str, Any]]:
        """All whole entries, in order."""
        return list(self._parsed(self._bytes(0), 1))

    def totals(self, iteration: int | None = None) -> dict[str, float]:
        """Seconds by stage, of all entries or of those with this ``iteration``."""
        # A run of many iterations asks in each of them: what was summed up before is not read again.
        data = self._bytes(self._known - len(self._tail))
        if not data.startswith(self._tail):
            self._summed, self._known, self._line, self._tail = _Sums(), 0, 1, b""
            data = self._bytes(0)
        whole, newline, rest = data[len(self._tail) :].rpartition(b"\n")
        for entry in self._parsed(whole, self._line):
            self._summed.add(entry)
        self._known += len(whole + newline)
        self._line += (whole + newline).count(b"\n")
        self._tail = data[: len(data) - len(rest)][-_TAIL_BYTES:]
        return self._summed.of(iteration, self._parsed(rest, self._line))

    def shares(self, iteration: int) -> tuple[dict[str, float], dict[str, float]]:
        """``totals`` of an iteration, and of all."""
        return self.totals(iteration), self.totals()

    def _bytes(self, start: int) -> bytes:
        try:
            with self.path.open("rb") as file:
                file.seek(start)
                return file.read()
        except FileNotFoundError:
            return b""

    def _parsed(self, data: bytes, first: int) -> Iterator[dict[str, Any]]:
        for number, line in enumerate(data.split(b"\n"), start=first):
            entry = _parse(line)
            if entry is not None:
                yield entry
            elif line:
                logger.warning("%s: line %d is torn or damaged and does not count", self.path, number)


class ObjectJournal(Journal):
    """A journal in a bucket: an object for every entry, in a folder.

    Names are in order of time. An entry that is sent twice, because the answer to the first was lost, has one name.
    """

    def __init__(self, folder: ObjectPath) -> None:
        self._folder = folder
        self._one = threading.Lock()
        self._last = 0

    def append(self, entry: dict[str, Any]) -> None:
        """Add an entry. Raises as ``Journal.append``."""
        line = _line(entry)
        with self._one:
            self._last = max(self._last + 1, time.time_ns())
            name = f"{self._last:020d}-{sha256_hex(line)[:_CHECK_LENGTH]}.json"
        place = self._folder / name
        place.bucket.create(place.key, line)

    def entries(self) -> list[dict[str, Any]]:
        """All whole entries, in order."""
        listed = self._folder.entries()
        bodies = self._folder.bucket.get_many(listed)
        found = []
        for item in listed:
            entry = _parse(bodies.get(item.key, b"").rstrip(b"\n"))
            if entry is None:
                logger.warning("%s/%s is damaged and does not count", self._folder, item.key)
            else:
                found.append(entry)
        return found

    def totals(self, iteration: int | None = None) -> dict[str, float]:
        """See ``Journal.totals``; the bucket keeps what was read before."""
        return _Sums().of(iteration, self.entries())

    def shares(self, iteration: int) -> tuple[dict[str, float], dict[str, float]]:
        """See ``Journal.shares``; one listing serves both."""
        entries = self.entries()
        return _Sums().of(iteration, entries), _Sums().of(None, entries)


def open_journal(path: Place) -> Journal:
    """The journal at a place; in a bucket the name of the file is that of a folder."""
    return ObjectJournal(path) if isinstance(path, ObjectPath) else Journal(path)


def _line(entry: dict[str, Any]) -> bytes:
    seconds = entry.get("seconds")
    if not isinstance(entry.get("stage"), str) or not isinstance(seconds, int | float) or seconds < 0:
        raise ValueError(f"a journal entry needs a stage and its seconds, found {entry}")
    return (json.dumps({**entry, _CHECK: digest(entry)[:_CHECK_LENGTH]}, sort_keys=True) + "\n").encode()


def _ends_whole(handle: int) -> bool:
    size = os.fstat(handle).st_size
    return size == 0 or os.pread(handle, 1, size - 1) == b"\n"


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line.decode("utf-8"))
        check = entry.pop(_CHECK)
        whole = digest(entry)[:_CHECK_LENGTH] == check and isinstance(entry["stage"], str)
    except (ValueError, TypeError, AttributeError, KeyError):
        return None
    return entry if whole else None
