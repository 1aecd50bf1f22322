"""The page of an evaluation: a policy beside another on the same prompts and seeds."""

from solrl_tasks.config.words import counted
from solrl_tasks.reports.page import Block, Commands, Page, Section, Settings, Table, Text, plain
from solrl_tasks.reports.run_record import RunRecord
from solrl_tasks.reports.training_notes import origins_table
from solrl_tasks.reports.training_pictures import held_out_figure
from solrl_tasks.tracking.evaluation import columns, evaluation_lines, evaluation_rows

NOTE = "± is one standard error over prompts; seeds of a prompt are averaged first."


def evaluation_page(run: RunRecord) -> Page:
    """What an evaluation found, from the store."""
    summary = run.last
    rows = evaluation_rows(summary)
    spec = run.recipe.evaluate
    where = run.made_by(spec.sampling.engine, f"{counted(spec.prompts, 'prompt')} x {counted(spec.seeds, 'seed')}")
    table = Table(
        "Policy and reference, on the same prompts and seeds",
        tuple(columns(rows)),
        tuple(tuple(row.values()) for row in rows),
        where,
        NOTE,
    )
    lines = "\n".join(f"- {line}" for line in evaluation_lines(summary))
    found: list[Block] = [table, *([Text(lines)] if lines else []), *held_out_figure(run)]
    found += [origins_table(run)] if run.unknown else []
    told = [plain(note) for note in summary.notes]
    return Page(
        f"Evaluation {run.run_id}",
        "\n\n".join(told),
        (
            Section("Held-out rewards", tuple(found)),
            Section("Settings", (Settings(run.recipe.model_dump(mode="json")),)),
            Section("Again", (Commands((f"solrl report {run.run_id}",)),)),
        ),
    )
