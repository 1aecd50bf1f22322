"""Where a measurement was made, and of which network."""

from solrl_tasks.bench.flops import ModelFlops
from solrl_tasks.config.base import Frozen


class Environment(Frozen):
    """Where and how a measurement was made.

    Attributes:
        hardware: in the words of the driver.
        device_class: ``cpu``, or ``sm_90`` and the like.
        driver: its version; empty on a CPU.
        libraries: versions by name, the interpreter's among them.
        command: as it was typed.
        started: UTC, ISO 8601.
    """

    hardware: str
    device_class: str
    driver: str
    threads: int
    libraries: dict[str, str]
    command: str
    started: str


class ModelFacts(Frozen):
    """Which network was measured, and at what size. ``flops`` are of one image and step."""

    family: str
    source: str
    resolution: int
    dtypes: dict[str, str]
    flops: ModelFlops
