"""Ways of making a prompt's images, by name."""

from dataclasses import dataclass
from typing import Final

PIPELINE: Final = "eager-pipeline"
"""The plain diffusers call."""
PRECISE: Final = "bf16"
"""The engine that regenerates."""
FULL: Final = "-full"
TWO_STAGE: Final = "-two-stage"
DEFAULT_ARMS: Final = (
    PIPELINE,
    f"{PRECISE}{FULL}",
    f"{PRECISE}{TWO_STAGE}",
    f"fp8{TWO_STAGE}",
    f"fp8{FULL}",
    f"nvfp4{TWO_STAGE}",
    f"nvfp4-emulated{TWO_STAGE}",
)


@dataclass(frozen=True)
class Plan:
    """An arm as its name says it: who explores at which share of the steps, and whether the kept are sampled again."""

    name: str
    engine: str
    two_stage: bool


def parse_arm(name: str) -> Plan:
    """What an arm's name means.

    Raises:
        ValueError: it means nothing.
    """
    if name == PIPELINE:
        return Plan(name, PIPELINE, False)
    for ending, two_stage in ((FULL, False), (TWO_STAGE, True)):
        if name.endswith(ending) and len(name) > len(ending):
            return Plan(name, name.removesuffix(ending), two_stage)
    raise ValueError(f"unknown arm {name!r}: there is {PIPELINE}, ENGINE{FULL} and ENGINE{TWO_STAGE}")
