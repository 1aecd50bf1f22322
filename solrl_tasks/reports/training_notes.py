"""What went wrong in a run, or might have, as far as the run noticed."""

from collections.abc import Sequence

from solrl_tasks.reports.page import Block, Section, Table, Text, plain
from solrl_tasks.reports.run_record import RunRecord
from solrl_tasks.tracking.summary import Summary

NOTES = 100
"""Notes that a page shows."""
CHECKS = {
    "rank alarm: the proxy did not rank the kept seeds": "rank/alarm",
    "explored candidates without a valid score": "select/invalid_candidates",
    "regenerated samples without a valid reward": "select/invalid_samples",
    "groups left out: too few valid candidates": "select/left_out_few_finite",
    "groups left out: all candidates score the same": "select/left_out_no_spread",
    "micro-batches skipped: the loss was not finite": "train/skipped_micro_batches",
}


def notes_section(run: RunRecord) -> Section:
    """Counts of what can go wrong, and the notes that the run left."""
    rows = tuple(_row(label, name, run.summaries) for label, name in CHECKS.items())
    blocks: list[Block] = [Table("Checks", ("what", "how often", "in iterations"), rows)]
    if run.unknown:
        blocks.append(origins_table(run))
    notes = [f"- iteration {summary.step}: {plain(note)}" for summary in run.summaries for note in summary.notes]
    if notes:
        more = len(notes) - NOTES
        blocks.append(Text("\n".join([*notes[:NOTES], *([f"- and {more} more"] if more > 0 else [])])))
    else:
        blocks.append(Text("The run left no other notes."))
    return Section("Notes and failures", tuple(blocks))


def origins_table(run: RunRecord) -> Table:
    """The pools of which it is not known where they were computed."""
    return Table("Pools whose origin is not known", ("pool", "why"), tuple(run.unknown.items()))


def _row(label: str, name: str, summaries: Sequence[Summary]) -> tuple[str, str, str]:
    known = [summary for summary in summaries if name in summary.metrics]
    if not known:
        return label, "not known", ""
    hit = [summary for summary in known if summary.metrics[name] > 0]
    total = sum(summary.metrics[name] for summary in hit)
    steps = ", ".join(str(summary.step) for summary in hit[:10]) + (", …" if len(hit) > 10 else "")
    return label, f"{total:.0f}", steps
