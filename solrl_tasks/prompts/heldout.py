"""Which prompts are held out: never one that is trained on."""

from typing import Final

from solrl_tasks.config.recipe import HeldoutSplit
from solrl_tasks.config.words import counted
from solrl_tasks.prompts.errors import PromptsError, shown
from solrl_tasks.sampling.identity import share
from solrl_tasks.sampling.prompts import PromptSet

NAMED: Final = 3
"""Shared prompts that an error names; the others are counted."""


def split(prompts: PromptSet, how: HeldoutSplit, field: str = "prompts.heldout") -> tuple[PromptSet, PromptSet]:
    """Training and held-out prompts of one set; both keep their keys and their order.

    A prompt is held out or not by a hash of the seed and its own text, so that a line that is inserted, moved or
    removed moves no other prompt to the other side, and equal texts are always on one side.

    Args:
        field: of the recipe that asks for it, for messages.

    Raises:
        PromptsError: one of the two would be empty.
    """
    held = [share("heldout", how.seed, text) < how.fraction for text in prompts.texts]
    for what, wanted in (("held-out", True), ("training", False)):
        if wanted not in held:
            raise PromptsError(
                f"{field}: a fraction of {how.fraction:g} (seed {how.seed}) of {counted(len(prompts), 'prompt')} "
                "leaves "
                f"no {what} prompt: change the fraction or the seed, or give more prompts"
            )
    rows = range(len(prompts))
    return prompts.subset([row for row in rows if not held[row]]), prompts.subset([row for row in rows if held[row]])


def require_disjoint(train: PromptSet, heldout: PromptSet) -> None:
    """Refuse held-out prompts that are trained on, whatever their metadata.

    Raises:
        PromptsError: the message names some of them.
    """
    trained = set(train.texts)
    shared = list(dict.fromkeys(text for text in heldout.texts if text in trained))
    if shared:
        named = ", ".join(shown(text) for text in shared[:NAMED])
        more = f" and {len(shared) - NAMED} more" if len(shared) > NAMED else ""
        raise PromptsError(
            f"prompts.train and prompts.heldout share {counted(len(shared), 'prompt')}, such as {named}{more}: what "
            "is trained on "
            "measures nothing. Remove them from one, or give prompts.heldout: {fraction: 0.1} to split one source"
        )
