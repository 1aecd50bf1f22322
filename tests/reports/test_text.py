import time

import pytest

from solrl_tasks.reports.text import dotted, numeric_columns


@pytest.mark.parametrize(
    "cell",
    ["0.12", "-1.5", "\u22121", "0.12 ± 0.03", "1e-5", "12 %", "3.4x", "0.01 to 0.09", "75 % of 24", "1,234.5", ".5",
     "-", "0.04 [-0.02, 0.09]", "0.04 [-0.02, 0.09] (0.13)", "1 [1, 1] (5.7e-17)", "2.5 s", "5 of 8"],
)  # fmt: skip
def test_numbers_are_known(cell):
    assert numeric_columns([("1",), (cell,)]) == (True,)


@pytest.mark.parametrize("cell", ["fp8", "4 steps", "at least 96", "1.2.3", "2026-11-30", "[1]", "0.1 ±", "24 (24 to)"])
def test_words_are_no_numbers(cell):
    assert numeric_columns([("1",), (cell,)]) == (False,)


def test_a_column_of_nothing_is_no_numbers():
    assert numeric_columns([("", "-"), ("", "1")]) == (False, True)


def test_a_cell_made_to_be_slow_is_not():
    began = time.perf_counter()
    numeric_columns([("1" * 5000 + "!",), ("1," * 2000 + "x",), ("1 ± " * 1000,), ("[1] " * 1000,)])
    assert time.perf_counter() - began < 2.0


def test_trees_become_dotted_fields_in_their_order():
    tree = {"b": {"x": 1, "a": None}, "a": [{"name": "n", "on": True}], "list": [1, 2], "none": {}, "text": "", "e": []}
    assert list(dotted(tree)) == [
        ("b.x", "1"), ("b.a", "null"), ("a.0.name", "n"), ("a.0.on", "true"), ("list", "[1, 2]"), ("none", "{}"),
        ("text", "''"), ("e", "[]"),
    ]  # fmt: skip
