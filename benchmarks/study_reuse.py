"""How much does the store save? The same study of arms twice: all of it, then none of it.

    python benchmarks/study_reuse.py --store reuse --vary keep --seeds 1,2 --iterations 3

The first pass must find an empty store: it computes every run, reads them and draws the report. The second asks for
the same. Both are timed in one process, so that starting Python and loading its libraries counts in neither; forward
passes, loads of weights and seconds of each part are printed, and the ratio of the whole.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from flows.arm_study import Asked, Settled, read_changes, read_seeds, read_study, settle
from flows.settings import DEFAULT_CONFIG
from solrl_tasks.config.words import counted
from solrl_tasks.reports.html import render_html
from solrl_tasks.store.root import Store
from solrl_tasks.studies.arms_page import arms_page
from solrl_tasks.studies.runs import Outcome, execute

GOAL = 50.0


def one_pass(root: Path, asked: Asked) -> dict[str, Any]:
    """Do the study once; seconds of its parts, forward passes and loads."""
    marks = [time.perf_counter()]
    settled = settle(asked)
    marks.append(time.perf_counter())
    outcomes = execute(root, settled.runs, asked.parallel)
    marks.append(time.perf_counter())
    _report(root, settled, outcomes)
    marks.append(time.perf_counter())
    failed = [str(outcome) for outcome in outcomes if outcome.state == "failed"]
    if failed:
        sys.exit("\n".join(failed))
    return {
        "settle": marks[1] - marks[0],
        "runs": marks[2] - marks[1],
        "report": marks[3] - marks[2],
        "whole": marks[3] - marks[0],
        "forwards": sum(outcome.forwards for outcome in outcomes),
        "loads": sum(outcome.loads for outcome in outcomes),
        "states": sorted({outcome.state for outcome in outcomes}),
    }


def _report(root: Path, settled: Settled, outcomes: list[Outcome]) -> None:
    study = read_study(Store.open(root), settled, outcomes)
    (root.parent / f"{root.name}-report.html").write_text(render_html(arms_page(study, [settled.asked.command()])))


def main() -> None:
    """Two passes and their ratio; exits with 1 where the second computed anything."""
    arguments = _arguments()
    if (arguments.store / "runs").exists():
        sys.exit(f"{arguments.store} holds runs already: the first pass has to find nothing")
    asked = Asked(
        study=arguments.study,
        seeds=read_seeds(arguments.seeds),
        iterations=arguments.iterations,
        vary=tuple(arguments.vary),
        arms=tuple(arguments.arms.split(",")) if arguments.arms else None,
        changes=read_changes(arguments.set),
        parallel=arguments.parallel,
        config=arguments.config,
    )
    first, second = one_pass(arguments.store, asked), one_pass(arguments.store, asked)
    ratio = first["whole"] / second["whole"]
    print(json.dumps({"command": asked.command(), "first": first, "second": second, "ratio": ratio}, indent=1))
    print(
        f"second pass: {counted(second['forwards'], 'forward pass', 'forward passes')}, {ratio:.0f} x faster (goal "
        f"{GOAL:g} x)"
    )
    sys.exit(0 if second["forwards"] == second["loads"] == 0 else 1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--study", choices=("controls", "ablation"), default="ablation")
    parser.add_argument("--vary", nargs="+", default=["keep"], metavar="FACTOR")
    parser.add_argument("--arms", default="", help="names with commas; all by default")
    parser.add_argument("--seeds", default="1", help="such as 1,2 or 1-8")
    parser.add_argument("--iterations", type=int, default=2)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--config", default=DEFAULT_CONFIG)
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE")
    return parser.parse_args()


if __name__ == "__main__":
    main()
