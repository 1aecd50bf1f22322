"""What can be known of a recipe's rewards before a run begins."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import JsonValue

from solrl_tasks.config.base import Frozen
from solrl_tasks.config.extensions import find_extension, parse_options
from solrl_tasks.config.recipe import RewardSpec
from solrl_tasks.config.words import counted
from solrl_tasks.rewards.base import RewardError


def require_dependable(spec: RewardSpec) -> None:
    """Refuse a reward that selects and trains but need not answer.

    Where its scores are missing, candidates would drop out for no fault of theirs, or whole prompts.

    Raises:
        RewardError: it has a weight, and its option ``required`` is false.
    """
    _, options = _found(spec)
    if spec.weight != 0 and getattr(options, "required", True) is False:
        raise RewardError(
            f"reward {spec.name!r} has the weight {spec.weight:g} but is not required: a candidate without its score "
            "could not be compared with the others. Set weight: 0 to watch it, or required: true"
        )


def require_fitting(spec: RewardSpec, prompts: Iterable[tuple[str, Mapping[str, JsonValue]]], where: str) -> None:
    """Refuse a reward that selects and trains but cannot score some of the prompts: their candidates would all be
    sampled for nothing.

    Only rewards that have a ``check_prompt(prompt, metadata, options)`` know before they see an image.

    Args:
        prompts: texts and metadata.
        where: the field that the prompts come from, for the message.

    Raises:
        RewardError: it has a weight, and a prompt does not fit; the message names the first.
    """
    extension, options = _found(spec)
    check = getattr(extension, "check_prompt", None)
    if check is None or spec.weight == 0:
        return
    faults: list[str] = []
    count = 0
    for text, metadata in prompts:
        count += 1
        try:
            check(text, metadata, options)
        except ValueError as error:
            faults.append(f"prompt {count} ({text!r}): {error}")
    if faults:
        raise RewardError(
            f"reward {spec.name!r} cannot score {len(faults)} of the {counted(count, 'prompt')} of {where}, the first "
            "is "
            f"{faults[0]}. Take these prompts out, or set weight: 0 to watch the reward where it can score"
        )


def _found(spec: RewardSpec) -> tuple[Any, Frozen | None]:
    extension = find_extension("reward", spec.use or spec.name)
    return extension, parse_options("reward", extension, dict(spec.options))
