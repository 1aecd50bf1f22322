"""How the steps of a run were computed: with how many processes on the device, and on which hardware."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from solrl_tasks.reports.provenance import hardware_name
from solrl_tasks.store.atomic import read_sealed, write_sealed
from solrl_tasks.store.errors import DamagedError
from solrl_tasks.store.runs import RunView
from solrl_tasks.tracking.summary import StageCost

_FILE: Final = "execution.json"


@dataclass(frozen=True)
class Execution:
    """What was noted of a run.

    Attributes:
        steps: processes that shared the device, by step.
        environment: that computed it, as blocks of the store record it; empty where nothing was noted.
    """

    steps: dict[int, int] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def hardware(self) -> str:
        """The device in words; empty where nothing was noted."""
        return hardware_name(self.environment)

    @property
    def processes(self) -> int | None:
        """The most that ever shared the device; None where nothing was noted."""
        return max(self.steps.values(), default=None)


def read_execution(view: RunView) -> Execution:
    """What was noted of a run; nothing where the file is absent or damaged: it decides no result."""
    try:
        noted = read_sealed(view.path / _FILE)
        steps = {int(step): int(processes) for step, processes in noted["steps"].items()}
        return Execution(steps, dict(noted["environment"]))
    except (FileNotFoundError, DamagedError, KeyError, TypeError, ValueError):
        return Execution()


def note_execution(view: RunView, step: int, processes: int, environment: Mapping[str, Any]) -> None:
    """Note how a step was computed; what was noted of it before stays."""
    before = read_execution(view)
    if step in before.steps:
        return
    steps = {str(number): count for number, count in sorted({**before.steps, step: processes}.items())}
    write_sealed(view.path / _FILE, {"steps": steps, "environment": dict(before.environment or environment)})


def stage_seconds(name: str, cost: StageCost) -> float:
    """What a stage of an iteration cost, re-used blocks included.

    Quantisation is an effect on a device that nothing re-uses: of it there is only what the run itself spent.
    """
    return cost.device_seconds if name == "quantize" else cost.attributed_seconds
