"""The store of a home, opened for reading by the commands that list things."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from flows.errors import UserError
from flows.settings import Settings
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import EVALUATION_PREFIX, RunInfo

if TYPE_CHECKING:
    from solrl_tasks.tracking.mlflow_run import Status

STUDY_PREFIX: Final = "study-"
"""Studies hold their references in runs of the store that commit no iteration; the name tells."""


def study_id(kind: str, config: str, digest: str, most: int = 100) -> str:
    """The run of the store that holds a study: its kind, the name of its recipe file as far as a run can have it, and
    what tells it from others of that file.

    Args:
        most: characters of the file's name at most; an id has 100.
    """
    free = 100 - len(f"{STUDY_PREFIX}{kind}--{digest}")
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(config).stem)[: min(most, free)]
    return f"{STUDY_PREFIX}{kind}-{stem}-{digest}"


def special_kind(run_id: str) -> str:
    """``study`` or ``evaluation`` for runs that train nothing; else an empty text."""
    kinds = {STUDY_PREFIX: "study", EVALUATION_PREFIX: "evaluation"}
    return next((kind for prefix, kind in kinds.items() if run_id.startswith(prefix)), "")


def is_study(store: Store, info: RunInfo) -> bool:
    """Whether a run keeps the report of a study: it then has no iterations, and is shown by that report."""
    from solrl_tasks.reports.stored import has_report

    return info.committed == 0 and has_report(store, info.run_id)


def shown_status(store: Store, info: RunInfo) -> "Status":
    """What MLflow is told of a run's state: a study is finished by its report, an evaluation by what it commits."""
    if info.status == "running":
        return "RUNNING"
    special = bool(special_kind(info.run_id))
    done = info.committed > 0 or is_study(store, info) if special else info.status == "finished"
    return "FINISHED" if done else "KILLED"


def nothing_there(store: Store | None, settings: Settings) -> str:
    """What a plan says where there is no store yet; else empty."""
    if store is not None:
        return ""
    return f"There is no store in {settings.store_root} yet, so that all of it is to be computed."


def open_store(home: Path | None) -> Store:
    """The store of a home.

    Raises:
        UserError: nothing was ever run there.
        StoreError: something else is there, or the store cannot be read.
    """
    settings = Settings.read(home)
    store = Store.find(settings.store_root)
    if store is None:
        other = "by SOLRL_STORE" if settings.store_url else "home with --home or SOLRL_HOME"
        raise UserError(
            f"there is no store in {settings.store_root}: nothing was run there yet. Start with `solrl demo`, or name "
            f"another {other}"
        )
    return store
