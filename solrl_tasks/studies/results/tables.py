"""The sections of the page: tables, figures, and what they say of the published ones."""

import math
from collections.abc import Mapping, Sequence

from solrl_tasks.config.words import counted
from solrl_tasks.reports.page import Block, Provenance, Table
from solrl_tasks.studies.results.cells import (
    ABSENT,
    ERRORS,
    claim_lines,
    figure,
    plain_number,
    said,
    shown,
    with_interval,
)
from solrl_tasks.studies.results.findings import TAIL, Ablation, ArmFinding, Results
from solrl_tasks.studies.results.published import RANKS
from solrl_tasks.studies.results.ranks import ProxyRow
from solrl_tasks.studies.results.times import ArmTime, RolloutTimes


def arm_blocks(found: Results, pictures: Mapping[str, bytes]) -> list[Block]:
    """What ran: arms, seeds, costs, curves."""
    rows = tuple(_arm_row(arm) for arm in found.arms)
    columns = (
        "arm",
        "what",
        "seeds",
        "untrained",
        "end",
        "gain",
        "counted as cost",
        "measured s/iteration",
        f"modelled s/iteration, {found.modelled_hardware}",
    )
    notes = dict.fromkeys(f"{arm.note[:1].upper()}{arm.note[1:]}." for arm in found.arms if arm.note)
    gone = [f"{name} cannot run here: {why}." for name, why in found.absent.items()]
    left = [f"{arm.left_out} of {arm.name}" for arm in found.arms if arm.left_out]
    lines = [*notes, *gone, *([f"Runs left out, not being as far: {', '.join(left)}."] if left else [])]
    table = Table(
        "Arms", columns, rows, said(found, f"{ERRORS}; end: mean of the last {TAIL} evaluations"), " ".join(lines)
    )
    return [
        table,
        *figure(found, pictures, "controls-iterations", "Held-out reward over iterations"),
        *figure(found, pictures, "controls-gpu-hours", "Held-out reward over modelled GPU-hours", "modelled"),
    ]


def _arm_row(arm: ArmFinding) -> tuple[str, ...]:
    costs = (plain_number(arm.measured, ".3g"), plain_number(arm.modelled, ".3g"))
    rewards = (f"{arm.curve[0].mean:.4f}", shown(arm.end), shown(arm.gain))
    return (arm.name, arm.title, str(len(arm.seeds)), *rewards, ", ".join(arm.counted), *costs)


def ablation_blocks(
    found: Results, ablation: Ablation | None, name: str, what: str, pictures: Mapping[str, bytes]
) -> list[Block]:
    """One knob at several values."""
    if ablation is None:
        return []
    rows = tuple(
        (
            str(row.value),
            row.arm,
            str(row.end.n),
            shown(row.end),
            ABSENT if row.value == ablation.reference else with_interval(row.difference),
            plain_number(row.published, ".4f"),
        )
        for row in ablation.rows
    )
    columns = (what, "arm", "seeds", "end", f"less {ablation.reference} {what} (95 %)", "published HPSv2")
    table = Table(f"Reward at the end by {what}", columns, rows, said(found))
    return [table, *claim_lines(ablation.claims), *figure(found, pictures, name, f"Reward at the end over {what}")]


def parity_blocks(found: Results) -> list[Block]:
    """Arms beside the one that samples all candidates precisely."""
    if not found.parity:
        return []
    rows = tuple(
        (
            one.arm,
            str(one.difference.n),
            shown(one.end),
            shown(one.precise),
            with_interval(one.difference),
            f"{100 * one.relative.mean:+.2f} %",
            f"{100 * one.of_gain:+.0f} %" if math.isfinite(one.of_gain) else ABSENT,
        )
        for one in found.parity
    )
    columns = ("arm", "pairs", "end", "precise", "difference (95 %)", "of the reward", "of the gain")
    table = Table("Against sampling all candidates precisely, after equal iterations", columns, rows, said(found))
    return [table, *claim_lines([one.claim for one in found.parity if one.claim])]


def direct_blocks(found: Results, pictures: Mapping[str, bytes]) -> list[Block]:
    """What is trained on: precise samples or low-precision ones."""
    direct = found.direct
    if direct is None:
        return []
    pairs = zip(direct.places, direct.difference, strict=True)
    rows = tuple((str(place), with_interval(one)) for place, one in pairs)
    caption = f"{direct.precise} less {direct.direct}, pairs of one seed"
    table = Table(caption, ("iteration", "difference (95 %)"), rows, said(found))
    picture = figure(found, pictures, "direct", "Training on precise and on low-precision samples")
    return [*picture, table, *claim_lines(direct.claims)]


def rank_blocks(found: Results) -> list[Block]:
    """How well proxies rank."""
    ranking = found.ranking
    if ranking is None or not ranking.rows:
        return []
    tops = list(ranking.rows[0].overlap)
    each = [f"{what} {top}" for what in ("overlap", "match") for top in tops]
    rows = [_rank_row(row, tops) for row in ranking.rows]
    published = ("published, overall", "BF16", f"{RANKS.spearman}", f"{RANKS.kendall}", *[ABSENT] * len(tops))
    rows.append((*published, *(plain_number(RANKS.best.get(top, math.nan), ".3f") for top in tops), ABSENT))
    columns = ("proxy", "reference", "Spearman", "Kendall", *each, "contrast")
    caption = (
        f"Ranks of {counted(ranking.candidates, 'seed')} of each of {counted(ranking.prompts, 'prompt')}, untrained "
        "model"
    )
    note = "What the publication counts as a match we have not read: its rates stand under the lenient measure."
    where = Provenance(ranking.hardware, "", None, "measured", "errors over prompts")
    return [Table(caption, columns, tuple(rows), where, note), *claim_lines(found.rank_claims)]


def _rank_row(row: ProxyRow, tops: Sequence[int]) -> tuple[str, ...]:
    kind = ", emulated" if row.kind == "emulated" else ""
    estimates = [
        row.spearman,
        row.kendall,
        *(row.overlap[k] for k in tops),
        *(row.match[k] for k in tops),
        row.contrast,
    ]
    proxy, reference = (
        f"{row.engine}{kind}, {counted(row.steps, 'step')}",
        f"{row.reference_engine}, {counted(row.reference_steps, 'step')}",
    )
    return (proxy, reference, *(shown(one, 3) for one in estimates))


def time_blocks(found: Results) -> list[Block]:
    """Rollouts of full-size models."""
    blocks: list[Block] = [_time_table(one) for one in found.times]
    return [*blocks, *claim_lines(found.time_claims)]


def _time_table(times: RolloutTimes) -> Table:
    columns = ("arm", "s a prompt", "x BF16 at full steps", "x eager pipeline")
    rows = tuple(_time_row(arm) for arm in times.arms)
    caption = f"Rollout of {times.source} at {times.resolution} px, {times.keep} of {times.candidates} kept"
    note = ""
    if times.published is not None and times.published_iteration is not None:
        note = (
            f"Published, NVFP4 in hardware: {times.published:.2f} times faster in two stages, "
            f"{times.published_iteration:.2f} times with training."
        )
    return Table(caption, columns, rows, Provenance(times.hardware, "", None, "measured", "one measurement"), note)


def _time_row(arm: ArmTime) -> tuple[str, ...]:
    name = f"{arm.name}, emulated" if arm.kind == "emulated" else arm.name
    ratios = (plain_number(arm.over_precise, ".2f"), plain_number(arm.over_pipeline, ".2f"))
    return (name, f"{arm.seconds:.2f}", *ratios)
