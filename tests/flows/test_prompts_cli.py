"""Prompts from the command line."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.flows.conftest import Said

Solrl = Callable[..., Said]


def test_prompts_are_made_and_looked_at(solrl: Solrl, tmp_path: Path):
    out = tmp_path / "made.jsonl"
    said = solrl("prompts", "generate", "composition", "--count", 12, "--seed", 3, "--out", out)
    assert said.code == 0, said.err
    records = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert len(records) == 12
    shown = solrl("prompts", "show", out)
    assert "12 prompts\n" in shown.out
    assert records[0]["prompt"] in shown.out and "with include, tag" in shown.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("generate", "ocr", "--count", "3", "--out", "{tmp}/p.txt"), "a file that ends in .jsonl"),
        (("generate", "ocr", "--count", "3", "--out", "{tmp}/there.jsonl"), "is there already"),
        (("show", "{tmp}/nowhere.csv"), "does not exist"),
    ],
)
def test_mistakes_are_told(solrl: Solrl, tmp_path: Path, arguments: tuple[str, ...], words: str):
    (tmp_path / "there.jsonl").write_text("mine")
    said = solrl("prompts", *(argument.format(tmp=tmp_path) for argument in arguments))
    assert said.code == 1
    assert words in said.err and "Traceback" not in said.err
    assert (tmp_path / "there.jsonl").read_text() == "mine"
