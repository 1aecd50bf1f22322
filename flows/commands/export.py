"""``solrl export``: a trained adapter for other tools."""

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import Home
from flows.console import say
from flows.errors import UserError
from flows.home import open_store


def export(
    run: Annotated[str, typer.Argument(help="Run id.")],
    folder: Annotated[Path, typer.Argument(help="Folder to write to; made if absent.")],
    iteration: Annotated[
        int | None, typer.Option("--iteration", min=1, help="Which iteration.  [default: the last]")
    ] = None,
    home: Home = None,
) -> None:
    """Write the LoRA of a run in the format that diffusers loads: the one that its evaluation used."""
    from flows.publishing import export_adapter, read_summaries
    from solrl_tasks.store.runs import view_run
    from solrl_tasks.store.trims import require_untrimmed

    store = open_store(home)
    try:
        view = view_run(store, run)
        summaries = {s.step: s for s in read_summaries(view) if s.step > 0}
    except ValueError as error:
        raise UserError(str(error)) from error
    if not summaries:
        raise UserError(f"run {run} has no finished iteration yet, so there is nothing to export")
    step = max(summaries) if iteration is None else iteration
    if step not in summaries:
        raise UserError(f"run {run} has no finished iteration {step}; there are {min(summaries)} to {max(summaries)}")
    require_untrimmed(view, step)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: name a folder")
    written = export_adapter(store, view, summaries[step], folder)
    say(f"Iteration {step} of {run} is in {written}")
    say(f"Use it with: pipe.load_lora_weights({str(folder)!r})")
