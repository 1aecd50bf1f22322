"""How much of a speed-up is compiling, fewer steps, precision and overlap: from reports of ``solrl bench rollout``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from solrl_tasks.analysis.cost_split import Chain, Link, Milestone, make_chain
from solrl_tasks.bench.arms import FULL, PIPELINE, PRECISE, TWO_STAGE, parse_arm
from solrl_tasks.bench.reports.file import Report
from solrl_tasks.bench.reports.rollout import Arm, RolloutReport
from solrl_tasks.bench.reports.update import UpdateReport
from solrl_tasks.config.words import counted
from solrl_tasks.reports.page import Block, Page, Provenance, Section, Table, Text
from solrl_tasks.stages.recorded import StudyError

COMPILED: Final = f"{PRECISE}{FULL}"
STEPS: Final = f"{PRECISE}{TWO_STAGE}"
COMPILING: Final = "compiled engine, LoRA merged, decoding in batches"
FEWER: Final = "fewer steps: explore, then regenerate the kept"
OVERLAP: Final = "decoding and scoring beside the next chunk"
ORDER: Final = (
    "A factor is what its cause adds to those above it: the same causes in another order have other factors and the "
    "same product. Seconds without overlap are those of all parts, one after the other."
)
PARTS: Final = ("text", "sync", "denoise_explore", "denoise_regenerate", "decode", "score", "overlap")


@dataclass(frozen=True)
class CostSplit:
    """The chain of one explorer of one report.

    Attributes:
        explorer: engine of the last states; the precise one where no other was measured.
        real: whether it computes in hardware what its name says.
        chain: of the rollout of one prompt.
        whole: the same with one prompt's part of the update behind it; None without a report of the update.
        update_seconds: that part.
        notes: what the reader must know.
    """

    report: RolloutReport
    explorer: str
    real: bool
    chain: Chain
    whole: Chain | None
    update_seconds: float | None
    notes: tuple[str, ...]


def split_costs(reports: Sequence[Report]) -> list[CostSplit]:
    """The chains of all rollout reports; an update report of the same model adds chains of rollout and update.

    Raises:
        StudyError: there is no rollout report, or none has two arms to compare.
    """
    rollouts = [report for report in reports if isinstance(report, RolloutReport)]
    updates = [report for report in reports if isinstance(report, UpdateReport)]
    if not rollouts:
        raise StudyError(
            "no report of a rollout among the files: make one with `solrl bench rollout --json FILE`, arms "
            f"{PIPELINE}, {COMPILED}, {STEPS} and ENGINE{TWO_STAGE}"
        )
    return [
        _split(report, engine, _update_of(report, updates)) for report in rollouts for engine in explorers_of(report)
    ]


def explorers_of(report: RolloutReport) -> list[str]:
    """Engines that explored in two stages, other than the precise one; that alone where there is no other."""
    plans = [parse_arm(arm.name) for arm in report.arms if arm.seconds and arm.name != PIPELINE]
    others = [plan.engine for plan in plans if plan.two_stage and plan.engine != PRECISE]
    return others or [PRECISE]


def _split(report: RolloutReport, engine: str, update: UpdateReport | None) -> CostSplit:
    milestones = milestones_of(report, engine)
    seconds = None if update is None else report.keep * update.row_seconds * update.rows / update.samples
    try:
        chain = make_chain(milestones)
    except ValueError as error:
        raise StudyError(f"report of {report.model.source} ({report.environment.started}): {error}") from error
    return CostSplit(
        report=report,
        explorer=engine,
        real=all(s.kind == "real" for s in report.samplings.values() if s.engine == engine),
        chain=chain,
        whole=None if seconds is None else make_chain([_later(state, seconds) for state in milestones]),
        update_seconds=seconds,
        notes=tuple(_notes(report, engine, chain, update)),
    )


def milestones_of(report: RolloutReport, engine: str) -> list[Milestone]:
    """The states from the plain pipeline to the explorer with overlap, in seconds of a prompt's rollout."""
    last = report.arm(f"{engine}{TWO_STAGE}")
    states = [
        Milestone(PIPELINE, "", _seconds(report.arm(PIPELINE), overlapping=True)),
        Milestone(f"{COMPILED}, no overlap", COMPILING, _seconds(report.arm(COMPILED))),
        Milestone(f"{STEPS}, no overlap", FEWER, _seconds(report.arm(STEPS))),
    ]
    if engine != PRECISE:
        states.append(Milestone(f"{engine}{TWO_STAGE}, no overlap", f"{engine} explores", _seconds(last)))
    states.append(Milestone(f"{engine}{TWO_STAGE}", OVERLAP, _seconds(last, overlapping=True)))
    return states


def split_page(splits: Sequence[CostSplit]) -> Page:
    """The chains as a page."""
    sections = [
        Section(f"{split.report.model.source}, {split.explorer}", tuple(split_blocks(split))) for split in splits
    ]
    return Page("What the speed-up is made of", "\n\n".join(map(_sentence, splits)), tuple(sections))


def split_blocks(split: CostSplit) -> list[Block]:
    """A table of factors for the rollout, one with the update, one of parts, and the notes."""
    report = split.report
    source = Provenance(
        hardware=report.environment.hardware,
        engine=split.explorer,
        real=split.real,
        kind="measured",
        note=(
            f"{counted(report.candidates, 'candidate')}, {report.keep} kept, {report.explore_steps} and "
            f"{counted(report.full_steps, 'step')}, {report.model.resolution} pixels; one prompt's rollout, scaled "
            "from timed chunks"
        ),
    )
    blocks: list[Block] = [_table("Factors of a prompt's rollout", split.chain, source)]
    if split.whole is not None:
        caption = f"Factors of rollout and update ({split.update_seconds:.2f} s of a prompt)"
        blocks.append(_table(caption, split.whole, source))
    blocks.append(_parts(report, source))
    return [*blocks, Text("\n\n".join([ORDER, *split.notes]))]


def show_factor(factor: float) -> str:
    """How many times faster."""
    return f"{factor:.2f}"


def _table(caption: str, chain: Chain, source: Provenance) -> Table:
    rows = [
        (_causes(link), link.before, link.after, show_factor(link.factor), f"{share:.0%}" if share == share else "")
        for link, share in zip(chain.links, chain.shares(), strict=True)
    ]
    rows.append(("product", chain.links[0].before, chain.links[-1].after, show_factor(chain.total), ""))
    columns = ("cause", "from", "to", "times faster", "share of the logarithm")
    return Table(caption, columns, tuple(rows), source)


def _parts(report: RolloutReport, source: Provenance) -> Table:
    rows = []
    for arm in report.arms:
        if arm.seconds and arm.split:
            parts = [f"{getattr(arm.split, part):.2f}" for part in PARTS]
            rows.append((arm.name, *parts, f"{arm.seconds:.2f}"))
    columns = ("arm", *(part.replace("_", ", ") for part in PARTS), "rollout")
    return Table("Seconds of the parts, each by itself; overlap is taken off their sum", columns, tuple(rows), source)


def _sentence(split: CostSplit) -> str:
    factors = ", ".join(f"{_causes(link)} {show_factor(link.factor)}" for link in split.chain.links)
    kind = "" if split.real else " (emulated: its seconds say nothing of the hardware it stands for)"
    first, last = split.chain.links[0].before, split.chain.links[-1].after
    return (
        f"**{split.report.model.source}, {split.explorer}{kind}**: {show_factor(split.chain.total)} times faster than "
        f"{first} ({last}): {factors}."
    )


def _notes(report: RolloutReport, engine: str, chain: Chain, update: UpdateReport | None) -> list[str]:
    notes = [f"Not measured: {', '.join(chain.absent)}. {_reasons(report)}".strip()] if chain.absent else []
    notes += [f"Nothing measured speaks of: {', '.join(chain.lost)}."] if chain.lost else []
    if engine == PRECISE:
        notes.append("No engine of low precision explored in two stages here: precision has no factor.")
    merged = [link for link in chain.links if len(link.causes) > 1]
    notes += [f"Not told apart, for lack of an arm between them: {_causes(link)}." for link in merged]
    for arm in report.arms:
        if arm.split is not None and arm.split.overlap < 0:
            notes.append(
                f"{arm.name}: the parts together take longer than each alone, so overlap has a factor below 1."
            )
    full = _full_steps_factor(report, engine)
    if full is not None:
        notes.append(f"At full steps, without exploring in fewer, {engine} alone is {show_factor(full)} times faster.")
    if update is None:
        notes.append(
            "No report of the update (`solrl bench update --json FILE`) of this model was given: this is the rollout "
            "alone, and an iteration gains less."
        )
    return notes


def _full_steps_factor(report: RolloutReport, engine: str) -> float | None:
    if engine == PRECISE:
        return None
    before, after = _seconds(report.arm(COMPILED)), _seconds(report.arm(f"{engine}{FULL}"))
    return before / after if before and after else None


def _reasons(report: RolloutReport) -> str:
    failed = [f"{arm.name}: {arm.error.strip().splitlines()[-1]}" for arm in report.arms if arm.error]
    return "; ".join(failed)


def _causes(link: Link) -> str:
    return " and ".join(link.causes)


def _later(state: Milestone, seconds: float) -> Milestone:
    return Milestone(state.name, state.cause, None if state.seconds is None else state.seconds + seconds)


def _seconds(arm: Arm | None, overlapping: bool = False) -> float | None:
    if arm is None or not arm.seconds or (arm.split is None and not overlapping):
        return None
    return arm.seconds if overlapping or arm.split is None else arm.seconds + arm.split.overlap


def _update_of(report: RolloutReport, updates: Sequence[UpdateReport]) -> UpdateReport | None:
    wanted = report.model.family, report.model.source, report.model.resolution, report.environment.hardware
    for update in updates:
        if (update.model.family, update.model.source, update.model.resolution, update.environment.hardware) == wanted:
            return update
    return None
