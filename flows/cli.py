"""The command line: ``solrl``."""

import os
import sys
from pathlib import Path
from typing import Final, Never

import typer

from flows.commands import bench, pools, prompts, reward, runs, study, track
from flows.commands.convert import convert
from flows.commands.demo import demo
from flows.commands.doctor import doctor
from flows.commands.evaluate import evaluate
from flows.commands.export import export
from flows.commands.report import report
from flows.commands.train import train
from flows.commands.up import up
from flows.console import complain
from flows.errors import UserError, in_words, is_for_people
from flows.patience import stopped_waiting

ABOUT: Final = "Sol-RL experiments: explore cheaply, train precisely, pay for nothing twice."

app = typer.Typer(help=ABOUT, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
app.command()(demo)
app.command()(train)
app.command()(up)
app.command()(doctor)
app.add_typer(runs.app, name="runs")
app.add_typer(pools.app, name="pools")
app.add_typer(prompts.app, name="prompts")
app.add_typer(bench.app, name="bench")
app.add_typer(reward.app, name="reward")
app.add_typer(study.app, name="study")
app.command()(evaluate)
app.command()(export)
app.command()(report)
app.command()(convert)
app.add_typer(track.app, name="track")


def main() -> None:
    """Run a command; errors that a user can mend are told without a traceback."""
    # A user's own rewards are named as module:attribute and looked for in the current folder too.
    sys.path.insert(0, str(Path.cwd()))
    try:
        app()
    except Exception as error:
        if not is_for_people(error):
            raise
        complain(in_words(error))
        _leave(error.code if isinstance(error, UserError) else 1)
    except SystemExit as ended:
        _leave(ended.code)


def _leave(code: int | str | None) -> Never:
    if stopped_waiting() and isinstance(code, int):
        # Prefect would try for minutes more to send what it holds back, to a server that is gone.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
