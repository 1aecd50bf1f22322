"""Micro runs of one store, for tests of stages and of what is built on them."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from solrl_tasks.stages.session import Session, open_session
from tests.support.micro import micro_recipe, write_prompts


@pytest.fixture
def recipe_of(micro_model: Path, tmp_path: Path) -> Callable[..., Any]:
    """Makes micro recipes over one prompts file."""
    prompts = write_prompts(tmp_path)
    return lambda **overrides: micro_recipe(micro_model, prompts, **overrides)


@pytest.fixture
def opened(tmp_path: Path, recipe_of: Callable[..., Any]) -> Callable[..., AbstractContextManager[Session]]:
    """Opens a micro run in one store: ``opened("run", explore__steps=4)``."""

    def open_run(run_id: str, **overrides: Any) -> AbstractContextManager[Session]:
        return open_session(tmp_path / "store", run_id, recipe_of(**overrides))

    return open_run
