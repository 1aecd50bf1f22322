"""What the runs came to: a record for every table and figure of the page."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pydantic import Field

from solrl_tasks.analysis.budgets import AtBudget
from solrl_tasks.analysis.estimates import Estimate, Figure
from solrl_tasks.analysis.plateau import Plateau
from solrl_tasks.analysis.time_to_reward import AtShare
from solrl_tasks.config.base import Frozen
from solrl_tasks.studies.results.ranks import Ranking
from solrl_tasks.studies.results.times import RolloutTimes
from solrl_tasks.studies.results.verdicts import Claim

TAIL: Final = 3
"""Evaluations whose mean is an arm's reward at the end: one alone has the noise of the last update in it."""
SECONDS_PER_HOUR: Final = 3600.0

Unit = Literal["iterations", "measured device-seconds", "modelled GPU-hours"]


class NothingToReportError(ValueError):
    """The runs do not make results, or do not yet."""


@dataclass(frozen=True)
class Roles:
    """Which arm is what in the tables; by name.

    Attributes:
        baseline: trains on all that it samples precisely: DiffusionNFT as published.
        precise: samples all candidates precisely at full steps.
        method: two stages with the low precision of the recipe.
        direct: trains on the samples of that precision.
        steps, candidates: the arm of every value of the two ablations.
        races: arms whose cost to a reward is compared with the baseline's.
    """

    baseline: str
    precise: str
    method: str
    direct: str
    steps: Mapping[int, str] = field(default_factory=dict)
    candidates: Mapping[int, str] = field(default_factory=dict)
    races: tuple[str, ...] = ()


class ArmFinding(Frozen):
    """An arm over its seeds.

    Attributes:
        left_out: seeds whose runs are not complete.
        places: iterations of the evaluations that all seeds have.
        curve: held-out trained reward there, over seeds.
        end: mean of the last evaluations of each seed; ``gain`` is that less the untrained model's.
        timed: device-seconds of one iteration by counted stage, of a run that had the device for itself.
        measured: their sum, or of the runs themselves where each had the device for itself; None where neither.
        modelled: seconds of the counted stages of one iteration; None where the hardware lacks a precision.
    """

    name: str
    title: str
    note: str
    counted: tuple[str, ...]
    seeds: tuple[int, ...]
    left_out: int
    places: tuple[int, ...]
    curve: tuple[Estimate, ...]
    end: Estimate
    gain: Estimate
    timed: dict[str, float] | None
    measured: float | None
    modelled: float | None


class Ended(Frozen):
    """One value of an ablation.

    Attributes:
        difference: to the reference value, over seeds that both have.
    """

    value: int
    arm: str
    end: Estimate
    difference: Estimate
    published: Figure


class Ablation(Frozen):
    """One knob at several values, all else the same."""

    reference: int
    rows: tuple[Ended, ...]
    claims: tuple[Claim, ...]


class Parity(Frozen):
    """An arm beside one that samples everything precisely, at equal iterations.

    Attributes:
        relative: difference over the precise arm's reward, seed by seed.
        of_gain: the difference over the precise arm's mean gain, over the same pairs.
        claim: of the method; what others would have to show was not published.
    """

    arm: str
    end: Estimate
    precise: Estimate
    difference: Estimate
    relative: Estimate
    of_gain: Figure
    claim: Claim | None


class Direct(Frozen):
    """Training on low-precision samples beside training on precise ones.

    Attributes:
        difference: precise minus direct at each of ``places``, seed by seed.
        direct_end: whether the direct arm's tail rises, falls or is flat.
    """

    precise: str
    direct: str
    places: tuple[int, ...]
    difference: tuple[Estimate, ...]
    direct_end: Plateau | None
    claims: tuple[Claim, ...]


class Race(Frozen):
    """Costs to come to a reward, in one unit.

    Attributes:
        absent: why arms, or all of them, are not here.
    """

    unit: Unit
    baseline: str
    plateau: Plateau | None
    arms: dict[str, tuple[AtShare, ...]]
    budgets: dict[str, tuple[AtBudget, ...]]
    claims: tuple[Claim, ...]
    absent: dict[str, str]


class Results(Frozen):
    """All that is reported.

    Attributes:
        iterations: of every run that counts.
        prompts, prompt_seeds: held-out prompts of an evaluation, and seeds of each.
        hardware: that computed the runs; several names where they differ.
        modelled_hardware: whose rates modelled hours stand for.
        absent: arms that cannot run on that hardware, and why.
        recipe: that all arms change.
        command: that made them.
    """

    reward: str
    iterations: int
    prompts: int
    prompt_seeds: int
    candidates: int
    keep: int
    hardware: tuple[str, ...]
    modelled_hardware: str
    arms: tuple[ArmFinding, ...]
    absent: dict[str, str] = Field(default_factory=dict)
    recipe: dict[str, Any] = Field(default_factory=dict)
    command: str = ""
    steps: Ablation | None = None
    candidates_ablation: Ablation | None = None
    parity: tuple[Parity, ...] = ()
    direct: Direct | None = None
    races: tuple[Race, ...] = ()
    ranking: Ranking | None = None
    rank_claims: tuple[Claim, ...] = ()
    times: tuple[RolloutTimes, ...] = ()
    time_claims: tuple[Claim, ...] = ()

    def arm(self, name: str) -> ArmFinding | None:
        """The arm of a name, if a run of it is complete."""
        return next((arm for arm in self.arms if arm.name == name), None)

    @property
    def claims(self) -> tuple[Claim, ...]:
        """All of them, in the order of the tables."""
        ablations = [one for one in (self.steps, self.candidates_ablation) if one is not None]
        return (
            *(claim for one in ablations for claim in one.claims),
            *(one.claim for one in self.parity if one.claim),
            *(self.direct.claims if self.direct else ()),
            *(claim for race in self.races for claim in race.claims),
            *self.rank_claims,
            *self.time_claims,
        )
