"""What a prompt asks to be in the picture, as GenEval's metadata say it (arXiv:2310.11513)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

COLOURS: Final = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")
RELATIONS: Final = ("left of", "right of", "above", "below")
MOST: Final = 16
"""Objects of one class that are told apart."""
_INCLUDE_KEYS: Final = {"class", "count", "color", "position"}
_EXCLUDE_KEYS: Final = {"class", "count"}


class UnaskedError(ValueError):
    """Metadata that do not say what a picture is to show."""


@dataclass(frozen=True)
class Item:
    """One entry of ``include``: so many objects of a class, of one colour, lying so to another entry's objects.

    ``relation`` is one of ``RELATIONS`` and goes with ``target``, the index of that entry.
    """

    name: str
    count: int = 1
    colour: str | None = None
    relation: str | None = None
    target: int = 0


@dataclass(frozen=True)
class Asked:
    """What is to be there, and of which classes there must be fewer than a number."""

    include: tuple[Item, ...]
    exclude: tuple[tuple[str, int], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Every class that has to be looked for, each once."""
        return tuple(dict.fromkeys([item.name for item in self.include] + [name for name, _ in self.exclude]))

    @property
    def coloured(self) -> frozenset[str]:
        """The classes of which a colour is asked."""
        return frozenset(item.name for item in self.include if item.colour is not None)


def parse_asked(metadata: Mapping[str, JsonValue]) -> Asked:
    """Read ``include`` and ``exclude`` of a prompt's metadata; other keys are left alone.

    Raises:
        UnaskedError: nothing is to be included, or an entry is not as GenEval has it; the message says what is.
    """
    if "include" not in metadata:
        raise UnaskedError(
            'the prompt has no metadata "include": name a prompts file of JSON lines in GenEval\'s format, such as '
            '{"prompt": "a red car", "include": [{"class": "car", "count": 1, "color": "red"}]}'
        )
    entries = _entries(metadata, "include", _INCLUDE_KEYS)
    if not entries:
        raise UnaskedError('metadata "include" is empty: it must name at least one object')
    include = tuple(_item(entry, f"include[{index}]") for index, entry in enumerate(entries))
    for index, item in enumerate(include):
        if item.relation is not None and (item.target == index or not 0 <= item.target < len(include)):
            raise UnaskedError(
                f"include[{index}].position points to entry {item.target}: it must be another one, 0 to "
                f"{len(include) - 1}"
            )
    exclude = [
        (_name(entry, f"exclude[{index}]"), _count(entry, f"exclude[{index}]"))
        for index, entry in enumerate(_entries(metadata, "exclude", _EXCLUDE_KEYS))
    ]
    return Asked(include, tuple(exclude))


def _entries(metadata: Mapping[str, JsonValue], key: str, allowed: set[str]) -> list[dict[str, JsonValue]]:
    value = metadata.get(key, [])
    entries = value if isinstance(value, list) else [None]
    found: list[dict[str, JsonValue]] = []
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise UnaskedError(f'metadata "{key}" must be a list of objects, found {value!r}')
        if not set(entry) <= allowed:
            unknown = ", ".join(sorted(set(entry) - allowed))
            raise UnaskedError(
                f"{key}[{index}] has the unknown key {unknown}: allowed are {', '.join(sorted(allowed))}"
            )
        found.append(entry)
    return found


def _item(entry: dict[str, JsonValue], where: str) -> Item:
    colour, position = entry.get("color"), entry.get("position")
    if colour is not None and colour not in COLOURS:
        raise UnaskedError(f"{where}.color is {colour!r}: colours told apart are {', '.join(COLOURS)}")
    relation: str | None = None
    target = 0
    if position is not None:
        pair = position if isinstance(position, list) and len(position) == 2 else [None, None]
        if pair[0] not in RELATIONS or type(pair[1]) is not int:
            raise UnaskedError(
                f"{where}.position is {position!r}: it must be [RELATION, INDEX], one of {', '.join(RELATIONS)} and "
                "the index of another entry of include"
            )
        relation, target = str(pair[0]), pair[1]
    return Item(_name(entry, where), _count(entry, where), None if colour is None else str(colour), relation, target)


def _name(entry: dict[str, JsonValue], where: str) -> str:
    name = entry.get("class")
    if not isinstance(name, str) or not name.strip():
        raise UnaskedError(f"{where}.class is {name!r}: it must name what is looked for")
    return name.strip()


def _count(entry: dict[str, JsonValue], where: str) -> int:
    count = entry.get("count", 1)
    if type(count) is not int or not 1 <= count <= MOST:
        raise UnaskedError(f"{where}.count is {count!r}: it must be a whole number from 1 to {MOST}")
    return count
