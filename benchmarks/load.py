"""What a large run costs besides its model: time, memory, and what the trackers hold.

    python benchmarks/load.py explore --prompts 1000 --candidates 96 --chunk 24
    python benchmarks/load.py resume --iterations 200 --resumes 20
    python benchmarks/load.py prefect --iterations 20

A worker that computes nothing stands in for the model (``quick_worker.py``); all else is as in any run. ``explore``
fills one pool and looks whether time is linear and memory flat. ``resume`` stops a run at random stages and starts it
again, and compares the history in MLflow (a database file) with the store, value by value. ``prefect`` runs the flow on
a server of its own and tells how its database grows. Each prints one JSON object.
"""

import argparse
import json
import os
import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.quick_worker import quick_workers
from solrl_tasks.config.load import parse_recipe
from solrl_tasks.config.recipe import Recipe
from solrl_tasks.stages.explore import explore
from solrl_tasks.stages.iteration import policy_after, run_step
from solrl_tasks.stages.plan import plan_explore
from solrl_tasks.stages.reporter import SilentReporter
from solrl_tasks.stages.session import Session, open_session

MEGABYTE = 1e6
Cost = tuple[float, float]
"""Seconds, and seconds of the processor."""


class Stopped(Exception):
    """A run is stopped where it is."""


class Watching(SilentReporter):
    """Notes the time and the memory at every block, and may stop the run at a stage.

    Attributes:
        blocks: seconds, seconds of the processor and resident bytes when so many blocks were in the store.
        stop_at: how many more stages begin before the run is stopped; None is never.
        notes: what was told to people.
    """

    def __init__(self, stop_at: int | None = None) -> None:
        self.blocks: list[tuple[float, float, int]] = []
        self.stop_at = stop_at
        self.notes: list[str] = []
        self._process = psutil.Process()

    def stage_started(self, step: int, stage: str, what: str) -> None:  # noqa: ARG002
        """Counts down."""
        if self.stop_at is not None:
            self.stop_at -= 1
            if self.stop_at < 0:
                raise Stopped

    def progress(self, step: int, stage: str, done: int, total: int, unit: str) -> None:  # noqa: ARG002
        """Notes."""
        self.blocks.append((time.perf_counter(), time.process_time(), self._process.memory_info().rss))

    def note(self, message: str) -> None:
        """Keeps."""
        self.notes.append(message)


def load_recipe_of(folder: Path, prompts: int, candidates: int, chunk: int, iterations: int, keep: str) -> Recipe:
    """A recipe over prompts that are written to ``folder``."""
    for name in ("train", "heldout"):
        lines = (f"{name} prompt {number}\n" for number in range(max(prompts, 4)))
        (folder / f"{name}.txt").write_text("".join(lines), encoding="utf-8")
    sampling = {"sampler": "euler", "steps": 2, "chunk": chunk}
    tree: dict[str, Any] = {
        "name": "load",
        "seed": 1,
        "iterations": iterations,
        "model": {"source": "random:tiny-flux", "resolution": 32},
        "prompts": {
            "train": str(folder / "train.txt"),
            "heldout": str(folder / "heldout.txt"),
            "per_iteration": prompts,
        },
        "rewards": [{"name": "colourfulness"}],
        "explore": {"candidates": candidates, "store_images": keep, **sampling},
        "select": {"keep": 4},
        "regenerate": {**sampling, "chunk": 4},
        "update": {"optimizer_steps": 1, "micro_batch": 8, "lora": {"rank": 2, "alpha": 4}},
        "evaluate": {"prompts": 2, "seeds": 2, "sampling": {"engine": {"name": "bf16"}, **sampling, "chunk": 2}},
        "audit": {"every": 0},
    }
    return parse_recipe(tree, {}, "load")


def measure_explore(folder: Path, prompts: int, candidates: int, chunk: int, keep: str) -> dict[str, float]:
    """Fill one pool, open it again and read it."""
    recipe = load_recipe_of(folder, prompts, candidates, chunk, 1, keep)
    watching = Watching()
    with quick_workers(), open_session(folder / "store", "load", recipe, watching) as session:
        job = plan_explore(session, 1, policy_after(session, 0))
        began = time.perf_counter()
        explore(session, job)
        took = time.perf_counter() - began
        again, nothing = _timed(lambda: explore(session, job))
        assert nothing.state == "Reused"
        opened, pool = _timed(lambda: job.open(session))
        read, rewards = _timed(lambda: pool.rewards(job.reward_ids()[0], candidates))
        assert np.isfinite(rewards).all()
        digest, _ = _timed(lambda: pool.ref(job.reward_ids(), candidates))
    blocks = watching.blocks[: prompts * -(-candidates // chunk) + 1]
    return {
        "blocks": len(blocks) - 1,
        "seconds": took,
        "seconds_a_block": took / (len(blocks) - 1),
        "second_half_to_first": _halves([when for when, _, _ in blocks]),
        "second_half_to_first_processor": _halves([busy for _, busy, _ in blocks]),
        "rss_mb_at_10_percent": blocks[len(blocks) // 10][2] / MEGABYTE,
        "rss_mb_at_100_percent": blocks[-1][2] / MEGABYTE,
        "open_seconds": opened,
        "read_rewards_seconds": read,
        "digest_seconds": digest,
        "verify_seconds": again,
        "store_mb": _size(folder / "store") / MEGABYTE,
    }


def measure_resume(folder: Path, iterations: int, resumes: int, seed: int) -> dict[str, float]:
    """Stop a run so many times, and compare what MLflow shows with the store."""
    from flows.publishing import read_summaries
    from flows.settings import Settings
    from solrl_tasks.store.root import Store
    from solrl_tasks.store.runs import view_run
    from solrl_tasks.tracking.rebuild import compare

    environment = {"SOLRL_HOME": str(folder), "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}
    settings = Settings.read(environ=environment)
    recipe = load_recipe_of(folder, 2, 8, 4, iterations, "none")
    drawn = random.Random(seed)
    took: dict[int, Cost] = {}
    starts: list[tuple[int, float]] = []
    left, shown = resumes, None
    while shown is None:
        # About as many stages between two stops as make the run last for all of them.
        watching = Watching(drawn.randint(1, 2 * 6 * iterations // (resumes + 1)) if left else None)
        left -= 1
        with suppress(Stopped):
            shown = _go_on(settings, recipe, watching, took, starts)
        assert not watching.notes, watching.notes
    summaries = read_summaries(view_run(Store(settings.store_root), "load"))
    differences = compare(summaries, shown)
    assert differences == (), differences
    assert len(summaries) == iterations + 1
    times = [took[step] for step in sorted(took) if step > 0]
    late, early = times[len(times) // 2 :], times[: len(times) // 2]
    reached, seconds = starts[-1]
    return {
        "iterations": iterations,
        "starts": len(starts),
        "values_in_mlflow": sum(len(summary.metrics) + len(summary.stderr) for summary in summaries),
        "seconds_an_iteration": sum(wall for wall, _ in times) / len(times),
        "second_half_to_first": sum(wall for wall, _ in late) / sum(wall for wall, _ in early),
        "second_half_to_first_processor": sum(busy for _, busy in late) / sum(busy for _, busy in early),
        "last_start_found_committed": reached,
        "last_start_seconds_a_committed_iteration": seconds / max(1, reached),
        "mlflow_kb_an_iteration": (folder / "mlflow.db").stat().st_size / 1e3 / iterations,
        "store_kb_an_iteration": _size(folder / "store") / 1e3 / iterations,
    }


def _go_on(
    settings: Any, recipe: Recipe, watching: Watching, took: dict[int, Cost], starts: list[tuple[int, float]]
) -> Any:
    """A start of the run, until it is stopped or done; returns where it is shown."""
    from flows.publishing import Publisher

    began = time.perf_counter()
    starts.append((0, 0.0))
    with (
        quick_workers(),
        patch("flows.publishing.show_iteration"),  # Prefect has a measurement of its own
        open_session(settings.store_root, "load", recipe, watching) as session,
        Publisher(settings, session) as publisher,
    ):
        for step in range(recipe.iterations + 1):
            known = session.run.summary(step) is not None
            started, busy = time.perf_counter(), time.process_time()
            run_step(session, step)
            publisher.step_done(step)
            if not known:
                took[step] = time.perf_counter() - started, time.process_time() - busy
            else:
                starts[-1] = (step + 1, time.perf_counter() - began)
    return publisher.shown


def measure_prefect(folder: Path, iterations: int) -> dict[str, float]:
    """Run the flow on a server of its own, and look at its database as it goes on."""
    from flows.lifecycle import running_servers
    from flows.processes import free_port
    from flows.settings import Settings

    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
    settings = Settings.read(folder / "home", free_port(25_000 + os.getpid() % 10_000))
    settings.apply()
    recipe = load_recipe_of(folder, 2, 8, 4, iterations, "none")
    (folder / "load.yaml").write_text(recipe.model_dump_json(exclude_unset=True), encoding="utf-8")
    sizes: list[tuple[float, float]] = []
    database = settings.prefect_home / "prefect.db"

    def look(session: Session, step: int, *rest: Any) -> Any:
        sizes.append((time.perf_counter(), _database_bytes(database)))
        return run_step(session, step, *rest)

    with running_servers(settings, lambda line: print(line, file=sys.stderr)):
        from flows.train import train

        with quick_workers(), patch("solrl_tasks.stages.iteration.run_step", look):
            state = train(run_id="load", config=str(folder / "load.yaml"), return_state=True)
        assert state.is_completed(), state.message  # type: ignore[attr-defined]
    first, middle, last = sizes[1], sizes[len(sizes) // 2], sizes[-1]
    steps = (len(sizes) // 2 - 1, len(sizes) - 1 - len(sizes) // 2)
    return {
        "iterations": iterations,
        "seconds_an_iteration": (last[0] - first[0]) / (iterations - 1),
        "second_half_to_first": (last[0] - middle[0]) / steps[1] / ((middle[0] - first[0]) / steps[0]),
        "kb_an_iteration_first_half": (middle[1] - first[1]) / steps[0] / 1e3,
        "kb_an_iteration_second_half": (last[1] - middle[1]) / steps[1] / 1e3,
    }


def _database_bytes(path: Path) -> float:
    """Bytes of the pages that are in use, with what is still in the write-ahead log."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
        pages, free, size = (
            database.execute(f"pragma {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
    return float((pages - free) * size)


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = call()
    return time.perf_counter() - began, result


def _halves(times: list[float]) -> float:
    middle = len(times) // 2
    return (times[-1] - times[middle]) / (len(times) - 1 - middle) / ((times[middle] - times[0]) / middle)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main(arguments: list[str] | None = None) -> None:
    """Measure one thing and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["explore", "resume", "prefect"])
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--candidates", type=int, default=96)
    parser.add_argument("--chunk", type=int, default=24)
    parser.add_argument("--keep", choices=["none", "thumbnails", "lossless"], default="none")
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--resumes", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where it works; a temporary folder by default")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="solrl-load-", dir=options.folder) as name:
        folder = Path(name)
        if options.what == "explore":
            found = measure_explore(folder, options.prompts, options.candidates, options.chunk, options.keep)
        elif options.what == "resume":
            found = measure_resume(folder, options.iterations, options.resumes, options.seed)
        else:
            found = measure_prefect(folder, options.iterations)
    print(json.dumps({name: round(value, 6) for name, value in found.items()}, indent=1))


if __name__ == "__main__":
    main()
