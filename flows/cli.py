"""The command line: ``solrl``."""

import sys

import typer

from flows.commands.up import up
from flows.console import complain
from flows.errors import UserError

app = typer.Typer(
    help="Sol-RL experiments: explore cheaply, train precisely, pay for nothing twice.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command()(up)


@app.callback()
def _root() -> None:
    """Sol-RL experiments: explore cheaply, train precisely, pay for nothing twice."""


def main() -> None:
    """Run a command; errors that a user can mend are told without a traceback."""
    try:
        app()
    except UserError as error:
        complain(str(error))
        sys.exit(error.code)
