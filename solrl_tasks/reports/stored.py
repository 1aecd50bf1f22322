"""A report as a run keeps it: its content as data, so that it can be drawn again, and the pages drawn from it.

``runs/<run id>/report/`` has ``page.json`` (sealed JSON), the pictures that it names by their digest, and what was
drawn from them: ``report.html``, one file that needs nothing else, and ``report.md``, which shows the pictures.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from solrl_tasks.reports import images
from solrl_tasks.reports.encoding import decode_page, encode_page
from solrl_tasks.reports.html import render_html
from solrl_tasks.reports.markdown import render_markdown
from solrl_tasks.reports.page import Page
from solrl_tasks.store import atomic
from solrl_tasks.store.errors import DamagedError, MissingObjectError
from solrl_tasks.store.object_path import Place
from solrl_tasks.store.root import Store, check_name

FORMAT: Final = 1
PAGE: Final = "page.json"
HTML: Final = "report.html"
_PICTURE: Final = re.compile(r"[0-9a-f]{24}\.png")

Curves = Mapping[str, Sequence[tuple[int, float]]]


@dataclass(frozen=True)
class StudyFigures:
    """What a study tells a tracker besides its page: single figures, and curves over an axis of whole numbers."""

    metrics: Mapping[str, float]
    curves: Curves

    def __post_init__(self) -> None:
        numbers = {name: [value] for name, value in self.metrics.items()}
        numbers |= {f"curve {name}": [value for _, value in points] for name, points in self.curves.items()}
        wrong = sorted(name for name, values in numbers.items() if not all(math.isfinite(value) for value in values))
        if wrong:
            raise ValueError(f"not finite: {', '.join(wrong)}; leave out what could not be measured")
        for name, points in self.curves.items():
            steps = [step for step, _ in points]
            if len(set(steps)) < len(steps):
                raise ValueError(f"curve {name} has two values at a step: {steps}")


@dataclass(frozen=True)
class StoredReport:
    """A report of the store; ``figures`` is None where it is that of a run rather than of a study."""

    folder: Place
    page: Page
    figures: StudyFigures | None


def report_folder(store: Store, run_id: str) -> Place:
    """Where the report of a run lies; it may not be there yet."""
    return store.runs / check_name(run_id, "run_id") / "report"


def write_report(
    store: Store,
    run_id: str,
    page: Page,
    figures: StudyFigures | None = None,
    beside: Mapping[str, bytes] = MappingProxyType({}),
) -> Place:
    """Keep a report, and draw it. Killed at any moment it leaves the old one or the new one to be read.

    Args:
        beside: other files for those who read it, by name.

    Returns:
        The HTML file.
    """
    folder = report_folder(store, run_id)
    tree, pictures = encode_page(page)
    content: dict[str, Any] = {"format": FORMAT, "page": tree}
    if figures is not None:
        curves = {name: [[int(step), float(value)] for step, value in figures.curves[name]] for name in figures.curves}
        content |= {"metrics": {name: float(value) for name, value in figures.metrics.items()}, "curves": curves}
    for name, png in pictures.items():
        _write(folder / name, png)
    atomic.write_sealed(folder / PAGE, content)
    for name, data in {**draw(page), **beside}.items():
        _write(folder / name, data)
    _drop_pictures(folder, set(pictures))
    return folder / HTML


def draw(page: Page) -> dict[str, bytes]:
    """A page as the files that people open, by name: HTML, markdown, and the pictures of the markdown."""
    return {HTML: render_html(page).encode("utf-8"), **render_markdown(page)}


def read_report(store: Store, run_id: str) -> StoredReport:
    """The report of a run, as it was written.

    Raises:
        MissingObjectError: the run has none.
        DamagedError: a file of it is damaged, or of another format.
    """
    folder = report_folder(store, run_id)
    try:
        content = atomic.read_sealed(folder / PAGE)
    except FileNotFoundError as error:
        raise MissingObjectError(f"run {run_id!r} has no report in {store.root}") from error
    try:
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']!r}; this version reads {FORMAT}")
        page = decode_page(content["page"], lambda name: _read_picture(folder, name))
        figures = None
        if "metrics" in content:
            curves = {name: [(step, value) for step, value in points] for name, points in content["curves"].items()}
            figures = StudyFigures(content["metrics"], curves)
    except DamagedError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
        raise DamagedError(folder / PAGE, f"it holds no page ({error})") from error
    return StoredReport(folder, page, figures)


def report_files(store: Store, run_id: str) -> dict[str, bytes]:
    """What people open of a run's report, by name; empty where there is none."""
    folder = report_folder(store, run_id)
    # A name that begins with a dot is a file that is being written.
    files = [path for path in folder.glob("*") if path.name != PAGE and not path.name.startswith(".")]
    return {path.name: path.read_bytes() for path in sorted(files) if path.is_file()}


def has_report(store: Store, run_id: str) -> bool:
    """Whether a run keeps a report."""
    return (report_folder(store, run_id) / PAGE).exists()


def _read_picture(folder: Place, name: str) -> bytes:
    if not _PICTURE.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a picture")
    png = (folder / name).read_bytes()
    if images.name(png) != name:
        raise DamagedError(folder / name, "its content does not match its name")
    return png


def _write(path: Place, data: bytes) -> None:
    if not path.is_file() or path.read_bytes() != data:
        atomic.write_bytes(path, data)


def _drop_pictures(folder: Place, used: set[str]) -> None:
    for path in folder.glob("*.png"):
        if _PICTURE.fullmatch(path.name) and path.name not in used:
            atomic.remove_file(path)
