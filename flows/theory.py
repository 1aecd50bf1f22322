"""The study of what more candidates gain: theory, measurement, and the number that is worth its cost."""

from typing import Annotated, Any

from prefect import runtime
from prefect.states import Completed
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from flows.closed import closed_flow
from flows.ending import failed_by
from flows.gains import Asked, plain_result, plan_gains, study_gains
from flows.parameters import Engine, Group, Iteration, Prompts, RunId, Steps
from flows.presence import present
from flows.reporting import current_reporter
from flows.settings import Settings

PoolKey = Annotated[str, Field(pattern=r"^[0-9a-f]{4,64}$")] | SkipJsonSchema[None]
Text = Annotated[str, Field(min_length=1)] | SkipJsonSchema[None]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)] | SkipJsonSchema[None]


@closed_flow("solrl-theory")
def theory(
    run: RunId = None,
    explored: PoolKey = None,
    reference: PoolKey = None,
    reward: Text = None,
    prompts: Prompts = None,
    candidates: Group = None,
    explore_steps: Steps = None,
    engine: Engine = None,
    keep: Group = None,
    policy_run: RunId = None,
    policy_step: Iteration = None,
    config: Text = None,
    threshold: Positive = None,
    prices_from: RunId = None,
    explore_seconds: Positive = None,
    regenerate_seconds: Positive = None,
    update_seconds: Positive = None,
    plan: bool = False,
) -> Any:
    """How many candidates should be explored: contrast measured, exact and promised over their number, and its cost.

    The groups come from a run's audits, from two pools, or else from held-out prompts, of which only what the store
    lacks is sampled.

    Args:
        run: run whose audited groups are read.
        explored: key of a pool of explored candidates, or how it begins.
        reference: key of the pool of the same seeds sampled precisely.
        reward: which reward of the two pools, where they share several.
        prompts: how many held-out prompts; 8 if left out.
        candidates: seeds for each prompt.
        explore_steps: steps of the exploration.
        engine: precision that explores.
        keep: seeds kept for each prompt.
        policy_run: run whose policy samples; the untrained model if left out.
        policy_step: iteration of that run, the last committed one if left out.
        config: recipe file of the held-out groups.
        threshold: elasticity at which the marginal rule stops; 0.5 if left out.
        prices_from: run whose prices count: of a candidate, a kept one and its update.
        explore_seconds: device seconds of one candidate, where they are known otherwise, such as for other hardware.
        regenerate_seconds: those of regenerating one kept candidate.
        update_seconds: those of one kept candidate's part in an update.
        plan: only tell what is there, what is missing and how long that takes; nothing is computed.
    """
    settings = Settings.read()
    try:
        asked = Asked(
            run=run,
            explored=explored,
            reference=reference,
            reward=reward,
            prompts=prompts,
            candidates=candidates,
            steps=explore_steps,
            engine=engine,
            keep=keep,
            policy_run=policy_run,
            policy_step=policy_step,
            config=config,
            threshold=threshold,
            prices_from=prices_from,
            explore_seconds=explore_seconds,
            regenerate_seconds=regenerate_seconds,
            update_seconds=update_seconds,
        )
        return _planned(settings, asked) if plan else _studied(settings, asked)
    except Exception as error:
        return failed_by(error)


def _studied(settings: Settings, asked: Asked) -> Any:
    from solrl_tasks.stages.tasks import call_as_task

    with present(settings, runtime.flow_run.id, "theory"):
        found = study_gains(settings, asked, current_reporter(), call_as_task)
        return Completed(message=found.summary, data=plain_result(found))


def _planned(settings: Settings, asked: Asked) -> dict[str, Any]:
    from prefect.artifacts import create_table_artifact

    from solrl_tasks.studies.plan import plan_rows, plan_summary

    found = plan_gains(settings, asked)
    create_table_artifact(plan_rows(found), "theory-plan", plan_summary(found))
    current_reporter().note(plan_summary(found))
    return found.as_json()
