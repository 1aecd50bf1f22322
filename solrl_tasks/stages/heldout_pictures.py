"""Held-out images of two policies beside each other, prompt by prompt and seed by seed."""

from solrl_tasks.config.words import counted
from solrl_tasks.stages.comparison import Scores
from solrl_tasks.stages.evaluate import held_out_scores
from solrl_tasks.stages.jobs import PoolJob
from solrl_tasks.stages.session import Session
from solrl_tasks.store.pool import Pool
from solrl_tasks.tracking.grid import Cell, GridRow, GridText, grid_bytes, make_grid

SEEDS = 8
"""Images shown of a prompt."""


def heldout_grid(session: Session, after: PoolJob, before: PoolJob, names: tuple[str, str], title: str) -> bytes | None:
    """A PNG with the images of a reference above those of a policy at the same seeds; None where none are kept.

    Args:
        names: of the policy and of the reference.
    """
    prompts = min(session.recipe.tracking.grid_prompts, len(after.prompts))
    if prompts == 0 or "none" in (after.keep, before.keep):
        return None
    pools = after.open(session), before.open(session)
    reward = after.rewards[0].name
    scores = held_out_scores(after, pools[0])[reward], held_out_scores(before, pools[1])[reward]
    rows = [_row(after, pools, scores, row) for row in range(prompts)]
    steps = f"{counted(after.sampling.steps, 'step')}"
    return grid_bytes(
        make_grid(
            rows,
            GridText(
                title=title,
                subtitle=f"held-out prompts, {reward} under the images",
                proxy=(names[1], steps),
                regenerated=(names[0], steps),
                headings=("the same seeds", ""),
            ),
        )
    )


def _row(job: PoolJob, pools: tuple[Pool, Pool], scores: tuple[Scores, Scores], row: int) -> GridRow:
    seeds = range(min(SEEDS, job.candidates))
    after, before = (pool.pictures(row, seeds) for pool in pools)
    cells = tuple(
        Cell(before[seed], after[seed], float(scores[1][row, seed]), float(scores[0][row, seed])) for seed in seeds
    )
    return GridRow(job.prompts[row].text, cells, ())
