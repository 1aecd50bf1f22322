"""Which words a prompt asks to be written, and how near the words found come: pure text, no pictures."""

import re
import unicodedata
from collections.abc import Sequence
from itertools import permutations
from typing import Final, Literal

from solrl_tasks.config.base import Frozen

DOUBLE: Final = {'"': '"', "“": "”", "„": "“”", "«": "»", "「": "」", "『": "』"}
"""Opening marks that always quote, and the marks that close them."""
SINGLE: Final = {"'": "'\u2019", "\u2018": "\u2019"}
"""Marks that may be apostrophes too: straight and curly ones."""
MOST_REORDERED: Final = 4
_APOSTROPHES: Final = str.maketrans("\u2018\u2019`\u00b4", "''''")


class Lettering(Frozen):
    """How words are compared.

    ``case`` and ``spacing``: what must agree; ignoring the spacing drops every blank, ``single`` counts each run of
    blanks as one. ``punctuation`` that is ignored is everything but letters, digits and blanks. ``surplus``: whether
    words beside the wanted ones count as mistakes. ``single_quotes``: whether 'these' quote as well.
    """

    case: Literal["ignore", "match"] = "ignore"
    spacing: Literal["ignore", "single"] = "ignore"
    punctuation: Literal["match", "ignore"] = "match"
    surplus: Literal["count", "ignore"] = "count"
    single_quotes: bool = False


class UnquotedError(ValueError):
    """A prompt that does not say which words are to be written."""


def quoted(prompt: str, single_quotes: bool = False) -> tuple[str, ...]:
    """The texts between quotation marks, in their order; a mark inside another pair of marks is part of the text.

    Quotation marks are straight and curly double ones, low-high ones, guillemets and corner brackets. With
    ``single_quotes`` a single one opens where no letter or digit stands before it and closes where none follows, so
    that the apostrophe of "don't" is none; and then it may stand unpaired.

    Raises:
        UnquotedError: nothing is quoted, a double mark has no partner, or what is quoted is blank.
    """
    texts, start = [], 0
    while start < len(prompt):
        end = _end_of_quote(prompt, start, single_quotes)
        if end is not None:
            texts.append(prompt[start + 1 : end])
        start = start + 1 if end is None else end + 1
    if not texts:
        hint = "" if single_quotes else " (single quotes count only with the option single_quotes)"
        raise UnquotedError(f"prompt {prompt!r} quotes no text{hint}: put the words to be written into double quotes")
    if any(not text.strip() for text in texts):
        raise UnquotedError(f"prompt {prompt!r} quotes a blank text: put the words to be written into the quotes")
    return tuple(texts)


def _end_of_quote(prompt: str, start: int, single_quotes: bool) -> int | None:
    """Where the quote that opens at ``start`` closes; None if none opens there."""
    mark = prompt[start]
    if mark in DOUBLE:
        ends = [end for end in range(start + 1, len(prompt)) if prompt[end] in DOUBLE[mark]]
        if not ends:
            raise UnquotedError(f"prompt {prompt!r} opens a quote with {mark} that nothing closes: close it")
        return ends[0]
    if not single_quotes or mark not in SINGLE or prompt[start - 1 : start].isalnum():
        return None
    ends = [
        end
        for end in range(start + 2, len(prompt))
        if prompt[end] in SINGLE[mark] and not prompt[end + 1 : end + 2].isalnum()
    ]
    return ends[0] if ends else None


def normalised(text: str, rules: Lettering) -> str:
    """A text as it is compared: Unicode NFKC, apostrophes of one kind, then the rules for case, marks and blanks."""
    text = unicodedata.normalize("NFKC", text.translate(_APOSTROPHES))
    if rules.case == "ignore":
        text = unicodedata.normalize("NFKC", text.casefold())
    if rules.punctuation == "ignore":
        text = "".join(c for c in text if c.isspace() or unicodedata.category(c)[0] in "LMN")
    return re.sub(r"\s+", " " if rules.spacing == "single" else "", text).strip()


def edit_distance(found: str, wanted: str, inside: bool = False) -> int:
    """Fewest insertions, deletions and substitutions of single characters between two texts (Levenshtein, 1966).

    Args:
        inside: compare with the stretch of ``found`` that is nearest to ``wanted``; what lies around it is free. The
            distance is then at most the length of ``wanted``.
    """
    above = [0 if inside else column for column in range(len(found) + 1)]
    for row, letter in enumerate(wanted, start=1):
        line = [row]
        for column, other in enumerate(found, start=1):
            line.append(min(above[column] + 1, line[-1] + 1, above[column - 1] + (letter != other)))
        above = line
    return min(above) if inside else above[-1]


def likeness(found: Sequence[str], wanted: Sequence[str], rules: Lettering) -> float:
    """How near the lines found come to the texts wanted, 1 for equal and 0 for nothing in common.

    ``surplus: count``: 1 - d / m with the edit distance d between all lines in reading order and all wanted texts, and
    m the length of the longer side. Up to four texts may stand in any order, more must stand in that of the prompt.
    ``surplus: ignore``: 1 - d / m with the sum d of each text's distance to the stretch nearest to it anywhere, and m
    the length of all texts.

    Raises:
        UnquotedError: a wanted text has nothing left to compare.
    """
    targets = [normalised(text, rules) for text in wanted]
    if not all(targets):
        raise UnquotedError(f"of the texts {list(wanted)} one has no letter left to compare by these rules: {rules!r}")
    seen = normalised(" ".join(found), rules)
    if rules.surplus == "ignore":
        length = sum(map(len, targets))
        return 1.0 - sum(edit_distance(seen, target, inside=True) for target in targets) / length
    orders = permutations(targets) if len(targets) <= MOST_REORDERED else [targets]
    blank = " " if rules.spacing == "single" else ""
    whole = blank.join(targets)
    distance = min(edit_distance(seen, text) for text in {blank.join(order) for order in orders})
    return 1.0 - distance / max(len(seen), len(whole))
