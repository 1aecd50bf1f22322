"""The image grid of an iteration: best and worst seeds of some prompts, proxy beside regenerated."""

import numpy as np
import torch
from numpy.typing import NDArray

from solrl_tasks.config.words import counted
from solrl_tasks.stages.course import Course
from solrl_tasks.stages.jobs import PoolJob, SamplesJob
from solrl_tasks.stages.resolutions import lowered
from solrl_tasks.stages.scores import pool_scales, proxy_scores, sample_scores
from solrl_tasks.stages.session import Session
from solrl_tasks.store.pool import Pool
from solrl_tasks.store.samples import Samples
from solrl_tasks.tracking.grid import Cell, GridRow, GridText, grid_bytes, make_grid

SEEDS = 4
"""Seeds shown from each end of a prompt."""


def iteration_grid(session: Session, course: Course) -> bytes | None:
    """A PNG of the iteration; None where nothing was kept or the recipe wants no grid.

    Proxy images are shown where the pool keeps images; regenerated ones are decoded from their latents where they are
    not kept.
    """
    rows = session.recipe.tracking.grid_prompts
    if rows == 0 or course.pool is None or course.samples is None:
        return None
    kept = np.flatnonzero(course.samples.kept)[:rows]
    if not len(kept):
        return None
    pool, samples = course.pool.open(session), course.samples.open(session)
    rewards = session.recipe.rewards
    proxy = proxy_scores(course.pool, pool, rewards)
    precise = sample_scores(samples, rewards, pool_scales(course.pool, pool, rewards))
    grid_rows = [
        _row(session, course.pool, pool, course.samples, samples, int(row), proxy[row], precise[row]) for row in kept
    ]
    return grid_bytes(make_grid(grid_rows, _text(session, course.step)))


def _row(
    session: Session,
    pool_job: PoolJob,
    pool: Pool,
    samples_job: SamplesJob,
    samples: Samples,
    row: int,
    proxy: NDArray[np.float64],
    precise: NDArray[np.float64],
) -> GridRow:
    keep = samples_job.indices.shape[1]
    ends = min(SEEDS, keep // 2)
    columns = [*range(ends), *range(keep - 1, keep - 1 - ends, -1)]
    candidates = [int(samples_job.indices[row, column]) for column in columns]
    explored = pool.pictures(row, candidates) if pool_job.keep != "none" else [None] * len(columns)
    regenerated = _regenerated(session, samples_job, samples, row, columns)
    cells = tuple(
        Cell(shown, again, float(proxy[candidate]), float(precise[column]))
        for shown, again, candidate, column in zip(explored, regenerated, candidates, columns, strict=True)
    )
    return GridRow(pool_job.prompts[row].text, cells[:ends], cells[ends:])


def _regenerated(
    session: Session, job: SamplesJob, samples: Samples, row: int, columns: list[int]
) -> NDArray[np.uint8]:
    if job.images:
        return samples.images(row, columns)
    return session.worker.decode(torch.from_numpy(samples.latents()[row, columns]))


def _text(session: Session, step: int) -> GridText:
    recipe = session.recipe
    explore, regenerate = recipe.explore, recipe.regenerate
    side = lowered(recipe.model, explore)
    kept = "rewards under the images"
    if explore.store_images == "none":
        kept = "explored images were not kept (explore.store_images)"
    return GridText(
        title=f"{session.run.run_id}, iteration {step}",
        subtitle=f"{recipe.select.keep} of {counted(explore.candidates, 'seed')} kept a prompt; {kept}",
        proxy=(explore.engine.name, f"{counted(explore.steps, 'step')}{'' if side is None else f', {side} px'}"),
        regenerated=(regenerate.engine.name, f"{counted(regenerate.steps, 'step')}"),
    )
