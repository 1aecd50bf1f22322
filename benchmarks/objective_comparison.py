"""Which objective learns most from what? Held-out reward of every objective, with and without two-stage selection.

    python benchmarks/objective_comparison.py --store objectives --out docs/images/objectives --parallel 8 --seconds 500

Every arm and seed is an ordinary run of the store, several at a time in processes of one device, seed by seed. One that
exists goes on where it stopped; after ``--seconds`` each ends with the iteration it is in, and the same command goes
on later. ``--report`` only reads what was committed: it needs no device. ``--set`` overrides fields of all recipes by
dotted name, below what the arms set themselves.

All arms sample and train on the same number of images in the same number of optimizer steps; what two-stage selection
explores comes on top, and what a step costs is the objective's own: both are in the modelled hours.
With ``--tune`` short runs of another seed come first, one for each learning rate of each arm; the best are kept in
``tuning.json`` of ``--out`` and taken by every later call. Without it the rates are those of the recipes.
Writes ``report.json``, ``report.md``, ``gradients.json`` and plots into ``--out``.
"""

import argparse
import json
import math
import os
import sys
import time
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from solrl_tasks.bench.comparison.arms import ARMS, PlannedRun, Settings, arm_recipe, plan_runs, plan_tuning
from solrl_tasks.bench.comparison.report import NothingToCompareError, RunRecord
from solrl_tasks.bench.comparison.tables import rate_rows
from solrl_tasks.bench.comparison.tuning import ArmRates, choose_rates
from solrl_tasks.config.recipe import Recipe
from solrl_tasks.config.words import are, counted
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import RunView
from solrl_tasks.studies.processes import in_processes
from solrl_tasks.tracking.summary import Summary

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
TUNING = "tuning.json"


@dataclass(frozen=True)
class Task:
    """One run for one process; without a run it is the measurement of gradients."""

    store: str
    run_id: str
    recipe: str
    deadline: float
    gradients: str = ""
    samples: int = 0


def work(task: Task) -> str:
    """Do a task until its end or the deadline; returns what became of it. Nothing is raised."""
    if time.time() > task.deadline:
        return f"{task.run_id}: not begun"
    try:
        return _measure_gradients(task) if task.gradients else _run(task)
    except Exception:  # One arm that fails must not end the others; the driver exits with 1.
        return f"{task.run_id}: FAILED\n{traceback.format_exc()}"


def _run(task: Task) -> str:
    from solrl_tasks.stages.iteration import run_step
    from solrl_tasks.stages.session import open_session

    started = time.time()
    with open_session(Path(task.store), task.run_id, Recipe.model_validate_json(task.recipe)) as session:
        for step in range(session.recipe.iterations + 1):
            run_step(session, step)
            if time.time() > task.deadline:
                break
    end = "done" if step == session.recipe.iterations else "stopped by time"
    return f"{task.run_id}: {end} at iteration {step} ({time.time() - started:.0f} s)"


def _measure_gradients(task: Task) -> str:
    from solrl_tasks.bench.comparison.gradients import measure_gradients
    from solrl_tasks.prompts.read import read_sets
    from solrl_tasks.store.atomic import write_bytes
    from solrl_tasks.workers.device import Device
    from solrl_tasks.workers.numerics import default_device

    recipe = Recipe.model_validate_json(task.recipe)
    _, heldout = read_sets(recipe.prompts)
    texts = list(dict.fromkeys(prompt.text for prompt in heldout.prompts))[: max(1, task.samples // 4)]
    seeds = max(1, task.samples // len(texts))
    device = Device(recipe.model, default_device(), Path(task.store) / "cache" / "embeddings")
    found = measure_gradients(device, recipe.update.lora, texts, seeds, recipe.regenerate.steps)
    write_bytes(Path(task.gradients), found.model_dump_json(indent=1).encode())
    return f"gradients: done, {counted(found.samples, 'sample')}"


def unfinished(arguments: argparse.Namespace, runs: list[PlannedRun], settings: Settings) -> list[Task]:
    """The runs whose last step is not committed."""
    store, left = Store.open(arguments.store, create=True), []
    for run in runs:
        recipe = arm_recipe(run, settings, CONFIGS)
        if RunView(store, run.run_id).summary(recipe.iterations) is None:
            left.append(Task(str(arguments.store), run.run_id, recipe.model_dump_json(), arguments.deadline))
    return left


def tune(arguments: argparse.Namespace, settings: Settings) -> bool:
    """Try the learning rates that were not tried yet, and keep the best; returns whether all were tried."""
    short = replace(settings, iterations=arguments.tuning_iterations)
    runs = plan_tuning(arguments.arms)
    good = execute(unfinished(arguments, runs, short), arguments.parallel)
    found = choose_rates(read_records(Store.open(arguments.store, create=False), runs), short.iterations)
    (arguments.out / TUNING).write_text(json.dumps([one.model_dump(mode="json") for one in found], indent=1))
    for head, *cells in rate_rows(found)[1:]:
        print(f"{head}: {', '.join(cells)}", flush=True)
    return good and all(math.isfinite(end) for one in found for _, end in one.tried)


def tuned(out: Path) -> list[ArmRates]:
    """The learning rates that were chosen earlier."""
    path = out / TUNING
    return [ArmRates.model_validate(one) for one in json.loads(path.read_text())] if path.exists() else []


def planned(arguments: argparse.Namespace) -> list[PlannedRun]:
    """The runs of the comparison, with the learning rates that were chosen."""
    rates = {one.arm: one.chosen for one in tuned(arguments.out) if one.chosen is not None}
    return plan_runs(arguments.arms, arguments.seeds, rates)


def tasks(arguments: argparse.Namespace, settings: Settings) -> list[Task]:
    """What is left to do: runs whose last step is not committed, and gradients where they were not measured."""
    deadline, runs = arguments.deadline, planned(arguments)
    left = unfinished(arguments, runs, settings)
    path = arguments.out / "gradients.json"
    if arguments.gradients and not path.exists():
        recipe = arm_recipe(runs[0], settings, CONFIGS)
        call = (str(arguments.store), "gradients", recipe.model_dump_json(), deadline)
        left.insert(0, Task(*call, gradients=str(path), samples=arguments.gradients))
    elif arguments.gradients:
        print(f"gradients: used again from {path}", flush=True)
    done = len(runs) - sum(not task.gradients for task in left)
    print(f"{done} of {counted(len(runs), 'run')} {are(done)} done already", flush=True)
    return left


def execute(left: list[Task], parallel: int) -> bool:
    """Do all tasks, so many at a time; returns whether none failed."""
    good = True
    for task, answer in in_processes(work, left, parallel):
        said = answer if isinstance(answer, str) else f"{task.run_id}: FAILED, {answer}"
        good &= "FAILED" not in said
        print(said, flush=True)
    return good


def read_records(store: Store, runs: list[PlannedRun]) -> list[RunRecord]:
    """What runs have committed, with their modelled cost; runs that were not begun are named and left out."""
    from solrl_tasks.bench.comparison.work import model_work

    records, flops = [], None
    for run in runs:
        view = RunView(store, run.run_id)
        config = view.recorded()
        if config is None:
            print(f"{run.run_id}: not begun", flush=True)
            continue
        recipe = Recipe.model_validate(config)
        flops = flops or _flops(recipe)
        summaries = [Summary.model_validate(one) for one in view.summaries().values()]
        records.append(RunRecord(run, recipe.rewards[0].name, model_work(recipe, flops).total, summaries))
    return records


def _flops(recipe: Recipe) -> Any:
    import torch

    from solrl_tasks.bench.flops import count_flops
    from solrl_tasks.workers.device import Device

    device = Device(recipe.model, torch.device("cpu"))
    return count_flops(device.family, device.resident.embeddings.get(("a picture",)))


def report(arguments: argparse.Namespace) -> None:
    """Read, compare, print, draw."""
    from solrl_tasks.bench.comparison.gradients import GradientCosines
    from solrl_tasks.bench.comparison.report import compare
    from solrl_tasks.bench.comparison.tables import page, plots
    from solrl_tasks.bench.comparison.work import RATE

    store = Store.open(arguments.store, create=False)
    found = compare(read_records(store, planned(arguments)))
    path = arguments.out / "gradients.json"
    gradients = GradientCosines.model_validate_json(path.read_text()) if path.exists() else None
    found = found.model_copy(update={"gradients": gradients, "bf16_rate": RATE})
    text = page(found, tuned(arguments.out))
    print(text)
    (arguments.out / "report.md").write_text(text)
    (arguments.out / "report.json").write_text(found.model_dump_json(indent=1))
    for name, picture in plots(found).items():
        (arguments.out / f"{name}.png").write_bytes(picture)


def main() -> None:
    """Run what is left, then report."""
    arguments = _arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    settings = Settings(
        iterations=arguments.iterations,
        candidates=arguments.candidates,
        keep=arguments.keep,
        optimizer_steps=arguments.optimizer_steps,
        every=arguments.every,
        micro_batch=arguments.micro_batch,
        execution=arguments.execution,
        changes=dict(_override(text) for text in arguments.set),
    )
    arguments.deadline = time.time() + arguments.seconds
    if arguments.tune and not arguments.report and not tune(arguments, settings):
        sys.exit("not every learning rate was tried to its end: the same command goes on")
    good = arguments.report or execute(tasks(arguments, settings), arguments.parallel)
    try:
        report(arguments)
    except NothingToCompareError as error:
        sys.exit(f"no report: {error}")
    sys.exit(0 if good else 1)


def _override(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    return name, yaml.safe_load(value)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder of the report")
    parser.add_argument("--arms", nargs="+", default=list(ARMS), metavar="ARM", help=f"of {', '.join(ARMS)}")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--candidates", type=int, default=96, help="explored by two-stage selection")
    parser.add_argument("--keep", type=int, default=24, help="trained on, of each prompt")
    parser.add_argument("--optimizer-steps", type=int, default=8, help="of an iteration, for all objectives")
    parser.add_argument("--every", type=int, default=3, help="iterations between evaluations")
    parser.add_argument("--micro-batch", type=int, help="rows of a forward and backward pass; the recipes' by default")
    parser.add_argument("--execution", choices=("eager", "compiled"), default="eager")
    parser.add_argument("--gradients", type=int, default=32, help="samples whose gradients are compared; 0 is none")
    parser.add_argument("--parallel", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--tune", action="store_true", help="choose learning rates first, by short runs")
    parser.add_argument("--tuning-iterations", type=int, default=15)
    parser.add_argument("--report", action="store_true", help="only read what was committed")
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE")
    return parser.parse_args()


if __name__ == "__main__":
    main()
