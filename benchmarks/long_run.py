"""Does a longer run hold its gain? Held-out reward over iterations, several seeds of one recipe.

    python benchmarks/long_run.py --store /tmp/long --iterations 30 --seeds 1 2 3 --out docs/images/long-run

Each seed is a run of its own (``<name>-seed<k>``) in one store, in a process of its own; a run that exists goes on
where it stopped, and without ``--iterations`` left to do this only draws. ``--set`` overrides recipe fields by dotted
name. ``--seconds`` stops a seed after so many seconds, at the end of an iteration.
Writes ``<out>.json`` and ``<out>.png``.
"""

import argparse
import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from solrl_tasks.analysis.plots import Series, reward_curve
from solrl_tasks.config.load import load_recipe
from solrl_tasks.config.recipe import Recipe
from solrl_tasks.config.words import counted
from solrl_tasks.stages.iteration import run_step
from solrl_tasks.stages.session import open_session
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import view_run

METRIC = "eval/scene"


def run_seed(store: str, run_id: str, recipe: str, deadline: float) -> None:
    """One run, until its last iteration or the deadline."""
    import torch

    torch.set_num_threads(1)
    with open_session(Path(store), run_id, Recipe.model_validate_json(recipe)) as session:
        for step in range(session.recipe.iterations + 1):
            started = time.time()
            summary = run_step(session, step)
            shown = summary.metrics.get(METRIC, float("nan"))
            print(f"{run_id} step {step:3d} {METRIC} {shown:.4f} ({time.time() - started:.1f} s)", flush=True)
            if time.time() > deadline:
                break


def collect(store: Path, run_ids: list[str]) -> dict[str, dict[int, dict[str, float]]]:
    """Metrics by run and step, read from the committed summaries."""
    opened = Store.open(store, create=False)
    return {
        run_id: {step: summary["metrics"] for step, summary in view_run(opened, run_id).summaries().items()}
        for run_id in run_ids
    }


def curve(metrics: dict[str, dict[int, dict[str, float]]], name: str) -> Series:
    """Mean over runs at the steps that all of them measured; the error is the standard error over runs."""
    steps = sorted(set.intersection(*[{s for s, m in run.items() if name in m} for run in metrics.values()]))
    values = np.array([[run[step][name] for step in steps] for run in metrics.values()])
    error = values.std(axis=0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.zeros(len(steps))
    return Series(f"{counted(len(values), 'seed')}", steps, values.mean(axis=0).tolist(), error.tolist())


def main() -> None:
    """Run, print, draw."""
    arguments = _arguments()
    overrides = dict(_override(text) for text in arguments.set) | {"iterations": arguments.iterations}
    name = arguments.name
    run_ids = [f"{name}-seed{seed}" for seed in arguments.seeds]
    context = multiprocessing.get_context("spawn")
    children = []
    for seed, run_id in zip(arguments.seeds, run_ids, strict=True):
        recipe = load_recipe(arguments.config, overrides | {"seed": seed})
        deadline = time.time() + arguments.seconds
        call = (str(arguments.store), run_id, recipe.model_dump_json(), deadline)
        children.append(context.Process(target=run_seed, args=call))
        children[-1].start()
    for child in children:
        child.join()
    metrics = collect(arguments.store, run_ids)
    held = curve(metrics, METRIC)
    for step, mean, error in zip(held.x, held.y, held.error or [], strict=True):
        print(f"step {step:3.0f}  {METRIC} {mean:.4f} ± {error:.4f} (over {counted(len(run_ids), 'seed')})")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.with_suffix(".json").write_text(json.dumps({"overrides": overrides, "runs": metrics}))
    arguments.out.with_suffix(".png").write_bytes(reward_curve([held], "scene", f"Held-out reward, {name}"))


def _override(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    return name, yaml.safe_load(value)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("configs/embedded.yaml"))
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--name", default="long")
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
