"""``solrl convert``: weights that are published as pickles, once into safetensors."""

from pathlib import Path
from typing import Annotated

import typer

from flows.console import format_bytes, say
from solrl_tasks.config.words import counted


def convert(
    reward: Annotated[str, typer.Argument(help="Reward that the weights are for, such as hpsv2.")],
    source: Annotated[Path, typer.Argument(help="The published file: .pt, .pth, or safetensors under the same names.")],
    folder: Annotated[Path, typer.Argument(help="Folder to write; must not exist.")],
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", help="Folder of a tokenizer to put beside the weights.")
    ] = None,
) -> None:
    """Turn a published checkpoint into a folder that the reward's option source takes. Nothing in it is run."""
    from solrl_tasks.rewards.checkpoints import convert as convert_checkpoint
    from solrl_tasks.rewards.checkpoints import find_checkpoint

    identity, checkpoint = find_checkpoint(reward)
    record = convert_checkpoint(identity, checkpoint, source, folder, tokenizer)
    say(f"{record.source}: {format_bytes(record.source_bytes)}, sha256 {record.source_sha256}")
    say(
        f"{counted(record.tensors, 'tensor')} with {record.parameters:,} parameters for {record.reward} are in {folder}"
    )
    if record.unused:
        say(f"Not used: {', '.join(record.unused)}")
    if record.published is False:
        say(f"Mind that this is not the published file ({checkpoint.file}), which has sha256 {checkpoint.sha256}")
    if not record.key_map_verified:
        say("The key map is unverified: every name and shape fits, but it was never tried on the published file.")
        say("Compare a score or two with the authors' code before you rely on it.")
    say(f"Use it with: {{name: {reward}, options: {{source: {folder}}}}}")
