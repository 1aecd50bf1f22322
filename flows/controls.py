"""The study of the controls of two-stage sampling: the same loop without its parts, at equal budgets."""

from typing import Any

from flows.arm_flow import Arms, Hours, Processes, Seeds, Timed, run_study
from flows.arm_study import DEFAULT_HARDWARE, Asked
from flows.closed import closed_flow
from flows.parameters import Iterations
from flows.settings import DEFAULT_CONFIG


@closed_flow("solrl-controls")
def controls(
    seeds: Seeds = [1, 2, 3],  # noqa: B006 (a tuple is no JSON list in the run form)
    iterations: Iterations = None,
    arms: Arms = None,
    parallel: Processes = 1,
    seconds: Hours = None,
    timing: Timed = 0,
    modelled_on: str = DEFAULT_HARDWARE,
    config: str = DEFAULT_CONFIG,
    plan: bool = False,
) -> Any:
    """What is each part of two-stage sampling worth? BF16 throughout, more precise steps, other precisions, lot.

    Every arm and seed is an ordinary run of the store. Those that exist go on where they stopped, and what arms share
    is computed once.

    Args:
        seeds: of training, each a run of every arm, a list.
        iterations: of every run.
        arms: names of the arms that run, a list; all that this machine can run if left out.
        parallel: processes, spread over all visible GPUs; measured seconds of those that share one are too high.
        seconds: after which runs end with the iteration they are in; the same call goes on.
        timing: iterations of a short run of each arm alone, for device-seconds that nothing shares; 0 is none.
        modelled_on: GPU whose stated rates the modelled cost is of.
        config: recipe file, from the current folder or the project's.
        plan: only tell what is there, what is missing and how long that takes; nothing is computed.
    """
    asked = Asked(
        study="controls",
        seeds=tuple(seeds),
        iterations=iterations,
        arms=None if arms is None else tuple(arms),
        parallel=parallel,
        seconds=seconds,
        timing=timing,
        modelled_on=modelled_on,
        config=config,
    )
    return run_study(asked, plan)
