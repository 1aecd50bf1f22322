"""A store in a temporary folder, and a small pool in it."""

from pathlib import Path

import pytest

from solrl_tasks.store.root import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")
