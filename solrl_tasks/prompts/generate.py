"""Made prompts: as many different ones as are asked for, the same for the same seed."""

from collections.abc import Callable
from typing import Final

import numpy as np
from pydantic import JsonValue

from solrl_tasks.config.words import counted
from solrl_tasks.prompts import composition, lettering
from solrl_tasks.prompts.errors import PromptsError
from solrl_tasks.sampling.identity import stream

Record = dict[str, JsonValue]
Maker = Callable[[np.random.Generator], Record]

VERSION: Final = 1
"""Raised when the prompts of a seed change."""
PATIENCE: Final = 400
"""Draws in a row that bring nothing new before a kind of prompt counts as exhausted."""
KINDS: Final[dict[str, dict[str, Maker]]] = {"composition": composition.MAKERS, "ocr": lettering.MAKERS}


def generate(kind: str, count: int, seed: int) -> list[Record]:
    """Prompts of a kind, their makers taking turns; a larger count begins with those of a smaller one.

    Args:
        kind: a key of ``KINDS``.

    Returns:
        Records as a .jsonl file of prompts holds them: ``prompt`` is the text, the rest goes to the rewards.

    Raises:
        PromptsError: there are not so many different ones.
    """
    makers = dict(KINDS[kind])
    records: dict[str, Record] = {}
    turn = 0
    while len(records) < count and makers:
        names = list(makers)
        name = names[turn % len(names)]
        turn += 1
        record = _fresh(makers[name], records, stream("generated-prompts", VERSION, kind, seed, turn))
        if record is None:
            del makers[name]
        else:
            records[str(record["prompt"])] = record
    if len(records) < count:
        raise PromptsError(
            f"{counted(count, 'prompt')} of kind {kind} asked for, but only {len(records)} different ones were found"
        )
    return list(records.values())


def _fresh(maker: Maker, known: dict[str, Record], draws: np.random.Generator) -> Record | None:
    for _ in range(PATIENCE):
        record = maker(draws)
        if record["prompt"] not in known:
            return record
    return None
