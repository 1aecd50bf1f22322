"""Images of a run: the best and worst seeds of an iteration, and held-out images before and after."""

from solrl_tasks.config.recipe import ExtensionSpec
from solrl_tasks.config.words import counted
from solrl_tasks.reports.page import Block, Figure, Section, Text
from solrl_tasks.reports.run_record import RunRecord
from solrl_tasks.tracking.summary import Summary

GRID = "grid.png"
HELD_OUT = "heldout.png"


def pictures_section(run: RunRecord) -> Section | None:
    """Grids of the first and of the last iteration that has one, and the last held-out images; None without any."""
    grids = [summary for summary in run.summaries if GRID in summary.images]
    held_out = [summary for summary in run.summaries if HELD_OUT in summary.images]
    shown = list({summary.step: summary for summary in (*grids[-1:], *grids[:1])}.values())
    blocks = [_grid(run, summary) for summary in shown]
    blocks += [_held_out(run, summary) for summary in held_out[-1:]]
    return Section("Images", tuple(blocks)) if blocks else None


def held_out_figure(run: RunRecord) -> list[Block]:
    """The held-out images of an evaluation, where some were kept."""
    if HELD_OUT not in run.last.images:
        return []
    caption = "Held-out images: the reference, and below the policy, at the same seeds"
    alt = "Images of some held-out prompts: above by the reference, below by the policy, with rewards under them."
    spec = run.recipe.evaluate.sampling
    return [_figure(run, run.last, HELD_OUT, (caption, alt), spec.engine, f"{counted(spec.steps, 'step')}")]


def _grid(run: RunRecord, summary: Summary) -> Block:
    explore, regenerate = run.recipe.explore, run.recipe.regenerate
    caption = f"Best and worst seeds of iteration {summary.step}: as explored, and below as regenerated"
    alt = (
        f"Images of some prompts of iteration {summary.step}: the seeds that exploration put first and last, with the "
        "same seeds regenerated below, and the reward under every image."
    )
    note = (
        f"{counted(explore.steps, 'step')}; below {run.engine(regenerate.engine)}, {counted(regenerate.steps, 'step')}"
    )
    return _figure(run, summary, GRID, (caption, alt), run.recipe.explore.engine, note)


def _held_out(run: RunRecord, summary: Summary) -> Block:
    caption = f"Held-out images: the untrained policy, and below iteration {summary.step}, at the same seeds"
    alt = (
        f"Images of some held-out prompts: above by the untrained policy, below by that of iteration {summary.step}, "
        "from the same seeds, with the reward under every image."
    )
    spec = run.recipe.evaluate.sampling
    return _figure(run, summary, HELD_OUT, (caption, alt), spec.engine, f"{counted(spec.steps, 'step')}")


def _figure(
    run: RunRecord, summary: Summary, name: str, words: tuple[str, str], engine: ExtensionSpec, note: str
) -> Block:
    path = run.folder(summary.step) / name
    try:
        png = path.read_bytes()
        return Figure(words[0], png, words[1], run.made_by(engine, note))
    except (OSError, ValueError):
        return Text(f"The picture `{name}` of iteration {summary.step} is not in the store any more, or is damaged.")
