"""Results of the embedded model beside the published ones: controls, ablations, ranks, times.

    python benchmarks/results.py --store results --out results-report --parallel 12 --seconds 450 --micro-batch 96

Three parts of work, each going on where it stopped: ``timing`` runs every control alone on the device for a few
iterations, ``ranks`` fills pools of the untrained model, ``runs`` trains every arm with every seed, several at a time
in processes of one device, seed by seed. After ``--seconds`` each run ends with the iteration it is in, and the same
command goes on later. Then a report is made of what is complete: ``report.json``, ``report.md``, ``report.html`` and
plots.

``--report`` only makes the report, from the store; ``--from report.json`` from that file alone, without a store.
``--docs docs/results.md`` also puts tables and plots between the marks of that page. ``--iterations`` below those of
the runs reports them up to there. ``--bench`` takes reports of ``solrl bench rollout`` for the times of full-size
models.
"""

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from solrl_tasks.bench.reports.file import ReportError, read_report
from solrl_tasks.config.load import RecipeError, load_recipe
from solrl_tasks.config.words import are, counted
from solrl_tasks.engines.base import Availability
from solrl_tasks.reports.html import render_html
from solrl_tasks.reports.markdown import render_markdown
from solrl_tasks.store.root import Store
from solrl_tasks.studies.arms import ArmError, ArmRun
from solrl_tasks.studies.families import Available, availability_on
from solrl_tasks.studies.modelled import DEFAULT_HARDWARE
from solrl_tasks.studies.processes import ProcessDiedError, in_processes
from solrl_tasks.studies.results.comparison import add_measurements, find_results
from solrl_tasks.studies.results.drawings import draw
from solrl_tasks.studies.results.findings import NothingToReportError, Results
from solrl_tasks.studies.results.pages import MarksError, fill_docs, make_page, read_docs
from solrl_tasks.studies.results.plan import METHOD, ResultsPlan, Settings, plan_results
from solrl_tasks.studies.results.ranks import Filled, Ranking, RankPool, compare, fill, rank_pools
from solrl_tasks.studies.results.times import RolloutTimes, find_times
from solrl_tasks.studies.runs import Outcome, SilentWatcher, execute, read_runs
from solrl_tasks.studies.timing import plan_timing

PARTS = ("timing", "ranks", "runs")
RANKS = "ranks.json"


class Printer(SilentWatcher):
    """Says what became of each run."""

    def ended(self, outcome: Outcome) -> None:
        """A line."""
        if outcome.state != "there":
            print(outcome, flush=True)


def main() -> None:
    """Work, then report."""
    arguments = _arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    try:
        good = _main(arguments)
    except (NothingToReportError, MarksError, ReportError, RecipeError, ArmError) as error:
        sys.exit(str(error))
    sys.exit(0 if good else 1)


def _main(arguments: argparse.Namespace) -> bool:
    # What is wrong with files is said before the work, not after it.
    if arguments.docs is not None:
        read_docs(arguments.docs)
    times = find_times([read_report(file) for file in arguments.bench])
    if arguments.from_report is not None:
        found = Results.model_validate_json(arguments.from_report.read_text("utf-8"))
        claims = add_measurements(found, None, times, "").time_claims
        write(arguments, found.model_copy(update={"times": times, "time_claims": claims}) if times else found)
        return True
    plan = make_plan(arguments)
    good = arguments.report or work(arguments, plan)
    write(arguments, read(arguments, plan, times))
    return good


def make_plan(arguments: argparse.Namespace) -> ResultsPlan:
    """The arms that run on this device, or on the one that the report's folder remembers."""
    settings = Settings(
        iterations=arguments.iterations,
        every=arguments.every,
        candidates=arguments.candidates,
        keep=arguments.keep,
        micro_batch=arguments.micro_batch,
        execution=arguments.execution,
        changes=dict(_override(text) for text in arguments.set),
    )
    available = _available(arguments.out / "engines.json", arguments.report)
    plan = plan_results(load_recipe(arguments.config), settings, available, arguments.config.parent)
    return plan.choose(arguments.arms)


def work(arguments: argparse.Namespace, plan: ResultsPlan) -> bool:
    """All parts that were asked for, in order; returns whether nothing failed."""
    deadline = time.time() + arguments.seconds
    good = True
    for part in arguments.parts:
        started = time.time()
        if part == "timing":
            good &= _finish(arguments, timings(arguments, plan), 1, deadline)
        elif part == "ranks":
            good &= measure_ranks(arguments, plan, deadline)
        else:
            good &= _finish(arguments, runs(arguments, plan), arguments.parallel, deadline)
        print(f"{part}: {time.time() - started:.0f} s", flush=True)
    return good


def runs(arguments: argparse.Namespace, plan: ResultsPlan) -> list[ArmRun]:
    """Every arm with its seeds."""
    return plan.runs(arguments.seeds, arguments.ablation_seeds)


def timings(arguments: argparse.Namespace, plan: ResultsPlan) -> list[ArmRun]:
    """A short run of every control, alone."""
    return plan_timing(plan.base, plan.controls, arguments.timing_iterations)


def measure_ranks(arguments: argparse.Namespace, plan: ResultsPlan, deadline: float) -> bool:
    """Fill the pools of ranks, each in a process of its own, and keep what they say in ``ranks.json``."""
    pools = _rank_pools(arguments, plan, deadline)
    if read_ranks(arguments, pools) is not None:
        print("ranks: used again", flush=True)
        return True
    found: list[tuple[RankPool, Filled]] = []
    for pool, answer in in_processes(fill, pools, min(len(pools), arguments.parallel)):
        filled = Filled(error=str(answer)) if isinstance(answer, ProcessDiedError) else answer
        print(f"ranks {pool.label}: {'there' if filled.scores is not None else filled.error}", flush=True)
        found.append((pool, filled))
    try:
        ranking = compare(found, arguments.references, arguments.keep)
    except ValueError as error:
        print(f"ranks: {error}", flush=True)
        return all(filled.error.startswith("not begun") for _, filled in found if filled.error)
    (arguments.out / RANKS).write_text(ranking.model_dump_json(indent=1), encoding="utf-8")
    return True


def read_ranks(arguments: argparse.Namespace, pools: Sequence[RankPool]) -> Ranking | None:
    """What was kept of the ranks, if it is of these pools."""
    path = arguments.out / RANKS
    if not path.exists():
        return None
    ranking = Ranking.model_validate_json(path.read_text("utf-8"))
    if ranking.pools != tuple(sorted(pool.run_id for pool in pools)):
        print(f"{path} is of other settings and not used", flush=True)
        return None
    return ranking


def read(arguments: argparse.Namespace, plan: ResultsPlan, times: tuple[RolloutTimes, ...]) -> Results:
    """What the store, the ranks and the benches say.

    Raises:
        NothingToReportError: no run is complete.
    """
    store = Store.open(arguments.store, create=False)
    records = read_runs(store, runs(arguments, plan), arguments.hardware, timings(arguments, plan))
    found = find_results(records, plan.roles, arguments.iterations)
    ranking = read_ranks(arguments, _rank_pools(arguments, plan, 0.0))
    about = {"absent": dict(plan.absent), "recipe": plan.base.model_dump(mode="json"), "command": _command()}
    engine = plan.engine(METHOD) or plan.base.explore.engine.name
    return add_measurements(found, ranking, times, engine).model_copy(update=about)


def write(arguments: argparse.Namespace, found: Results) -> None:
    """The report's files, and the page of the documentation where one was named."""
    pictures = draw(found)
    page = make_page(found, pictures)
    files: dict[str, bytes] = {
        **render_markdown(page),
        **{f"{name}.png": png for name, png in pictures.items()},
        "report.html": render_html(page).encode("utf-8"),
        "report.json": found.model_dump_json(indent=1).encode("utf-8"),
    }
    for name, content in files.items():
        (arguments.out / name).write_bytes(content)
    if arguments.docs is not None:
        fill_docs(arguments.docs, found, pictures)
    print(page.summary)
    for claim in found.claims:
        print(f"- {claim.line}")


def _finish(arguments: argparse.Namespace, planned: Sequence[ArmRun], parallel: int, deadline: float) -> bool:
    left = max(0.0, deadline - time.time())
    outcomes = execute(arguments.store, planned, parallel, left, Printer())
    there = sum(outcome.state in ("there", "done") for outcome in outcomes)
    print(f"{there} of {counted(len(planned), 'run')} {are(there)} complete", flush=True)
    return all(outcome.state != "failed" for outcome in outcomes)


def _rank_pools(arguments: argparse.Namespace, plan: ResultsPlan, deadline: float) -> list[RankPool]:
    engines = [plan.engine(name) for name in (METHOD, "solrl-fp8", "bf16-explore")]
    names = [name for name in engines if name is not None]
    place = (arguments.store, plan.base, names, arguments.references, arguments.rank_prompts)
    return rank_pools(*place, deadline, plan.folder)


def _available(path: Path, report: bool) -> Available:
    """Engines of this device, noted for reports that are made elsewhere; of the noted one for a report."""
    if report and path.exists():
        noted = {name: Availability(**found) for name, found in json.loads(path.read_text("utf-8")).items()}
        return lambda name: noted.get(name, Availability(True, ""))
    from solrl_tasks.engines.base import report_engines
    from solrl_tasks.workers.numerics import default_device

    device = default_device()
    if not report:
        found = {name: vars(one) for name, one in report_engines(device).items()}
        path.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return availability_on(device)


def _command() -> str:
    without = [word for word in sys.argv[1:] if word != "--report"]
    return shlex.join(["python", "benchmarks/results.py", *without])


def _override(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    return name, yaml.safe_load(value)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, default=Path("results"))
    parser.add_argument("--out", type=Path, required=True, help="folder of the report")
    parser.add_argument("--config", type=Path, default=Path("configs/embedded.yaml"))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="of the work, in this order")
    parser.add_argument("--arms", nargs="+", help="of controls and ablations; all by default")
    parser.add_argument("--seeds", type=int, default=8, help="of every control")
    parser.add_argument("--ablation-seeds", type=int, default=4, help="of every other arm")
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--every", type=int, default=3, help="iterations between evaluations")
    parser.add_argument("--candidates", type=int, default=96)
    parser.add_argument("--keep", type=int, default=24)
    parser.add_argument("--micro-batch", type=int, help="rows of a forward and backward pass; the recipe's by default")
    parser.add_argument("--execution", choices=("eager", "compiled"), default="eager")
    parser.add_argument("--timing-iterations", type=int, default=3, help="of the short runs that are timed alone")
    parser.add_argument("--rank-prompts", type=int, default=48)
    parser.add_argument("--references", type=int, nargs="+", default=[10, 40], help="precise steps that ranks refer to")
    parser.add_argument("--hardware", default=DEFAULT_HARDWARE, help="whose nominal rates modelled hours take")
    parser.add_argument("--parallel", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument(
        "--bench", type=Path, nargs="+", default=[], metavar="FILE", help="reports of solrl bench rollout"
    )
    parser.add_argument("--docs", type=Path, help="page whose marked parts are filled, such as docs/results.md")
    parser.add_argument("--report", action="store_true", help="only read what was committed")
    parser.add_argument("--from", type=Path, dest="from_report", metavar="FILE", help="only read a report.json")
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE")
    return parser.parse_args()


if __name__ == "__main__":
    main()
