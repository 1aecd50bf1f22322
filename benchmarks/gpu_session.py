"""The measurements of docs/performance.md, one command after another, within a time.

    python benchmarks/gpu_session.py --out DIR --steps flux-rollout flux-sync flux-update --seconds 580

Every step is a ``solrl bench`` command in a process of its own: one that fails or runs out of time does not stop the
others, and what it had measured by then is kept. DIR gets ``<step>.json``, one ``session.log`` with all output, and
``tables.md``. ``--quick`` measures two arms by fewer repeats, to see that everything runs. ``--tiny`` takes the tiny
random models, so that the same commands run on a CPU in a minute or two. ``--list`` prints the steps and what they
are.
"""

import argparse
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SOLRL = (sys.executable, "-c", "from flows.cli import main; main()")
FAMILIES = ("flux", "sd3", "sana")
STOP_SECONDS = 40
"""For a command to stop what it started, before it is killed."""
AS_IN_RECIPES = {"sd3": ("--set", "shift=3")}
"""Fields of the model that the family's recipes set: dpm2 refuses the grid that SD3's pipeline comes with."""
LARGE = {"flux": "6", "sd3": "6", "sana": "24"}
"""Images together at 1024 px."""


@dataclass(frozen=True)
class Step:
    """One command. ``seconds`` is about what it takes on an H200: it is not begun with less than that left."""

    name: str
    command: tuple[str, ...]
    seconds: float


def full_steps() -> list[Step]:
    """At full size."""
    steps = []
    for family in FAMILIES:
        of = ("--family", family, *AS_IN_RECIPES.get(family, ()))
        heavy = {"flux": 1.0, "sd3": 0.6, "sana": 0.4}[family]
        steps += [
            Step(f"{family}-rollout", ("rollout", *of, "--profile"), 60 + 380 * heavy),
            Step(
                f"{family}-complete",
                ("rollout", *of, "--arms", "bf16-full,fp8-two-stage", "--complete", "all", "--repeats", "1"),
                60 + 240 * heavy,
            ),
            Step(
                f"{family}-rollout-1024",
                ("rollout", *of, "--resolution", "1024", "--chunk", LARGE[family]),
                90 + 320 * heavy,
            ),
            Step(f"{family}-sync", ("sync", *of), 45 + 90 * heavy),
            Step(f"{family}-update", ("update", *of), 45 + 60 * heavy),
            Step(f"{family}-iteration", ("iteration", *of), 90 + 330 * heavy),
        ]
    return [Step("ceiling", ("ceiling",), 40), *steps]


def quick(steps: Sequence[Step]) -> list[Step]:
    """The same with few repeats, two arms and small groups."""
    more = {
        "rollout": ("--timed", "2", "--repeats", "1", "--arms", "bf16-full,fp8-two-stage"),
        "sync": ("--swaps", "1"),
        "update": ("--samples", "8", "--repeats", "1"),
        "iteration": ("--candidates", "24", "--keep", "8", "--prompts", "1", "--iterations", "1"),
    }
    return [
        Step(step.name, (*step.command, *more.get(step.command[0], ())), 60 + step.seconds / 4)
        for step in steps
        if not step.name.endswith(("-complete", "-1024"))
    ]


def tiny(steps: Sequence[Step]) -> list[Step]:
    """The same commands on models so small that a CPU runs them."""
    rollout = ("--candidates", "6", "--keep", "4", "--explore-steps", "2", "--full-steps", "3", "--chunk", "2")
    small = {
        "rollout": (*rollout, "--timed", "2", "--repeats", "1", "--reward", "colourfulness", "--rank", "4"),
        "sync": ("--chunk", "2", "--rank", "4"),
        "update": ("--samples", "4", "--micro-batch", "2", "--full-steps", "3", "--repeats", "1", "--rank", "4"),
        "iteration": (*rollout, "--reward", "colourfulness", "--rank", "4", "--micro-batch", "2"),
    }
    made = []
    for step in steps:
        verb, *given = step.command
        if verb in small:
            family = given[given.index("--family") + 1]
            model = ("--source", f"random:tiny-{family}", "--resolution", "64", "--max-sequence-length", "16")
            given = [*given, *model, *small[verb]]
        made.append(Step(step.name, (verb, *given), 10))
    return made


def run(step: Step, out: Path, left: float, log: Path) -> str:
    """Run one step within ``left`` seconds; returns how it ended."""
    command = [*SOLRL, "bench", *step.command, "--json", str(out / f"{step.name}.json")]
    with log.open("a", encoding="utf-8") as file:
        print(f"\n$ solrl {shlex.join(command[len(SOLRL) :])}", file=file, flush=True)
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, text=True)
        try:
            code = process.wait(timeout=left)
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                process.wait(timeout=STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            return "out of time"
    return "done" if code == 0 else f"failed with exit code {code}"


def write_tables(out: Path, log: Path) -> None:
    """The tables of every report in the folder."""
    reports = sorted(str(path) for path in out.glob("*.json"))
    if reports:
        done = subprocess.run([*SOLRL, "bench", "table", *reports], capture_output=True, text=True, check=False)
        (out / "tables.md").write_text(done.stdout, encoding="utf-8")
        with log.open("a", encoding="utf-8") as file:
            file.write(done.stderr)


def main() -> int:
    """Run what was asked for; the exit code is the number of steps that did not end well."""
    arguments = _arguments()
    steps = full_steps()
    steps = quick(steps) if arguments.quick else steps
    steps = tiny(steps) if arguments.tiny else steps
    if arguments.list:
        for step in steps:
            print(f"{step.name:20s} about {step.seconds:3.0f} s  solrl bench {shlex.join(step.command)}")
        return 0
    known = {step.name: step for step in steps}
    unknown = [name for name in arguments.steps if name not in known]
    if unknown:
        print(f"unknown steps {', '.join(unknown)}: there is {', '.join(known)}", file=sys.stderr)
        return 2
    arguments.out.mkdir(parents=True, exist_ok=True)
    log, deadline, bad = arguments.out / "session.log", time.monotonic() + arguments.seconds, 0
    for step in [known[name] for name in arguments.steps] or steps:
        started, left = time.monotonic(), deadline - time.monotonic()
        ended = run(step, arguments.out, left, log) if left > step.seconds else f"not begun, {left:.0f} s are left"
        bad += ended != "done"
        print(f"{step.name:20s} {ended}, {time.monotonic() - started:.0f} s", flush=True)
    write_tables(arguments.out, log)
    return bad


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bench-results"), help="folder for reports, log and tables")
    parser.add_argument("--steps", nargs="+", default=[], metavar="STEP", help="which, in order; all if left out")
    parser.add_argument("--seconds", type=float, default=3e4, help="for everything together")
    parser.add_argument("--quick", action="store_true", help="few repeats")
    parser.add_argument("--tiny", action="store_true", help="tiny models, for a CPU")
    parser.add_argument("--list", action="store_true", help="print the steps")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
