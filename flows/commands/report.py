"""``solrl report``: a run or a study as one page."""

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import Home
from flows.console import say
from flows.home import open_store


def report(
    run: Annotated[str, typer.Argument(help="Run id, also of an evaluation or a study.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder to write a copy to; made if absent.  [default: none]")
    ] = None,
    home: Home = None,
) -> None:
    """Make the report of a run again from the store: one HTML file, and Markdown."""
    from flows.report import draw_report, export_report, where_to_read

    drawn = draw_report(open_store(home), run)
    if out is None:
        say(f"Report of {run}: {where_to_read(run, drawn.html)}")
        return
    say(f"Report of {run}: {drawn.html}")
    say(f"Copied to {export_report(drawn, out)}")
