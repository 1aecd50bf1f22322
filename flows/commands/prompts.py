"""``solrl prompts``: sets of prompts, looked at and made."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from flows.console import say
from flows.errors import UserError
from solrl_tasks.config.words import are, counted

app = typer.Typer(help="Look at a set of prompts, or make one.", no_args_is_help=True)
SHOWN: Final = 5


class Kind(StrEnum):
    """What made prompts are about."""

    composition = "composition"
    ocr = "ocr"


@app.command()
def show(
    source: Annotated[str, typer.Argument(help="Built-in set, file, folder, or hf:OWNER/NAME.")],
    split: Annotated[str | None, typer.Option("--split", help="Split of a dataset.")] = None,
    subset: Annotated[str | None, typer.Option("--subset", help="Subset of a dataset.")] = None,
    column: Annotated[str, typer.Option("--column", help="Column that holds the texts.")] = "prompt",
) -> None:
    """Read prompts as a recipe would, and show how many there are, and the first."""
    from solrl_tasks.config.recipe import PromptSource
    from solrl_tasks.prompts.errors import shown
    from solrl_tasks.prompts.read import read_prompts

    asked = {"split": split, "subset": subset, "column": None if column == "prompt" else column}
    given = {name: value for name, value in asked.items() if value is not None}
    prompts = read_prompts(PromptSource.model_validate({"source": source, **given}))
    different = len(set(prompts.texts))
    say(
        f"{counted(len(prompts), 'prompt')}"
        + ("" if different == len(prompts) else f", {counted(different, 'different text')}")
    )
    for prompt in prompts.prompts[:SHOWN]:
        more = ", ".join(sorted(prompt.metadata))
        say(f"  {shown(prompt.text)}" + (f"  with {more}" if more else ""))


@app.command()
def generate(
    kind: Annotated[Kind, typer.Argument(help="What they are about.")],
    count: Annotated[int, typer.Option("--count", min=1, max=1_000_000, help="How many.")],
    out: Annotated[Path, typer.Option("--out", help="File to write, .jsonl.")],
    seed: Annotated[int, typer.Option("--seed", help="Another seed makes others.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
) -> None:
    """Make prompts that say what must be seen: things that are counted, coloured and placed, or written words."""
    from solrl_tasks.prompts.generate import generate as make
    from solrl_tasks.store.atomic import write_text

    if out.suffix.lower() != ".jsonl":
        raise UserError(f"--out is {str(out)!r}: made prompts go to a file that ends in .jsonl")
    if out.exists() and not force:
        raise UserError(f"{out} is there already: name another file, or add --force")
    records = make(kind.value, count, seed)
    write_text(out, "".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records))
    say(f"{counted(len(records), 'prompt')} {are(len(records))} in {out}, such as: {records[0]['prompt']}")
