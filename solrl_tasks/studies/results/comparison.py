"""From the records of runs to findings."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from solrl_tasks.analysis.budgets import SHARES as BUDGET_SHARES
from solrl_tasks.analysis.budgets import at_budgets, common_budget
from solrl_tasks.analysis.curves import Curves
from solrl_tasks.analysis.estimates import Estimate, mean_estimate, paired_difference
from solrl_tasks.analysis.plateau import find_plateau
from solrl_tasks.analysis.progress import mean_curve, paired_curves
from solrl_tasks.analysis.time_to_reward import AtShare, time_to_reward
from solrl_tasks.config.words import counted
from solrl_tasks.studies.results.findings import (
    SECONDS_PER_HOUR,
    TAIL,
    Ablation,
    ArmFinding,
    Direct,
    Ended,
    NothingToReportError,
    Parity,
    Race,
    Results,
    Roles,
    Unit,
)
from solrl_tasks.studies.results.published import CANDIDATES, DIRECT, PARITY, RANKS, SPEEDUPS, STEPS
from solrl_tasks.studies.results.ranks import Ranking
from solrl_tasks.studies.results.times import RolloutTimes
from solrl_tasks.studies.results.verdicts import PARITY_MARGIN, Claim, at_least, direction, faster, parity
from solrl_tasks.studies.runs import ArmRecord

Groups = Mapping[str, Sequence[ArmRecord]]


def find_results(records: Sequence[ArmRecord], roles: Roles, iterations: int) -> Results:
    """Everything that the records tell, up to an iteration. Runs that are not as far are counted and left out.

    Raises:
        NothingToReportError: no run is as far, or their trained rewards differ.
    """
    groups = _complete(records, iterations)
    if not groups:
        reached = max((record.last_step for record in records), default=-1)
        raise NothingToReportError(
            f"none of {counted(len(records), 'run')} has {counted(iterations, 'iteration')} and two evaluations; the "
            "longest has "
            f"{max(reached, 0)}: run on, or report fewer iterations"
        )
    # The baseline explores no more than it keeps: the method says how many candidates there are.
    first = max((group[0] for group in groups.values()), key=lambda record: record.recipe.explore.candidates)
    rewards = sorted({record.reward for group in groups.values() for record in group})
    if len(rewards) > 1:
        raise NothingToReportError(f"runs are trained on different rewards: {', '.join(rewards)}")
    units: tuple[Unit, ...] = ("iterations", "measured device-seconds", "modelled GPU-hours")
    evaluate = first.recipe.evaluate
    return Results(
        reward=rewards[0],
        iterations=iterations,
        prompts=evaluate.prompts,
        prompt_seeds=evaluate.seeds,
        candidates=first.recipe.explore.candidates,
        keep=first.recipe.select.keep,
        hardware=tuple(sorted({record.hardware for group in groups.values() for record in group if record.hardware})),
        modelled_hardware=first.modelled.hardware,
        arms=tuple(_arm(group, records, iterations) for group in groups.values()),
        steps=_ablation(groups, roles.steps, roles.method, STEPS, "explore steps", iterations),
        candidates_ablation=_ablation(groups, roles.candidates, roles.method, CANDIDATES, "candidates", iterations),
        parity=tuple(
            _parity(groups, arm, roles, iterations)
            for arm in roles.races
            if arm not in (roles.baseline, roles.precise, roles.direct) and {arm, roles.precise} <= set(groups)
        ),
        direct=_direct(groups, roles, iterations),
        races=tuple(_race(groups, roles, unit, iterations) for unit in units if roles.baseline in groups),
    )


def add_measurements(found: Results, ranking: Ranking | None, times: tuple[RolloutTimes, ...], engine: str) -> Results:
    """The results with what was measured beside the runs, and what that says of the published figures.

    Args:
        engine: of the method, whose ranks were published.
    """
    return found.model_copy(
        update={
            "ranking": ranking,
            "rank_claims": () if ranking is None else _rank_claims(ranking, engine),
            "times": times,
            "time_claims": tuple(claim for one in times for claim in _time_claims(one)),
        }
    )


# Curves


def evaluations(records: Sequence[ArmRecord], iterations: int) -> list[int]:
    """Evaluated iterations that all records have, up to one."""
    steps = set.intersection(*(set(record.evaluated) for record in records))
    return sorted(step for step in steps if step <= iterations)


def to_curves(records: Sequence[ArmRecord], iterations: int, cost: Callable[[ArmRecord], float]) -> Curves:
    """Records of one arm as curves.

    Errors over prompts are those of the gain over the untrained model, on the same prompts and seeds: how hard the
    prompts are stands in every evaluation alike.

    Args:
        cost: of one iteration, in any unit.
    """
    steps = evaluations(records, iterations)
    gain = f"eval/gain_{records[0].reward}"
    return Curves(
        seeds=tuple(record.seed for record in records),
        places=np.array(steps, dtype=np.float64),
        rewards=np.array([_values(record, steps) for record in records]),
        costs=np.array([[cost(record) * step for step in steps] for record in records]),
        prompt_errors=np.array(
            [[record.evaluated[step].stderr.get(gain, 0.0) for step in steps] for record in records]
        ),
    )


def _values(record: ArmRecord, steps: Sequence[int]) -> list[float]:
    name = f"eval/{record.reward}"
    return [record.evaluated[step].metrics[name] for step in steps]


def _complete(records: Sequence[ArmRecord], iterations: int) -> dict[str, list[ArmRecord]]:
    groups: dict[str, list[ArmRecord]] = {}
    for record in records:
        if record.last_step >= iterations and len(evaluations([record], iterations)) > 1:
            groups.setdefault(record.arm.name, []).append(record)
    return groups


def _end(record: ArmRecord, iterations: int) -> float:
    trained = [step for step in evaluations([record], iterations) if step > 0]
    return float(np.mean(_values(record, trained[-TAIL:])))


def _ends(records: Sequence[ArmRecord], iterations: int) -> dict[int, float]:
    return {record.seed: _end(record, iterations) for record in records}


def _differences(
    after: Sequence[ArmRecord], before: Sequence[ArmRecord], iterations: int
) -> tuple[Estimate, dict[int, tuple[float, float]]]:
    """Of rewards at the end over seeds that both have, and the pairs."""
    mine, theirs = _ends(after, iterations), _ends(before, iterations)
    pairs = {seed: (mine[seed], theirs[seed]) for seed in mine if seed in theirs}
    first, second = ([pair[side] for pair in pairs.values()] for side in (0, 1))
    return paired_difference(np.array(first), np.array(second)), pairs


def _arm(records: Sequence[ArmRecord], every: Sequence[ArmRecord], iterations: int) -> ArmFinding:
    first, steps = records[0], evaluations(records, iterations)
    starts = np.array([_values(record, [0])[0] for record in records])
    ends = np.array([_end(record, iterations) for record in records])
    timing = None if first.timing is None else {k: v for k, v in first.timing.items() if k in first.arm.counted}
    return ArmFinding(
        name=first.arm.name,
        title=first.arm.title,
        note=first.arm.note,
        counted=tuple(sorted(first.arm.counted)),
        seeds=tuple(record.seed for record in records),
        left_out=sum(record.arm.name == first.arm.name for record in every) - len(records),
        places=tuple(steps),
        curve=tuple(mean_curve([_values(record, steps) for record in records])),
        end=mean_estimate(ends),
        gain=paired_difference(ends, starts),
        timed=timing,
        measured=measured_cost(records, iterations),
        modelled=first.modelled_seconds(),
    )


def measured_cost(records: Sequence[ArmRecord], iterations: int) -> float | None:
    """Device-seconds of one iteration's counted stages: of the run that was timed alone, or, where each of the runs had
    the device for itself, their mean; None where neither is known."""
    timed = records[0].timed_seconds()
    if timed is not None or any(record.shared for record in records):
        return timed
    return float(np.mean([[one.measured_seconds(step) for step in range(1, iterations + 1)] for one in records]))


# Tables


def _ablation(
    groups: Groups, arms: Mapping[int, str], method: str, published: Mapping[int, float], what: str, iterations: int
) -> Ablation | None:
    """Every value against the method's own; None where that, or every other, is missing."""
    found = {value: arm for value, arm in sorted(arms.items()) if arm in groups}
    reference = next((value for value, arm in found.items() if arm == method), None)
    if reference is None or len(found) < 2:
        return None
    base = groups[found[reference]]
    rows, claims = [], []
    for value, arm in found.items():
        difference, _ = _differences(groups[arm], base, iterations)
        known = published.get(value, math.nan)
        end = mean_estimate(np.array(list(_ends(groups[arm], iterations).values())))
        rows.append(Ended(value=value, arm=arm, end=end, difference=difference, published=known))
        if value != reference and value in published and reference in published:
            gap = published[reference] - known
            shown = f"{published[reference]:.4f} against {known:.4f}"
            over, _ = _differences(base, groups[arm], iterations)
            claims.append(direction(f"{reference} {what} less {value}", gap, over, "reward at the end", shown))
    return Ablation(reference=reference, rows=tuple(rows), claims=tuple(claims))


def _parity(groups: Groups, arm: str, roles: Roles, iterations: int) -> Parity:
    difference, pairs = _differences(groups[arm], groups[roles.precise], iterations)
    mine, theirs = (np.array([pair[side] for pair in pairs.values()]) for side in (0, 1))
    paired = [record for record in groups[roles.precise] if record.seed in pairs]
    gain = float(np.mean([_end(record, iterations) - _values(record, [0])[0] for record in paired])) if paired else 0.0
    return Parity(
        arm=arm,
        end=mean_estimate(mine),
        precise=mean_estimate(theirs),
        difference=difference,
        relative=mean_estimate(mine / theirs - 1),
        of_gain=difference.mean / gain if gain > 0 else math.nan,
        claim=_parity_claim(difference, gain, roles) if arm == roles.method else None,
    )


def _parity_claim(difference: Estimate, gain: float, roles: Roles) -> Claim:
    shown = ", ".join(f"{name} {100 * (ours / naive - 1):+.2f} %" for name, (naive, ours) in PARITY.items())
    margin = PARITY_MARGIN * max(gain, 0.0)
    says = (
        f"{roles.method} less {roles.precise} after equal iterations (equal: within {margin:.2g}, a tenth of the gain)"
    )
    return parity(says, shown, difference, margin, "reward at the end")


def _direct(groups: Groups, roles: Roles, iterations: int) -> Direct | None:
    if not {roles.precise, roles.direct} <= set(groups):
        return None
    precise, direct = groups[roles.precise], groups[roles.direct]
    seeds = [record.seed for record in precise if record.seed in {other.seed for other in direct}]
    if not seeds:
        return None
    steps = evaluations([*precise, *direct], iterations)
    sides = [[_values(r, steps) for seed in seeds for r in group if r.seed == seed] for group in (precise, direct)]
    over, _ = _differences(precise, direct, iterations)
    shown = f"{DIRECT.precise:g} against {DIRECT.direct:g}"
    says = "training on precise samples less training on low-precision ones"
    claims = [direction(says, DIRECT.precise - DIRECT.direct, over, "reward at the end", shown)]
    curves = to_curves(direct, iterations, lambda _: 1.0)
    plateau = find_plateau(curves) if len(curves.places) > TAIL else None
    if plateau is not None:
        fall = DIRECT.direct - DIRECT.direct_peak
        says = f"the last {plateau.tail} evaluations of training on low-precision samples, by a line"
        shown = f"{DIRECT.direct_peak:g} at its best, {DIRECT.direct:g} at the end"
        claims.append(direction(says, fall, plateau.rise, "change of reward", shown))
    return Direct(
        precise=roles.precise,
        direct=roles.direct,
        places=tuple(steps),
        difference=tuple(paired_curves(*sides)),
        direct_end=plateau,
        claims=tuple(claims),
    )


# Races


def _race(groups: Groups, roles: Roles, unit: Unit, iterations: int) -> Race:
    absent: dict[str, str] = {}
    curves: dict[str, Curves] = {}
    for name in (roles.baseline, *(arm for arm in roles.races if arm != roles.baseline)):
        if name not in groups:
            absent[name] = "no complete run"
            continue
        cost = _cost(groups[name], unit, iterations)
        if isinstance(cost, str):
            absent[name] = cost
            continue
        curves[name] = to_curves(groups[name], iterations, lambda _, cost=cost: cost)  # type: ignore[misc]
    baseline = curves.get(roles.baseline)
    if baseline is None or len(baseline.places) <= TAIL:
        why = absent.get(roles.baseline, f"{TAIL + 1} evaluations are needed")
        gone = {**absent, roles.baseline: f"{why}: nothing can be compared"}
        return Race(unit=unit, baseline=roles.baseline, plateau=None, arms={}, budgets={}, claims=(), absent=gone)
    paired = {name: one for name, one in curves.items() if set(one.seeds) & set(baseline.seeds)}
    absent |= {name: "no seed in common with the baseline" for name in curves if name not in paired}
    plateau = find_plateau(baseline)
    if plateau.gain.mean <= 0:
        absent[roles.baseline] = "it gains nothing: there is no reward to come to"
        arms: dict[str, tuple[AtShare, ...]] = {}
    else:
        arms = {name: time_to_reward(one, baseline) for name, one in paired.items() if name != roles.baseline}
    budgets = [share * common_budget(paired) for share in BUDGET_SHARES]
    return Race(
        unit=unit,
        baseline=roles.baseline,
        plateau=plateau,
        arms=arms,
        budgets={name: at_budgets(one, baseline, budgets) for name, one in paired.items()},
        claims=_race_claims(arms.get(roles.method, ()), roles, unit),
        absent=absent,
    )


def _cost(records: Sequence[ArmRecord], unit: Unit, iterations: int) -> float | str:
    """Of one iteration; or why it is not known."""
    if unit == "iterations":
        return 1.0
    if unit == "modelled GPU-hours":
        modelled = records[0].modelled_seconds()
        return records[0].modelled.reason if modelled is None else modelled / SECONDS_PER_HOUR
    measured = measured_cost(records, iterations)
    return "not timed with the device for itself" if measured is None else measured


def _race_claims(reached: Sequence[AtShare], roles: Roles, unit: Unit) -> tuple[Claim, ...]:
    """The method against the baseline in GPU-hours, which is what was published."""
    if unit != "modelled GPU-hours":
        return ()
    claims = []
    for one in reached:
        shown = ", ".join(f"{name} {known[one.share]:g}" for name, known in SPEEDUPS.items() if one.share in known)
        ours = one.speedup
        says = f"{roles.method} over {roles.baseline} to {100 * one.share:.0f} % of its gain, {unit}"
        between = (ours.of_mean_low, ours.of_mean_high)
        claims.append(faster(says, shown, ours.of_mean, *between, ours.pairs, not one.unresolved))
    return tuple(claims)


# Beside the runs


def _rank_claims(ranking: Ranking, engine: str) -> tuple[Claim, ...]:
    """The method's precision, at the recipe's explore steps, against precise samples of the fewest steps."""
    steps = min((row.reference_steps for row in ranking.rows), default=0)
    claims = []
    for row in ranking.rows:
        if row.reference_steps == steps and row.engine == engine:
            what = f"of {row.engine} in {row.steps} steps against {row.reference_engine} in {row.reference_steps}"
            claims.append(at_least(f"Spearman {what}", RANKS.spearman, row.spearman, "mean over prompts"))
            claims.append(at_least(f"Kendall {what}", RANKS.kendall, row.kendall, "mean over prompts"))
    return tuple(claims)


def _time_claims(times: RolloutTimes) -> tuple[Claim, ...]:
    best = times.best
    if best is None or best.over_precise is None or times.published is None:
        return ()
    return (
        Claim(
            says=f"a rollout in two stages ({best.name}) over one of all candidates in BF16, {times.source}",
            published=f"{times.published:.2f}",
            ours=best.over_precise,
            low=math.nan,
            high=math.nan,
            n=1,
            unit="times, both compiled, one measurement",
            agreement="agrees in direction" if best.over_precise > 1 else "disagrees",
        ),
    )
