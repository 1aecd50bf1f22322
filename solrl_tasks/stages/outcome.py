"""What a stage reports."""

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field, JsonValue

from solrl_tasks.config.base import Frozen
from solrl_tasks.config.words import counted
from solrl_tasks.store.refs import Ref


class StageOutcome(Frozen):
    """The end of one call of a stage.

    Attributes:
        stage: explore, select, ...
        state: ``Reused`` where the store held everything, ``Skipped`` where nothing was asked for.
        ref: what the stage made or found.
        message: one line for people.
        seconds: wall seconds of this call.
        device_seconds: spent on a device by this call.
        attributed_seconds: what the result cost whoever paid for it.
        details: counts and findings that the summary takes up.
    """

    stage: str
    state: Literal["Completed", "Reused", "Skipped"]
    ref: Ref | None = None
    message: str = ""
    seconds: float = 0.0
    device_seconds: float = 0.0
    attributed_seconds: float = 0.0
    details: dict[str, JsonValue] = Field(default_factory=dict)


def shown_actors(seconds: Mapping[str, float]) -> str:
    """What several actors did of a stage, for the end of its message; nothing where there was one."""
    if len(seconds) < 2:
        return ""
    return f"; {counted(len(seconds), 'actor')} busy {min(seconds.values()):.1f} to {max(seconds.values()):.1f} s"


def failure_note(stage: str, failures: Sequence[str]) -> str:
    """What a person is told of images that could not be scored."""
    return f"{stage}: images could not be scored, the first failure was: {failures[0]}"
