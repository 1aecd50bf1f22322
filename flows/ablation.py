"""The study of single knobs: a recipe with one field changed at a time, or in all combinations."""

from typing import Annotated, Any

from pydantic import Field

from flows.arm_flow import Arms, Hours, Processes, Seeds, Timed, run_study
from flows.arm_study import DEFAULT_HARDWARE, Asked
from flows.closed import closed_flow
from flows.parameters import Iterations
from flows.settings import DEFAULT_CONFIG

Factors = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]


@closed_flow("solrl-ablation")
def ablation(
    vary: Factors = ["steps"],  # noqa: B006 (a tuple is no JSON list in the run form)
    grid: bool = False,
    seeds: Seeds = [1, 2, 3],  # noqa: B006
    iterations: Iterations = None,
    arms: Arms = None,
    parallel: Processes = 1,
    seconds: Hours = None,
    timing: Timed = 0,
    modelled_on: str = DEFAULT_HARDWARE,
    config: str = DEFAULT_CONFIG,
    plan: bool = False,
) -> Any:
    """What does one knob change? The recipe beside itself with other values of a field.

    Every arm and seed is an ordinary run of the store. Those that exist go on where they stopped, and a changed value
    costs only what depends on it.

    Args:
        vary: factors, a list: FIELD=VALUE,VALUE, or one of steps, candidates, keep, selector, precision, objective and
            advantage with values or without.
        grid: all combinations of all values, rather than one factor at a time.
        seeds: of training, each a run of every arm, a list.
        iterations: of every run.
        arms: names of the arms that run, a list; all if left out.
        parallel: processes, spread over all visible GPUs; measured seconds of those that share one are too high.
        seconds: after which runs end with the iteration they are in; the same call goes on.
        timing: iterations of a short run of each arm alone, for device-seconds that nothing shares; 0 is none.
        modelled_on: GPU whose stated rates the modelled cost is of.
        config: recipe file, from the current folder or the project's.
        plan: only tell what is there, what is missing and how long that takes; nothing is computed.
    """
    asked = Asked(
        study="ablation",
        seeds=tuple(seeds),
        iterations=iterations,
        vary=tuple(vary),
        grid=grid,
        arms=None if arms is None else tuple(arms),
        parallel=parallel,
        seconds=seconds,
        timing=timing,
        modelled_on=modelled_on,
        config=config,
    )
    return run_study(asked, plan)
