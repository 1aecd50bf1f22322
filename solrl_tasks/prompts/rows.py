"""Rows of prompt files as prompts: which of their values is the text, and what goes to the rewards."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from solrl_tasks.config.recipe import PromptSource
from solrl_tasks.prompts.errors import PromptsError, shown
from solrl_tasks.sampling.prompts import Prompt
from solrl_tasks.store import keys

NESTED: Final = "metadata"
"""A value of this name is an object whose entries stand for values of the row."""

# Tabs and line ends are blanks of a text; everything else below the letters could steer a terminal.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Row:
    """One row as it was read: ``where`` names file and line, ``values`` are by column."""

    where: str
    values: dict[str, Any]


def to_prompts(rows: Iterable[Row], source: PromptSource) -> tuple[Prompt, ...]:
    """The prompts of some rows, in order.

    Raises:
        PromptsError: a row has no usable text, or values that are not JSON; or a column that the source names for the
            rewards stands in no row.
    """
    wanted = None if source.metadata is None else set(source.metadata)
    prompts = tuple(_prompts(rows, source.column, wanted))
    lacking = sorted((wanted or set()).difference(*(prompt.metadata.keys() for prompt in prompts)))
    if prompts and lacking:
        raise PromptsError(
            f"{source.source}: no row has {', '.join(lacking)}, which `metadata` names: check the spelling"
        )
    return prompts


def _prompts(rows: Iterable[Row], column: str, wanted: set[str] | None) -> Iterator[Prompt]:
    for row in rows:
        metadata = _flat(row)
        text = _text(metadata.pop(column, None), column, row)
        if wanted is not None:
            metadata = {name: value for name, value in metadata.items() if name in wanted}
        _require_json(metadata, row.where)
        yield Prompt(text, metadata)


def _text(value: Any, column: str, row: Row) -> str:
    if not isinstance(value, str) or not value.strip():
        names = ", ".join(sorted(row.values)) or "nothing"
        found = f"only {names}" if value is None else shown(value) if isinstance(value, str) else repr(value)
        raise PromptsError(f'{row.where}: "{column}" must be a text that is not blank, found {found}')
    text = value.strip()
    bad = _CONTROL.search(text)
    if bad:
        raise PromptsError(
            f"{row.where}: the prompt {shown(text[: bad.start()])} goes on with the control character "
            f"U+{ord(bad[0]):04X} (its character {bad.start() + 1}): remove it"
        )
    return text


def _flat(row: Row) -> dict[str, Any]:
    values = dict(row.values)
    nested = values.pop(NESTED, None)
    if nested is None:
        return values
    if not isinstance(nested, dict):
        raise PromptsError(f'{row.where}: "{NESTED}" must be an object, found {type(nested).__name__}')
    twice = sorted(nested.keys() & values.keys())
    if twice:
        raise PromptsError(f'{row.where}: {", ".join(twice)} stands both beside and inside "{NESTED}": keep one')
    return {**values, **nested}


def _require_json(metadata: dict[str, Any], where: str) -> None:
    try:
        # Finds what parsers let through: NaN, infinities, bytes, dates, halves of surrogate pairs.
        keys.canonical_json(metadata)
        json.dumps(metadata, ensure_ascii=False).encode("utf-8")
    except ValueError as error:
        raise PromptsError(
            f"{where}: {error}: use null, or name the columns that the rewards need in `metadata`"
        ) from error
