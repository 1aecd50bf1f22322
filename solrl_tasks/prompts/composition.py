"""Prompts of things that are counted, coloured and placed, with what must be seen written beside them.

The records have the form of GenEval (arXiv 2310.11513): ``include`` lists classes with the number, colour and place
that they must have, ``exclude`` what must not be there. A place is a relation and the entry of ``include`` that it is
to. The classes are the 80 of COCO (arXiv 1405.0312), the colours eleven basic ones without grey.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
from pydantic import JsonValue

Draws = np.random.Generator
Record = dict[str, JsonValue]

COLOURS: Final = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")
RELATIONS: Final = ("left of", "right of", "above", "below")
NUMBERS: Final = {2: "two", 3: "three", 4: "four"}
CLASS_NAMES: Final = (
    "airplane", "apple", "backpack", "banana", "baseball bat", "baseball glove", "bear", "bed", "bench", "bicycle",
    "bird", "boat", "book", "bottle", "bowl", "broccoli", "bus", "cake", "car", "carrot", "cat", "cell phone",
    "chair", "clock", "computer keyboard", "computer mouse", "couch", "cow", "cup", "dining table", "dog", "donut",
    "elephant", "fire hydrant", "fork", "frisbee", "giraffe", "hair drier", "handbag", "horse", "hot dog", "kite",
    "knife", "laptop", "microwave", "motorcycle", "orange", "oven", "parking meter", "person", "pizza",
    "potted plant", "refrigerator", "sandwich", "scissors", "sheep", "sink", "skateboard", "skis", "snowboard",
    "spoon", "sports ball", "stop sign", "suitcase", "surfboard", "teddy bear", "tennis racket", "tie", "toaster",
    "toilet", "toothbrush", "traffic light", "train", "truck", "tv", "tv remote", "umbrella", "vase", "wine glass",
    "zebra",
)  # fmt: skip
PAIRS: Final = ("scissors", "skis")
"""Said as a pair."""
NO_COLOUR: Final = ("orange", "person")
"""One is a colour itself; the other has clothes."""
PLURALS: Final = {
    "computer mouse": "computer mice",
    "knife": "knives",
    "person": "people",
    "scissors": "pairs of scissors",
    "sheep": "sheep",
    "skis": "pairs of skis",
    "broccoli": "broccoli heads",
}


def single_object(draws: Draws) -> Record:
    """One thing."""
    thing = _pick(draws, CLASS_NAMES)
    return _record("single_object", _one(thing), [_entry(thing)])


def two_object(draws: Draws) -> Record:
    """Two different things."""
    first, second = _two(draws, CLASS_NAMES)
    return _record("two_object", f"{_one(first)} and {_one(second)}", [_entry(first), _entry(second)])


def counting(draws: Draws) -> Record:
    """Two to four of a thing, and not more."""
    thing, number = _pick(draws, CLASS_NAMES), int(draws.integers(2, 5))
    record = _record("counting", f"{NUMBERS[number]} {_plural(thing)}", [_entry(thing, number)])
    return record | {"exclude": [_entry(thing, number + 1)]}


def colors(draws: Draws) -> Record:
    """One thing in one colour."""
    thing, colour = _pick(draws, _coloured()), _pick(draws, COLOURS)
    return _record("colors", _one(thing, colour), [_entry(thing, colour=colour)])


def position(draws: Draws) -> Record:
    """One thing beside another."""
    (first, second), relation = _two(draws, CLASS_NAMES), _pick(draws, RELATIONS)
    placed = _entry(second) | {"position": [relation, 0]}
    return _record("position", f"{_one(second)} {relation} {_one(first)}", [_entry(first), placed])


def color_attr(draws: Draws) -> Record:
    """Two different things, each in a colour of its own."""
    things, colours = _two(draws, _coloured()), _two(draws, COLOURS)
    said = " and ".join(_one(thing, colour) for thing, colour in zip(things, colours, strict=True))
    entries = [_entry(thing, colour=colour) for thing, colour in zip(things, colours, strict=True)]
    return _record("color_attr", said, entries)


MAKERS: Final[dict[str, Callable[[Draws], Record]]] = {
    "single_object": single_object,
    "two_object": two_object,
    "counting": counting,
    "colors": colors,
    "position": position,
    "color_attr": color_attr,
}


def _record(tag: str, said: str, include: list[dict[str, JsonValue]]) -> Record:
    return {"prompt": f"a photo of {said}", "tag": tag, "include": list(include)}


def _entry(thing: str, count: int = 1, colour: str | None = None) -> dict[str, JsonValue]:
    entry: dict[str, JsonValue] = {"class": thing, "count": count}
    return entry | ({"color": colour} if colour else {})


def _one(thing: str, colour: str = "") -> str:
    said = f"{colour} {thing}" if colour else thing
    if thing in PAIRS:
        return f"a pair of {said}"
    return f"{'an' if said[0] in 'aeiou' else 'a'} {said}"


def _plural(thing: str) -> str:
    if thing in PLURALS:
        return PLURALS[thing]
    return f"{thing}es" if thing.endswith(("s", "sh", "ch", "x")) else f"{thing}s"


def _coloured() -> tuple[str, ...]:
    return tuple(name for name in CLASS_NAMES if name not in NO_COLOUR)


def _pick(draws: Draws, names: tuple[str, ...]) -> str:
    return names[int(draws.integers(len(names)))]


def _two(draws: Draws, names: tuple[str, ...]) -> tuple[str, str]:
    first, second = draws.choice(len(names), size=2, replace=False)
    return names[int(first)], names[int(second)]
