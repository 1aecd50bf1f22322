"""The store of a home, opened for reading by the commands that list things."""

from pathlib import Path
from typing import Final

from flows.errors import UserError
from flows.settings import Settings
from solrl_tasks.store.root import Store

STUDY_PREFIX: Final = "study-"
"""Studies hold their references in runs of the store that commit no iteration; the name tells."""


def open_store(home: Path | None) -> Store:
    """The store of a home.

    Raises:
        UserError: nothing was ever run there.
    """
    root = Settings.read(home).store_root
    if not (root / "store.json").exists():
        raise UserError(
            f"there is no store in {root}: nothing was run there yet. Start with `solrl demo`, or name another "
            "home with --home or SOLRL_HOME"
        )
    return Store(root)
