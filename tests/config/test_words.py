"""A number and its noun agree."""

import ast
import re
from pathlib import Path

import pytest

from solrl_tasks.config.words import are, counted

ROOT = Path(__file__).resolve().parents[2]
NOUNS = re.compile(r" (?:iterations|blocks|runs|pools|prompts|candidates|seeds|objects|forward passes)\b")
"""What commands and reports count most, and what is one as often as not."""
NOT_ONE = {
    "flows/commands/demo.py": {"solrl"},  # a command
    "solrl_tasks/studies/plan.py": {"plan.blocks"},  # where it is one, the sentence is another
    "solrl_tasks/studies/results/pages.py": {"many"},  # a text, such as 4 or 8
    "solrl_tasks/studies/theory_page.py": {"last", "found[1]", "_large(below)"},  # more than are kept, which are 2
}
"""Expressions that are no number, or never one."""


@pytest.mark.parametrize(
    ("number", "noun", "plural", "shown"),
    [
        (0, "block", "", "0 blocks"),
        (1, "block", "", "1 block"),
        (2, "block", "", "2 blocks"),
        (1, "forward pass", "forward passes", "1 forward pass"),
        (11, "forward pass", "forward passes", "11 forward passes"),
    ],
)
def test_the_noun_is_singular_for_one_alone(number, noun, plural, shown):
    assert counted(number, noun, plural) == shown


def test_the_verb_agrees():
    assert [are(number) for number in (0, 1, 2)] == ["are", "is", "are"]


def test_nothing_that_may_be_one_is_counted_by_hand():
    found = []
    for path in sorted([*(ROOT / "flows").rglob("*.py"), *(ROOT / "solrl_tasks" / "studies").rglob("*.py")]):
        place = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.JoinedStr):
                continue
            for value, after in zip(node.values, node.values[1:], strict=False):
                if isinstance(value, ast.FormattedValue) and isinstance(after, ast.Constant):
                    shown = ast.unparse(value.value)
                    if NOUNS.match(str(after.value)) and shown not in NOT_ONE.get(place, ()):
                        found.append(f"{place}:{value.lineno}: {shown}{after.value[:30]}")
    assert found == []
