"""What the command line prints: plain lines, tables, and errors without tracebacks."""

from typing import Final

from rich.console import Console

console: Final = Console(highlight=False, soft_wrap=True)
errors: Final = Console(highlight=False, soft_wrap=True, stderr=True)


def say(text: str = "") -> None:
    """Print a line; nothing in it is taken for markup."""
    console.print(text, markup=False)


def complain(text: str) -> None:
    """Print an error for people."""
    errors.print("error:", style="bold red", end=" ")
    errors.print(text, markup=False)


def format_bytes(count: float) -> str:
    """A number of bytes in words, such as ``1.4 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
