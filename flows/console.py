"""What the command line prints: plain lines, tables, and errors without tracebacks."""

import shutil
import sys
from pathlib import Path
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

PIPE_WIDTH: Final = 200
"""Columns where there is no terminal to ask: tables in a file need not be cut."""

console: Final = Console(highlight=False)
if not console.is_terminal:
    console.width = PIPE_WIDTH
errors: Final = Console(highlight=False, stderr=True)


def say(text: str = "") -> None:
    """Print a line; nothing in it is taken for markup."""
    console.print(text, markup=False, soft_wrap=True)


def complain(text: str) -> None:
    """Print an error for people."""
    errors.print("error:", style="bold red", end=" ")
    errors.print(text, markup=False, soft_wrap=True)


def format_bytes(count: float) -> str:
    """A number of bytes in words, such as ``1.4 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def make_table(*columns: str) -> Table:
    """A plain table for lists."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table


def shown_command(name: str) -> str:
    """How a command of this environment is typed here: its name if the shell finds it, else its path.

    For what a terminal is told to type next. Errors and logs, which are read elsewhere too, say ``solrl``.
    """
    own = Path(sys.executable).parent / name
    found = shutil.which(name)
    if found is not None and Path(found).parent == own.parent:
        return name
    here = Path.cwd()
    return str(own.relative_to(here) if own.is_relative_to(here) else own)
