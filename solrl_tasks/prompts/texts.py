"""Text files with a prompt a line, JSON lines, and comma-separated values."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from solrl_tasks.config.recipe import PromptSource
from solrl_tasks.config.words import counted
from solrl_tasks.prompts.errors import PromptsError
from solrl_tasks.prompts.rows import NESTED, Row


def read_txt(path: Path, source: PromptSource) -> Iterator[Row]:
    """A row for each line that is not blank."""
    for number, line in _lines(path):
        if line.strip():
            yield Row(f"{path}:{number}", {source.column: line})


def read_jsonl(path: Path, source: PromptSource) -> Iterator[Row]:  # noqa: ARG001 (the readers' one form)
    """A row for each line that is not blank; each is a JSON object."""
    for number, line in _lines(path):
        if line.strip():
            yield Row(f"{path}:{number}", _json_object(line, f"{path}:{number}"))


def read_csv(path: Path, source: PromptSource) -> Iterator[Row]:
    """A row for each record below the header; all values are texts, but ``metadata``, which holds JSON objects.

    Raises:
        PromptsError: there is no such column, a name stands twice in the header, or a record has another length.
    """
    reader = csv.reader((f"{line}\n" for _, line in _lines(path)), strict=True)
    try:
        header = next(reader, [])
        _check_header(header, path, source.column)
        before = reader.line_num
        for record in reader:
            where = f"{path}:{before + 1}"
            before = reader.line_num
            if record:
                yield Row(where, _record(header, record, where))
    except csv.Error as error:
        raise PromptsError(f"{path}:{reader.line_num}: not valid CSV ({error})") from error


def _check_header(header: list[str], path: Path, column: str) -> None:
    if not header:
        raise PromptsError(f"prompts file {path} is empty: give a header line and at least one prompt")
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise PromptsError(f"{path}:1: the header names {', '.join(map(repr, twice))} twice: rename one")
    if column not in header:
        raise PromptsError(
            f"{path}:1: there is no column {column!r} in the header, only {', '.join(map(repr, header))}: "
            "name the one that holds the texts as `column`"
        )


def _record(header: list[str], record: list[str], where: str) -> dict[str, Any]:
    if len(record) != len(header):
        raise PromptsError(
            f"{where}: {counted(len(record), 'value')} in a file of {counted(len(header), 'column')}: quote commas in "
            "texts"
        )
    values: dict[str, Any] = dict(zip(header, record, strict=True))
    nested = values.pop(NESTED, "").strip()
    return values | ({NESTED: _json_object(nested, where)} if nested else {})


def _lines(path: Path) -> list[tuple[int, str]]:
    """Lines with their numbers, from 1.

    Raises:
        PromptsError: the file is not there, cannot be read, or is no UTF-8 text.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise PromptsError(f"prompts file {path} does not exist (looked in {path.parent.resolve()})") from error
    except OSError as error:
        raise PromptsError(f"prompts file {path} cannot be read: {error.strerror}") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise PromptsError(
            f"prompts file {path}:{line}: byte {error.start} (0x{data[error.start]:02x}) is not UTF-8: "
            "save the file as UTF-8"
        ) from error
    if "\0" in text:
        raise PromptsError(f"prompts file {path} holds zero bytes, so it is no UTF-8 text: save the file as UTF-8")
    # Not splitlines(): that also breaks lines at characters which may stand inside a prompt.
    return list(enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), start=1))


def _json_object(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
        json.dumps(record, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        raise PromptsError(f"{where}: not valid JSON ({error.msg} at column {error.colno})") from error
    except (ValueError, RecursionError) as error:
        raise PromptsError(f"{where}: {error}") from error
    if not isinstance(record, dict):
        raise PromptsError(f'{where}: must be an object like {{"prompt": "..."}}, found {type(record).__name__}')
    return record
