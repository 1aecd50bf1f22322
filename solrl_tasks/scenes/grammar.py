"""The prompts about coloured shapes: what can be said, how it is parsed, and what is kept out of pretraining."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (220, 40, 40),
    "green": (40, 165, 65),
    "blue": (45, 85, 225),
    "yellow": (242, 212, 40),
    "purple": (145, 60, 185),
    "orange": (245, 135, 30),
}
SHAPES = ("circle", "square", "triangle", "ring", "cross", "star")
PLURALS = {"circle": "circles", "square": "squares", "triangle": "triangles", "ring": "rings", "cross": "crosses"}
PLURALS["star"] = "stars"
NUMBERS = {"two": 2, "three": 3, "four": 4}
RELATIONS = ("left of", "right of", "above", "below")

# A form is the sentence without its objects. The order is part of the caption numbering of `caption_index`.
FORMS = ("single", "two", "count two", "count three", "count four", *RELATIONS, "mixed")
KINDS = ("single", "two", "count", "position", "mixed")
KIND_WEIGHTS = {"single": 2, "two": 3, "count": 3, "position": 3, "mixed": 1}
ALLOWED = (
    "allowed are 'a red circle', 'a red circle and a blue square', 'three blue circles' (two, three or four), "
    "'a red circle left of a blue square' (also right of, above, below) and 'two red circles and a blue square', "
    f"each optionally followed by 'on black'; colours: {', '.join(COLOURS)}; shapes: {', '.join(SHAPES)}"
)


@dataclass(frozen=True, order=True)
class Thing:
    """One coloured shape, such as a red circle."""

    colour: str
    shape: str

    @property
    def index(self) -> int:
        """Number from 0 to 35: colour major, shape minor."""
        return list(COLOURS).index(self.colour) * len(SHAPES) + SHAPES.index(self.shape)

    @property
    def singular(self) -> str:
        """The thing with its article."""
        return f"{'an' if self.colour[0] in 'aeiou' else 'a'} {self.colour} {self.shape}"

    @property
    def plural(self) -> str:
        """The thing in the plural, without a number."""
        return f"{self.colour} {PLURALS[self.shape]}"


THINGS = tuple(Thing(colour, shape) for colour in COLOURS for shape in SHAPES)
HELDOUT_THINGS = frozenset(
    {
        Thing("red", "ring"),
        Thing("green", "cross"),
        Thing("blue", "triangle"),
        Thing("yellow", "square"),
        Thing("purple", "circle"),
        Thing("orange", "star"),
    }
)
HELDOUT_FORM = "count four"
_TWO_THINGS = frozenset({"two", "mixed", *RELATIONS})


@dataclass(frozen=True)
class Prompt:
    """A parsed prompt: one of `FORMS`, its one or two things, and the background."""

    form: str
    first: Thing
    second: Thing | None = None
    black: bool = False

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise ValueError(f"unknown form {self.form!r}; known: {', '.join(FORMS)}")
        if (self.second is not None) != (self.form in _TWO_THINGS):
            raise ValueError(f"the form {self.form!r} takes {'two things' if self.form in _TWO_THINGS else 'one'}")

    @property
    def kind(self) -> str:
        """The family of the form: one of `KINDS`."""
        if self.form in RELATIONS:
            return "position"
        return "count" if self.form.startswith("count") else self.form

    @property
    def things(self) -> tuple[Thing, ...]:
        """Every object that has to be in the picture, repeated as often as it has to be there."""
        if self.second is None:
            return (self.first,) * (1 if self.form == "single" else NUMBERS[self.form.split()[1]])
        return (self.first,) * (2 if self.form == "mixed" else 1) + (self.second,)

    @property
    def heldout(self) -> bool:
        """Whether the prompt names a colour-shape pair, or the number, that pretraining never shows."""
        return self.form == HELDOUT_FORM or not HELDOUT_THINGS.isdisjoint(self.things)

    @property
    def text(self) -> str:
        """The one spelling of this prompt."""
        return self._sentence() + (" on black" if self.black else "")

    def _sentence(self) -> str:
        if self.second is None:
            number = self.form.removeprefix("count ")
            return self.first.singular if self.form == "single" else f"{number} {self.first.plural}"
        if self.form == "mixed":
            return f"two {self.first.plural} and {self.second.singular}"
        return f"{self.first.singular} {'and' if self.form == 'two' else self.form} {self.second.singular}"


def _pattern() -> re.Pattern[str]:
    colour = "|".join(COLOURS)
    shape = "|".join([*PLURALS.values(), *SHAPES])
    link = "|".join(["and", *RELATIONS])
    return re.compile(
        rf"(?P<number>an?|{'|'.join(NUMBERS)}) (?P<c1>{colour}) (?P<s1>{shape})"
        rf"(?: (?P<link>{link}) an? (?P<c2>{colour}) (?P<s2>{'|'.join(SHAPES)}))?(?P<black> on black)?"
    )


_PATTERN = _pattern()
_SINGULAR = {plural: shape for shape, plural in PLURALS.items()}


def _form(number: str, link: str | None) -> str | None:
    if link is None:
        return f"count {number}" if number in NUMBERS else "single"
    if number in NUMBERS:
        return "mixed" if (number, link) == ("two", "and") else None
    return "two" if link == "and" else link


@lru_cache(maxsize=65536)
def parse(text: str) -> Prompt:
    """Read a prompt; case, surrounding space and a final full stop do not matter.

    Raises ValueError, naming the prompt and what is allowed, for anything that the grammar cannot say.
    """
    plain = " ".join(text.lower().strip().rstrip(".").split())
    match = _PATTERN.fullmatch(plain)
    form = _form(match["number"], match["link"]) if match else None
    if match is None or form is None:
        raise ValueError(f"the scene reward cannot read the prompt {text!r}; {ALLOWED}")
    first = Thing(match["c1"], _SINGULAR.get(match["s1"], match["s1"]))
    second = Thing(match["c2"], match["s2"]) if match["link"] else None
    prompt = Prompt(form, first, second, match["black"] is not None)
    if prompt.text != plain:
        raise ValueError(f"the scene reward cannot read the prompt {text!r}: did you mean {prompt.text!r}? {ALLOWED}")
    return prompt


def words() -> tuple[str, ...]:
    """Every word of the grammar, sorted: the vocabulary of the embedded tokenizers."""
    found = {"a", "an", "and", "on", "black", *COLOURS, *SHAPES, *PLURALS.values(), *NUMBERS}
    return tuple(sorted(found.union(*(relation.split() for relation in RELATIONS))))


@lru_cache(maxsize=1)
def all_prompts() -> tuple[Prompt, ...]:
    """All distinct prompts (15 408), in a fixed order; two named things always differ."""
    return tuple(_enumerate())


def _enumerate() -> Iterator[Prompt]:
    for form, black in itertools.product(FORMS, (False, True)):
        for first in THINGS:
            if form in _TWO_THINGS:
                yield from (Prompt(form, first, second, black) for second in THINGS if second != first)
            else:
                yield Prompt(form, first, None, black)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


@lru_cache(maxsize=2)
def _side(evaluation: bool) -> tuple[Prompt, ...]:
    """The prompts of one side of the split (a quarter is for evaluation), in an order that hashing shuffles.

    Half of those "on black" are left out, so that a third of the rest is on black, as in pretraining.
    """
    marks = ((prompt, _digest("split:" + prompt.text)) for prompt in all_prompts())
    chosen = (p for p, mark in marks if (mark[0] % 4 == 0) == evaluation and not (p.black and mark[1] % 2))
    return tuple(sorted(chosen, key=lambda prompt: _digest(prompt.text)))


def _take(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """`count` prompts with their kinds in the proportions of `KIND_WEIGHTS`, as far as a kind has enough of them."""
    queues = {kind: iter([prompt for prompt in prompts if prompt.kind == kind]) for kind in KINDS}
    # Round by round, so that a few prompts are of many kinds too.
    rounds = range(max(KIND_WEIGHTS.values()))
    cycle = [kind for turn in rounds for kind in KINDS if KIND_WEIGHTS[kind] > turn]
    taken: list[Prompt] = []
    while queues and len(taken) < count:
        for kind in cycle:
            prompt = next(queues[kind], None) if kind in queues else None
            if prompt is None:
                queues.pop(kind, None)
            elif len(taken) < count:
                taken.append(prompt)
    return taken


def _balanced(count: int, evaluation: bool) -> tuple[str, ...]:
    side = _side(evaluation)
    heldout = _take([prompt for prompt in side if prompt.heldout], count // 2)
    known = _take([prompt for prompt in side if not prompt.heldout], count - count // 2)
    if len(heldout) + len(known) < count:
        raise ValueError(f"only {len(heldout) + len(known)} prompts of {count} are to be had on this side of the split")
    return tuple(sorted((prompt.text for prompt in heldout + known), key=_digest))


def training_prompts(count: int = 256) -> tuple[str, ...]:
    """`count` prompts to train a policy on; half name something that pretraining never showed.

    Disjoint from `heldout_prompts` whatever the counts. Raises ValueError where fewer exist.
    """
    return _balanced(count, evaluation=False)


def heldout_prompts(count: int = 64) -> tuple[str, ...]:
    """`count` prompts to evaluate a policy on, never among `training_prompts`; half name something unseen."""
    return _balanced(count, evaluation=True)
