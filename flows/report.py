"""Reports of runs: made from the store alone, at any time, as often as wanted."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from flows.console import shown_command
from flows.errors import UserError, is_for_people
from flows.publishing import read_summaries
from flows.ranking import ranks_report
from solrl_tasks.reports.evaluation import evaluation_page
from solrl_tasks.reports.page import Page
from solrl_tasks.reports.provenance import joined
from solrl_tasks.reports.run_record import RunRecord
from solrl_tasks.reports.stored import draw, has_report, read_report, write_report
from solrl_tasks.reports.training import RECIPE, training_page
from solrl_tasks.stages.evaluations import evaluated
from solrl_tasks.stages.recorded_recipe import recorded_recipe
from solrl_tasks.store import atomic
from solrl_tasks.store.object_path import Place
from solrl_tasks.store.places import place_of
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import RunView, list_runs, no_such_run
from solrl_tasks.tracking.environments import pool_origins


@dataclass(frozen=True)
class Drawn:
    """A report that was just drawn.

    Attributes:
        html: the page, in the store.
        beside: files that belong to it besides what is drawn, by name.
    """

    page: Page
    html: Place
    beside: dict[str, bytes]


def draw_report(store: Store, run_id: str) -> Drawn:
    """Make the report of a run: of training and evaluations from their summaries, of a study from what it kept.

    Raises:
        MissingObjectError: there is no such run.
        UserError: it has committed nothing yet.
        DamagedError: the run's configuration, or the report that a study keeps, is damaged.
    """
    try:
        view = RunView(store, run_id)
    except ValueError as error:
        raise UserError(str(error)) from error
    if view.recorded() is not None and view.summaries():
        record = run_record(store, view)
        page = evaluation_page(record) if evaluated(view) else training_page(record)
        beside = {RECIPE: _recipe(view.config)}
        return Drawn(page, write_report(store, run_id, page, beside=beside), beside)
    ranks = ranks_report(view)
    if ranks is not None:
        page, figures = ranks
        return Drawn(page, write_report(store, run_id, page, figures), {})
    if has_report(store, run_id):
        kept = read_report(store, run_id)
        return Drawn(kept.page, write_report(store, run_id, kept.page, kept.figures), {})
    if view.recorded() is None:
        raise no_such_run(store, run_id)
    raise UserError(f"run {run_id} has committed nothing yet, so there is nothing to report")


def where_to_read(run_id: str, html: Place | str) -> str:
    """The page as a person can open it: its file, or how to get it out of a bucket, which no browser reads."""
    place = place_of(html) if isinstance(html, str) else html
    if isinstance(place, Path):
        return str(place)
    solrl = shown_command("solrl")
    return f"{place}, in a bucket: `{solrl} report {run_id} --out FOLDER` writes a copy that a browser opens"


def draw_or_note(store: Store, run_id: str, note: Callable[[str], None]) -> Drawn | None:
    """As ``draw_report``, at the end of a run: what goes wrong is told through ``note``, and the run is finished."""
    try:
        return draw_report(store, run_id)
    except Exception as error:  # a report is a view: it can be made again, what was computed cannot
        reason = str(error) if is_for_people(error) else f"{type(error).__name__}: {error}"
        note(f"the report of {run_id} was not drawn: {reason}. The run is whole; `solrl report {run_id}` tries again")
        return None


def run_record(store: Store, view: RunView) -> RunRecord:
    """What a report is made from. Raises DamagedError where the configuration cannot be read."""
    recipe = recorded_recipe(view)
    summaries = read_summaries(view)
    done = bool(evaluated(view)) or summaries[-1].step >= recipe.iterations
    status = "finished" if done else next(info.status for info in list_runs(store) if info.run_id == view.run_id)

    def folder(step: int) -> Path:
        return store.local_folder(view.iteration_dir(step))

    origins = list(pool_origins(store, summaries))
    environment = joined(record for origin in origins for record in origin.records)
    unknown = {origin.key: origin.unknown for origin in origins if origin.unknown}
    return RunRecord(view.run_id, recipe, summaries, status, environment, folder, unknown)


def export_report(drawn: Drawn, folder: Path) -> Path:
    """Write a report into a folder of one's own; returns the page.

    Raises:
        UserError: the name is taken by a file.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: name a folder")
    for name, data in {**draw(drawn.page), **drawn.beside}.items():
        atomic.write_bytes(folder / name, data)
    return folder / drawn.html.name


def _recipe(config: dict[str, Any]) -> bytes:
    return yaml.safe_dump(config, sort_keys=False, allow_unicode=True).encode("utf-8")
