"""The results as a page of tables and figures, and as parts of a page of the documentation."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from solrl_tasks.config.words import counted
from solrl_tasks.reports import images
from solrl_tasks.reports.markdown import render_linked
from solrl_tasks.reports.page import Commands, Page, Section, Settings
from solrl_tasks.studies.results.findings import Results
from solrl_tasks.studies.results.published import PAPER
from solrl_tasks.studies.results.races import budget_blocks, race_blocks
from solrl_tasks.studies.results.tables import (
    ablation_blocks,
    arm_blocks,
    direct_blocks,
    parity_blocks,
    rank_blocks,
    time_blocks,
)

PARTS: Final = (
    "summary",
    "arms",
    "steps",
    "candidates",
    "parity",
    "direct",
    "time-to-reward",
    "budgets",
    "ranks",
    "times",
)
"""Names of the parts, in order: of sections, and between the marks of a page of the documentation."""
PICTURES: Final = "images/results-{}.png"
"""Where pictures lie, from the page of the documentation."""


class MarksError(ValueError):
    """A page of the documentation lacks the marks of a part."""


def make_page(found: Results, pictures: Mapping[str, bytes]) -> Page:
    """Everything on one page."""
    sections = sections_of(found, pictures)
    last = Section("Settings", (Commands((found.command,)), Settings(found.recipe)))
    return Page("Results of the embedded model", _summary(found), (*sections.values(), last))


def sections_of(found: Results, pictures: Mapping[str, bytes]) -> dict[str, Section]:
    """The sections by their parts' names; one that there is nothing of is left out."""
    made = {
        "arms": ("Arms", arm_blocks(found, pictures)),
        "steps": ("Explore steps", ablation_blocks(found, found.steps, "steps", "explore steps", pictures)),
        "candidates": (
            "Candidates",
            ablation_blocks(found, found.candidates_ablation, "candidates", "candidates", pictures),
        ),
        "parity": ("Parity with precise scaling", parity_blocks(found)),
        "direct": ("Training on low-precision samples", direct_blocks(found, pictures)),
        "time-to-reward": ("Time to reward", race_blocks(found, pictures)),
        "budgets": ("Reward at equal cost", budget_blocks(found)),
        "ranks": ("Ranks", rank_blocks(found)),
        "times": ("Time of full-size models", time_blocks(found)),
    }
    return {part: Section(title, tuple(blocks)) for part, (title, blocks) in made.items() if blocks}


def fill_docs(path: Path, found: Results, pictures: Mapping[str, bytes]) -> None:
    """Put the results between the marks of a page of the documentation, and its pictures beside it.

    A part that there is nothing of keeps what it has. Text outside of the marks is left alone.

    Raises:
        MarksError: the page is not there, or lacks the marks of a part; nothing is written.
    """
    text = read_docs(path)
    names = {images.name(png): PICTURES.format(name) for name, png in pictures.items()}
    parts = {"summary": _summary(found)}
    for part, section in sections_of(found, pictures).items():
        linked = render_linked(Page("-", "", (section,)), names.__getitem__)
        parts[part] = linked.split(f"## {section.title}", 1)[1].strip()
    for part, body in parts.items():
        begin, end = marks(part)
        before, rest = text.split(begin)
        text = f"{before}{begin}\n\n{body}\n\n{end}{rest.split(end)[1]}"
    for name, png in pictures.items():
        picture = path.parent / PICTURES.format(name)
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.write_bytes(png)
    path.write_text(text, encoding="utf-8")


def read_docs(path: Path) -> str:
    """A page of the documentation that has the marks of all parts.

    Raises:
        MarksError: it has not, or is not there.
    """
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise MarksError(f"{path} cannot be read: {error.strerror}") from error
    for part in PARTS:
        begin, end = marks(part)
        if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
            raise MarksError(f"{path}: a line {begin!r} and below it a line {end!r} are needed, each once")
    return text


def marks(part: str) -> tuple[str, str]:
    """The lines that a part stands between."""
    return f"<!-- results: {part} -->", f"<!-- end of results: {part} -->"


def _summary(found: Results) -> str:
    counts = {kind: sum(claim.agreement == kind for claim in found.claims) for kind in _KINDS}
    told = ", ".join(f"{count} {_KINDS[kind]}" for kind, count in counts.items() if count)
    seeds = sorted({len(arm.seeds) for arm in found.arms})
    many = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"{seeds[0]}"
    return (
        f"Embedded model, reward `{found.reward}`, {counted(found.iterations, 'iteration')}, "
        f"{many} training seeds an arm, "
        f"{counted(found.candidates, 'candidate')} of which {found.keep} are kept, held-out reward over "
        f"{counted(found.prompts, 'prompt')} x "
        f"{counted(found.prompt_seeds, 'seed')}; on {', '.join(found.hardware) or 'hardware that was not recorded'}. "
        f"Of {len(found.claims)} published statements of {PAPER}: {told or 'none could be compared'}."
    )


_KINDS: Final = {
    "agrees": "hold here",
    "agrees in direction": "hold here in direction",
    "not resolved": "are not resolved",
    "disagrees": "do not hold here",
}
