"""What a report of a run is made from: the recipe, the committed summaries, and where it ran."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from solrl_tasks.analysis.estimates import Estimate, confidence_interval
from solrl_tasks.analysis.plots import Series
from solrl_tasks.config.recipe import ExtensionSpec, Recipe
from solrl_tasks.config.words import counted
from solrl_tasks.reports.page import Provenance
from solrl_tasks.reports.provenance import UNKNOWN, engine_kind, hardware_name, provenance
from solrl_tasks.tracking.devices import device_kind
from solrl_tasks.tracking.summary import Summary
from solrl_tasks.tracking.terminal import eval_names, hours_name


@dataclass(frozen=True)
class RunRecord:
    """A run, as its store holds it.

    Attributes:
        summaries: committed ones, in order; there is at least one.
        status: ``finished``, ``running``, ``interrupted`` or ``damaged``.
        environment: of the blocks, see ``provenance.joined``; empty where it is not known.
        folder: from a step to the folder that holds its images.
        unknown: pools of which it is not known, or not all of it, where they were computed: by key, why.
    """

    run_id: str
    recipe: Recipe
    summaries: Sequence[Summary]
    status: Literal["running", "finished", "interrupted", "damaged"]
    environment: Mapping[str, Any]
    folder: Callable[[int], Path]
    unknown: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.summaries:
            raise ValueError(f"run {self.run_id} has committed nothing yet, not even its baseline")

    @property
    def last(self) -> Summary:
        """The latest step."""
        return self.summaries[-1]

    @property
    def evaluated(self) -> list[Summary]:
        """The steps in which held-out rewards were measured."""
        return [summary for summary in self.summaries if any(name.startswith("eval/") for name in summary.metrics)]

    @property
    def held_out(self) -> list[str]:
        """Names of held-out rewards, in the recipe's order."""
        named = (*self.recipe.rewards, *self.recipe.evaluate.rewards)
        return eval_names(self.summaries, [reward.name for reward in named])

    @property
    def hours(self) -> str:
        """What hours of this run are hours of."""
        return hours_name(device_kind(self.environment))

    @property
    def hardware(self) -> str:
        """In words."""
        return hardware_name(self.environment) or "hardware not recorded"

    def engine(self, spec: ExtensionSpec) -> str:
        """An engine with whether it was real here."""
        return f"{spec.name} ({engine_kind(spec.name, str(self.environment.get('device_class', UNKNOWN)))})"

    def made_by(self, spec: ExtensionSpec | None, note: str = "") -> Provenance:
        """The line below what an engine made; None where none is concerned."""
        pools = len(self.unknown)
        lost = f"where {counted(pools, 'pool')} of the run came from is not known" if pools else ""
        note = "; ".join(part for part in (note, lost) if part)
        return provenance(self.environment, "" if spec is None else spec.name, note)

    def gain(self, reward: str) -> tuple[Estimate, tuple[float, float]] | None:
        """The last held-out gain of a reward with its 95 % interval over prompts; None where there is none."""
        found = [summary for summary in self.summaries if f"eval/gain_{reward}" in summary.metrics]
        if not found:
            return None
        name = f"eval/gain_{reward}"
        error = found[-1].stderr.get(name, float("nan"))
        estimate = Estimate(mean=found[-1].metrics[name], stderr=error, n=self.recipe.evaluate.prompts)
        return estimate, confidence_interval(estimate)

    def curve(self, label: str, name: str) -> Series | None:
        """A metric over the iterations that have it, with its standard errors where all of them do."""
        found = [summary for summary in self.summaries if name in summary.metrics]
        if not found:
            return None
        errors = [summary.stderr.get(name) for summary in found]
        known = [error for error in errors if error is not None]
        steps = [float(summary.step) for summary in found]
        values = [summary.metrics[name] for summary in found]
        return Series(label, steps, values, known if len(known) == len(errors) else None)
