"""A reward added to a pool from the command line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.flows.conftest import Finished, Said

Solrl = Callable[..., Said]
DARKNESS = "tests.support.rewards:darkness"


@pytest.fixture
def home(finished: Finished, tmp_path: Path) -> Path:
    """A home of the test's own."""
    shutil.copytree(finished.home, tmp_path / "home")
    return tmp_path / "home"


def explored(solrl: Solrl, home: Path) -> str:
    return next(line for line in solrl("pools", "--home", home).out.splitlines() if "nvfp4" in line).split()[0]


def test_a_reward_is_added_and_listed(solrl: Solrl, home: Path):
    key = explored(solrl, home)
    said = solrl("pools", "rescore", key, "--reward", DARKNESS, "--home", home)
    assert said.code == 0, said.err
    assert f"4 blocks of pool {key} scored" in said.out and "nothing was sampled" in said.out
    again = solrl("pools", "rescore", key, "--reward", DARKNESS, "--home", home)
    assert "0 blocks of pool" in again.out and "4 were there before" in again.out
    labelled = solrl("pools", "rescore", key, "--reward", DARKNESS, "--label", "dark", "--home", home)
    assert labelled.code == 0, labelled.err
    shown = json.loads(solrl("pools", "show", key, "--json", "--home", home).out)
    assert any(name.startswith(f"{DARKNESS}@") for name in shown["filled"])
    assert any(name.startswith("dark@") for name in shown["filled"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--reward", "colourfullness"), "unknown reward 'colourfullness'"),
        (("--reward", "colourfulness", "--options", "{"), "which is not JSON"),
        (("--reward", "colourfulness", "--options", "[1]"), "give an object"),
        (("--reward", "colourfulness", "--options", '{"x": 1}'), "takes no options"),
    ],
)
def test_mistakes_are_told(solrl: Solrl, finished: Finished, arguments: tuple[str, ...], words: str):
    key = explored(solrl, finished.home)
    said = solrl("pools", "rescore", key, *arguments, "--home", finished.home)
    assert said.code == 1
    assert words in said.err and "Traceback" not in said.err
