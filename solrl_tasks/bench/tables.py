"""Reports as tables, for a terminal and for Markdown alike."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from solrl_tasks.bench.arms import FULL, PIPELINE, PRECISE
from solrl_tasks.bench.ceiling import (
    IDEAL_FACTORS,
    RolloutShape,
    floor_seconds,
    ideal_rollout_speedup,
    rollout_speedup,
    step_speedup,
)
from solrl_tasks.bench.peaks import Peak, Precision, find_peaks, precision_of
from solrl_tasks.bench.profile import Profile
from solrl_tasks.bench.reports.ceiling import CeilingReport
from solrl_tasks.bench.reports.facts import Environment, ModelFacts
from solrl_tasks.bench.reports.file import Report
from solrl_tasks.bench.reports.iteration import IterationReport
from solrl_tasks.bench.reports.rollout import Arm, RolloutReport
from solrl_tasks.bench.reports.sampling import Sampling
from solrl_tasks.bench.reports.sync import SyncBenchReport
from solrl_tasks.bench.reports.update import UpdateReport
from solrl_tasks.config.words import counted
from solrl_tasks.models.sources import RANDOM
from solrl_tasks.tracking.summary import in_order

ABSENT: Final = "-"
CEILING_HARDWARE: Final = "NVIDIA H200"
"""Whose practical rate gives the floor in milliseconds where only arithmetic is asked for."""
_TERA: Final = 1e12
_GIB: Final = 2**30


@dataclass(frozen=True)
class Table:
    """A title, columns, rows of text, and what has to be said below."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def tables_of(report: Report) -> list[Table]:
    """The tables of any report."""
    if isinstance(report, RolloutReport):
        return list(_rollout_tables(report))
    if isinstance(report, UpdateReport):
        return [_update_table(report)]
    if isinstance(report, SyncBenchReport):
        return [_sync_table(report)]
    if isinstance(report, IterationReport):
        return list(_iteration_tables(report))
    return [_ceiling_table(report)]


def to_markdown(report: Report) -> str:
    """A report as a section of a page: its tables, where it was measured, and the command."""
    parts = [_markdown(table) for table in tables_of(report)]
    if not isinstance(report, CeilingReport):  # arithmetic is the same everywhere
        parts.append(f"{describe(report.environment)}\n")
    return "\n".join([*parts, f"```bash\n{_without_file(report.environment.command)}\n```\n"])


def describe(environment: Environment) -> str:
    """One sentence on where and when."""
    versions = ", ".join(f"{name} {version}" for name, version in sorted(environment.libraries.items()))
    driver = f", driver {environment.driver}" if environment.driver else f", {counted(environment.threads, 'thread')}"
    return f"{environment.hardware}{driver}; {versions}; {environment.started[:10]}."


def _without_file(command: str) -> str:
    """The command without the name of the file that its report went to."""
    words = shlex.split(command)
    for position, word in enumerate(words):
        if word.startswith("--json"):
            del words[position : position + (1 if "=" in word else 2)]
            break
    return shlex.join(words)


def _markdown(table: Table) -> str:
    lines = [table.columns, ("---",) * len(table.columns), *table.rows]
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    notes = "".join(f"\n{note}\n" for note in table.notes)
    return f"**{table.title}**\n\n{body}\n{notes}"


def _named(source: str, resolution: int) -> str:
    name = source.removeprefix(RANDOM)
    return f"{name}{' (random weights)' if name != source else ''} at {resolution} px"


def _number(value: float | None, digits: int, unit: str = "") -> str:
    return ABSENT if value is None else f"{value:.{digits}f}{unit}"


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value >= 1 else f"{value:.3f}"


# Rollout


def _rollout_tables(report: RolloutReport) -> Iterator[Table]:
    shape = _shape(report)
    split = (
        f"{counted(shape.candidates, 'candidate')}, {shape.keep} kept, {shape.explore_steps} and "
        f"{counted(shape.full_steps, 'step')}"
    )
    yield Table(
        f"Rollout of one prompt, {_named(report.model.source, report.model.resolution)}: {split}",
        ("arm", "s", "x bf16-full", "x eager pipeline", "images/s", "GiB", "complete / scaled"),
        tuple(_arm_row(report, arm) for arm in report.arms),
        tuple(_rollout_notes(report, shape)),
    )
    yield Table(
        "The same by parts, seconds",
        ("arm", "text", "sync", "explore", "regenerate", "decode", "score", "overlapped", "all"),
        tuple(_split_row(arm) for arm in report.arms if arm.split),
        ("Each part as it takes alone; what runs beside something else is overlapped and does not add to the whole.",),
    )
    yield Table(
        "The network alone",
        ("engine", "steps", "chunk", "execution", "ms/image-step", "TFLOP/s", "of BF16 peak", "of floor", "first s"),
        tuple(_sampling_row(report, sampling) for sampling in report.samplings.values()),
        tuple(_peak_notes(report.environment)),
    )
    for sampling in report.samplings.values():
        if sampling.profile is not None:
            yield _profile_table(sampling, sampling.profile)


def _profile_table(sampling: Sampling, found: Profile) -> Table:
    groups = ", ".join(f"{name} {100 * share:.0f} %" for name, share in found.groups.items())
    return Table(
        f"Where the time of {sampling.engine} goes, chunk {sampling.chunk}",
        ("kernel", "calls", "ms", "share"),
        tuple((f"`{k.name}`", str(k.calls), f"{1e3 * k.seconds:.2f}", f"{100 * k.share:.1f} %") for k in found.kernels),
        (f"Together: {groups}.",),
    )


def _arm_row(report: RolloutReport, arm: Arm) -> tuple[str, ...]:
    if arm.seconds is None:
        reason = (arm.error or "").strip().splitlines()
        return (arm.name, f"failed: {reason[-1] if reason else 'no reason'}", *[ABSENT] * 5)
    needed = report.needed_bytes(arm)
    return (
        arm.name,
        f"{arm.seconds:.2f}" + (" (scaled)" if arm.scaled else ""),
        _number(report.speedup(arm, f"{PRECISE}{FULL}"), 2),
        _number(report.speedup(arm, PIPELINE), 2),
        _number(arm.images_per_second, 2),
        _number(needed / _GIB if needed is not None else None, 1),
        _number(arm.complete.ratio if arm.complete else None, 3),
    )


def _split_row(arm: Arm) -> tuple[str, ...]:
    split = arm.split
    assert split is not None and arm.seconds is not None
    parts = (split.text, split.sync, split.denoise_explore, split.denoise_regenerate)
    return (arm.name, *map(_seconds, (*parts, split.decode, split.score, split.overlap, arm.seconds)))


def _sampling_row(report: RolloutReport, sampling: Sampling) -> tuple[str, ...]:
    flops = report.model.flops
    peaks = find_peaks(report.environment.hardware)
    seconds = sampling.image_step_seconds
    rate = flops.total / seconds
    base = peaks.get("bf16")
    floor = _floor(report.model, peaks, precision_of(sampling.engine, sampling.kind))
    return (
        sampling.engine + (" (emulated)" if sampling.kind == "emulated" else ""),
        str(sampling.steps),
        str(sampling.chunk),
        sampling.execution,
        _number(seconds * 1e3, 2),
        _number(rate / _TERA, 0 if rate > _TERA else 4),
        _number(100 * rate / base.rate if base else None, 0, " %"),
        _number(100 * floor / seconds if floor else None, 0, " %"),
        _seconds(sampling.first_seconds),
    )


def _floor(model: ModelFacts, peaks: dict[Precision, Peak], precision: Precision) -> float | None:
    if "bf16" not in peaks or precision not in peaks:
        return None
    flops = model.flops
    return floor_seconds(flops.total, flops.quantisable, peaks["bf16"].rate, peaks[precision].rate)


def _rollout_notes(report: RolloutReport, shape: RolloutShape) -> Iterator[str]:
    total, quantisable = report.model.flops.total, report.model.flops.quantisable
    ceilings = [
        f"{name} {ideal_rollout_speedup(shape, total, quantisable, factor):.2f}"
        for name, factor in IDEAL_FACTORS.items()
    ]
    yield (
        f"By operations alone two stages can be faster than bf16-full by {', '.join(ceilings)}, and without any "
        f"quantisation by {rollout_speedup(shape, 1.0, 1.0):.2f}."
    )
    for engine in dict.fromkeys(sampling.engine for sampling in report.samplings.values()):
        overhead = report.overhead(engine)
        if overhead is not None and engine != PRECISE:
            yield f"Two stages cost {100 * overhead:+.1f} % over {engine} alone at full steps."
    if any(arm.scaled and arm.seconds for arm in report.arms):
        timed = max(sampling.chunks for sampling in report.samplings.values())
        yield (
            f"Scaled: one chunk and then {counted(timed, 'chunk')} were timed, and the rest follows from their "
            "difference. "
            f"Reward {report.reward}, LoRA {report.lora}, solver {report.sampler}."
        )


def _peak_notes(environment: Environment) -> Iterator[str]:
    peaks = find_peaks(environment.hardware)
    if not peaks:
        yield f"No peak is known for {environment.hardware}, so there are no shares of one."
        return
    rates = ", ".join(
        f"{name} {peak.rate / _TERA:.0f} TFLOP/s ({'practical' if peak.practical else 'nominal'}; nominal "
        f"{peak.nominal / _TERA:.0f})"
        for name, peak in peaks.items()
    )
    yield (
        f"Peaks: {rates}. All operations are counted at every precision; the floor is the time in which quantised "
        "layers run at their precision's peak and everything else at that of BF16."
    )


def _shape(report: RolloutReport | CeilingReport) -> RolloutShape:
    return RolloutShape(report.candidates, report.keep, report.explore_steps, report.full_steps)


# Update and sync


def _update_table(report: UpdateReport) -> Table:
    checkpointing = "on" if report.gradient_checkpointing else "off"
    return Table(
        f"Update, {_named(report.model.source, report.model.resolution)}: LoRA {report.lora}",
        ("rows", "micro-batch", "checkpointing", "s a row", "s an update", "first s", "peak GiB"),
        (
            (
                str(report.rows),
                str(report.micro_batch),
                checkpointing,
                _seconds(report.row_seconds),
                _seconds(report.row_seconds * report.rows),
                _seconds(report.first_seconds),
                _number(report.peak_bytes / _GIB if report.peak_bytes is not None else None, 1),
            ),
        ),
        ("A row is one sample at one noise level.",),
    )


def _sync_table(report: SyncBenchReport) -> Table:
    rows: list[tuple[str, ...]] = [
        (
            sync.engine,
            sync.execution,
            _number(sync.first_seconds * 1e3, 0),
            str(sync.first_tensors),
            _number(sync.later * 1e3, 0),
            _number(sync.hash_seconds * 1e3, 0),
            str(sync.tensors),
            str(sync.graphs),
            str(sync.new_graphs),
            _number(sync.bytes / _GIB, 2),
        )
        for sync in report.engines
    ]
    rows += [(name, f"failed: {why.strip().splitlines()[-1]}", *[ABSENT] * 8) for name, why in report.failed.items()]
    columns = ("engine", "execution", "first ms", "tensors", "later ms", "hash ms", "tensors", "graphs", "new", "GiB")
    return Table(
        f"Sync, {_named(report.model.source, report.model.resolution)}: LoRA {report.lora}", columns, tuple(rows)
    )


# Iteration


def _iteration_tables(report: IterationReport) -> Iterator[Table]:
    model, explore = report.recipe["model"], report.recipe["explore"]
    size = (
        f"{counted(report.recipe['prompts']['per_iteration'], 'prompt')}, {counted(explore['candidates'], 'candidate')}"
    )
    stages = in_order(name for cost in report.iterations for name in cost.stages)
    warm = [str(cost.step) + (" (warm-up)" if cost not in report.warm else "") for cost in report.iterations]
    yield Table(
        f"Iterations, {_named(model['source'], model['resolution'])}: {size}, {explore['engine']['name']}; seconds",
        ("iteration", *stages, "device", "wall", "rest", "share"),
        tuple(
            (
                name,
                *(_seconds(cost.stages[s].device_seconds) if s in cost.stages else ABSENT for s in stages),
                _seconds(cost.device_seconds),
                _seconds(cost.seconds),
                _seconds(cost.orchestration_seconds),
                _number(100 * cost.orchestration_share, 1, " %"),
            )
            for name, cost in zip(warm, report.iterations, strict=True)
        ),
        tuple(_iteration_notes(report)),
    )


def _iteration_notes(report: IterationReport) -> Iterator[str]:
    inside = sum(s.seconds - s.device_seconds for cost in report.warm for s in cost.stages.values()) / len(report.warm)
    yield (
        f"Fixed cost of a warm iteration: {report.fixed_seconds:.2f} s ({100 * report.share:.1f} % at this size), of "
        f"which {inside:.2f} s within stages and {report.fixed_seconds - inside:.2f} s between them. "
        f"Servers: {', '.join(f'{name} {what}' for name, what in report.servers.items())}."
    )
    if report.peak_bytes is not None:
        yield f"Peak memory of the whole run: {report.peak_bytes / _GIB:.1f} GiB."


# Ceiling


def _ceiling_table(report: CeilingReport) -> Table:
    shape = _shape(report)
    peak = find_peaks(CEILING_HARDWARE)["bf16"].rate
    rows: list[tuple[str, Sequence[str]]] = []
    flops = [model.flops for model in report.models]
    rows.append(("TFLOP an image and step", [f"{f.total / _TERA:.3f}" for f in flops]))
    rows.append(("in quantisable layers", [f"{100 * f.quantisable / f.total:.0f} %" for f in flops]))
    rows.append(("BF16 floor, ms an image and step", [f"{1e3 * f.total / peak:.2f}" for f in flops]))
    for name, factor in IDEAL_FACTORS.items():
        steps = [step_speedup(f.total, f.quantisable, factor) for f in flops]
        rows.append((f"step, {name} (ideal {factor:g}x)", [f"{value:.2f}" for value in steps]))
    rows.append(("rollout, no quantisation", [f"{rollout_speedup(shape, 1.0, 1.0):.2f}"] * len(flops)))
    for name, factor in IDEAL_FACTORS.items():
        values = [ideal_rollout_speedup(shape, f.total, f.quantisable, factor) for f in flops]
        rows.append((f"rollout, {name}", [f"{value:.2f}" for value in values]))
    rows.append(("rollout, free exploration", [f"{rollout_speedup(shape, 1.0, 0.0):.2f}"] * len(flops)))
    baseline, explored, again = shape.baseline_steps, shape.explored_steps, shape.regenerated_steps
    return Table(
        "What is possible",
        ("", *(f"{model.source.removeprefix(RANDOM)} {model.resolution}" for model in report.models)),
        tuple((name, *values) for name, values in rows),
        (
            f"Rollout = {baseline} tb / ({explored} tq + {again} tb), tb and tq being the times of one image and step "
            f"in BF16 and in the precision that explores. Floor: at {peak / _TERA:.0f} TFLOP/s ({CEILING_HARDWARE}).",
        ),
    )
