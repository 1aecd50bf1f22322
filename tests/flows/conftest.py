"""A home with one finished micro run in it, and the command line as it is typed."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest
import yaml

from flows.cli import main
from tests.support.micro import micro_recipe, write_prompts
from tests.support.scripted_server import ScriptedServer


@dataclass(frozen=True)
class Finished:
    """A home, and the id of the run in its store."""

    home: Path
    run_id: str


@pytest.fixture(scope="session")
def micro_config(micro_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the smallest recipe with every stage in it."""
    folder = tmp_path_factory.mktemp("recipes")
    recipe = micro_recipe(micro_model, write_prompts(folder))
    path = folder / "micro.yaml"
    path.write_text(yaml.safe_dump(recipe.model_dump(mode="json", exclude_unset=True)), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def finished(micro_config: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Do not change it: it is shared."""
    from solrl_tasks.config.load import load_recipe
    from solrl_tasks.stages.iteration import run_all
    from solrl_tasks.stages.session import open_session

    home = tmp_path_factory.mktemp("home")
    with open_session(home / "store", "done", load_recipe(micro_config)) as session:
        for _ in run_all(session):
            pass
    return Finished(home, "done")


@dataclass(frozen=True)
class Said:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str


@pytest.fixture
def solrl(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """Runs ``solrl`` in this process: ``solrl("runs", "show", "x")``."""

    def run(*arguments: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["solrl", *map(str, arguments)])
        code = 0
        with patch.dict(os.environ):
            try:
                main()
            except SystemExit as ended:
                code = int(ended.code or 0)
        said = capsys.readouterr()
        return Said(code, said.out, said.err)

    return run


@pytest.fixture
def scripted() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    yield server
    server.stop()


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What gives Prefect's server up must not reach other tests."""
    from prefect.settings import temporary_settings

    monkeypatch.setattr("flows.patience._stopped", threading.Event())
    with temporary_settings({"client.max_retries": 2}):
        yield
