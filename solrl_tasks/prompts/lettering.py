"""Prompts that ask for written words, which stand in double quotes."""

from collections.abc import Callable
from typing import Final

import numpy as np
from pydantic import JsonValue

Draws = np.random.Generator
Record = dict[str, JsonValue]

SCENES: Final = {
    "sign": (
        'a wooden sign at a forest path that says "{}"',
        'a shop window at night with a neon sign that reads "{}"',
        'a road sign beside an empty motorway with the words "{}"',
        'a brass plate on an old door, engraved with "{}"',
        'an arrow on a harbour wall, painted with the words "{}"',
    ),
    "print": (
        'the cover of a paperback with the title "{}" in large letters',
        'a concert poster on a brick wall, announcing "{}"',
        'a postage stamp with a lighthouse and the words "{}"',
        'a newspaper on a breakfast table with the headline "{}"',
        'a white coffee mug with "{}" printed on it in plain black letters',
    ),
    "hand": (
        'a chalkboard in a classroom on which is written "{}"',
        'a birthday cake with "{}" written in icing',
        'a yellow sticky note on a monitor saying "{}"',
        'a steamed-up bathroom mirror on which a finger wrote "{}"',
        'a plaster cast on an arm, signed with "{}"',
    ),
    "screen": (
        'a train station display that shows "{}"',
        'a smart watch whose screen shows "{}"',
        'an arcade machine with the words "{}" on its screen',
        'a weather balloon above a field, its banner showing "{}"',
        'a ticket machine that displays "{}" in green letters',
    ),
}
OPENINGS: Final = (
    "Welcome to", "Greetings from", "Beyond", "Return to", "Meet Me at", "Night at", "Closed for", "Thanks to",
    "Last Bus to", "Save", "No Way to", "Made in", "Ask for", "Open", "Lost in", "Free",
)  # fmt: skip
ADJECTIVES: Final = (
    "Quiet", "Amber", "Frozen", "Little", "Northern", "Hidden", "Second", "Golden", "Rusty", "Paper", "Crooked",
    "Early", "Salted", "Electric", "Seventh", "Velvet",
)  # fmt: skip
NOUNS: Final = (
    "Harbour", "Bakery", "Garden", "Museum", "Island", "Orchard", "Engine", "Library", "Summit", "Market", "Lantern",
    "Valley", "Theatre", "Station", "Comet", "River",
)  # fmt: skip
LABELS: Final = ("Gate", "Room", "Platform", "Exit", "Floor", "Bay", "Track", "Desk")


def _maker(scenes: tuple[str, ...]) -> Callable[[Draws], Record]:
    def make(draws: Draws) -> Record:
        text = _words(draws)
        return {"prompt": scenes[int(draws.integers(len(scenes)))].format(text), "tag": "ocr", "text": text}

    return make


def _words(draws: Draws) -> str:
    """One to five words, or a label with a number."""
    form = int(draws.integers(4))
    if form == 0:
        return f"{_pick(draws, LABELS)} {int(draws.integers(1, 100))}"
    name = f"{_pick(draws, ADJECTIVES)} {_pick(draws, NOUNS)}"
    return {1: _pick(draws, NOUNS), 2: name, 3: f"{_pick(draws, OPENINGS)} {name}"}[form]


def _pick(draws: Draws, names: tuple[str, ...]) -> str:
    return names[int(draws.integers(len(names)))]


MAKERS: Final = {name: _maker(scenes) for name, scenes in SCENES.items()}
