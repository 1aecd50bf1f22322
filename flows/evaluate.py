"""The evaluation flow: any stored policy, any rewards, beside the untrained model or another policy."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from prefect import runtime
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from flows.closed import closed_flow
from flows.ending import failed_by
from flows.evaluating import Asked, evaluate_policy
from flows.parameters import (
    RUN_ID_PATTERN,
    Actors,
    Guidance,
    GuidanceScale,
    Iteration,
    Prompts,
    RayAddress,
    RunId,
    Steps,
    Workers,
)
from flows.presence import present
from flows.reporting import current_reporter
from flows.settings import Settings

if TYPE_CHECKING:
    from flows.evaluating import Evaluated

Policy = Annotated[str, Field(pattern=RUN_ID_PATTERN)]
Role = Literal["ema", "current", "old"]
Names = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)] | SkipJsonSchema[None]
Text = Annotated[str, Field(min_length=1)] | SkipJsonSchema[None]


def _name() -> str:
    return f"evaluate-{runtime.flow_run.parameters['run_id']}"


@closed_flow("solrl-evaluate", _name)
def evaluate(
    run_id: Policy,
    iteration: Iteration = None,
    role: Role = "ema",
    rewards: Names = None,
    prompts: Prompts = None,
    seeds: Prompts = None,
    steps: Steps = None,
    guidance: Guidance = None,
    guidance_scale: GuidanceScale = None,
    heldout: Text = None,
    against: RunId = None,
    against_iteration: Iteration = None,
    against_role: Role = "ema",
    config: Text = None,
    workers: Workers = None,
    actors: Actors = None,
    ray_address: RayAddress = None,
) -> Any:
    """Score a run's policy on held-out prompts, and compare it pair by pair with the untrained model or another run's.

    Images and scores that are in the store are used again. A parameter that is left out has the value of the run.

    Args:
        run_id: run whose policy is measured.
        iteration: which iteration of it, the last committed one if left out.
        role: eval average (ema), trained policy (current) or sampling policy (old).
        rewards: names of the rewards that score, a list; all that the run trains on or watches if left out.
        prompts: how many held-out prompts.
        seeds: images for each prompt.
        steps: sampling steps.
        guidance: value for models with a guidance embedding.
        guidance_scale: scale of classifier-free guidance; 1 is none.
        heldout: other prompts, a file, folder or hf:OWNER/NAME; all of them if prompts is left out.
        against: run that it is compared with; the untrained model if left out.
        against_iteration: which iteration of that run, the last committed one if left out.
        against_role: which role of that policy.
        config: the run's recipe file, where prompts are files named from the recipe's folder.
        workers: who computes, one device in the process of the flow (inline) or actors of a Ray cluster (ray).
        actors: processes of one device each, under ray.
        ray_address: cluster to use instead of one that is started for the evaluation, under ray.
    """
    from solrl_tasks.stages.tasks import call_as_task

    asked = Asked(
        run_id=run_id,
        iteration=iteration,
        role=role,
        rewards=None if rewards is None else tuple(rewards),
        prompts=prompts,
        seeds=seeds,
        steps=steps,
        guidance=guidance,
        guidance_scale=guidance_scale,
        heldout=heldout,
        against=against,
        against_iteration=against_iteration,
        against_role=against_role,
        config=config,
        workers=workers,
        actors=actors,
        ray_address=ray_address,
    )
    settings = Settings.read()
    try:
        with present(settings, runtime.flow_run.id, runtime.flow_run.name):
            evaluated = evaluate_policy(settings, asked, current_reporter(), call_as_task)
    except Exception as error:
        return failed_by(error)
    _show(evaluated)
    return {"run_id": evaluated.run_id, "mlflow": evaluated.url, **evaluated.summary.model_dump(mode="json")}


def _show(evaluated: "Evaluated") -> None:
    from prefect.artifacts import create_markdown_artifact, create_table_artifact

    from solrl_tasks.tracking.artifacts import artifact_key
    from solrl_tasks.tracking.evaluation import evaluation_page, evaluation_rows

    summary, run_id = evaluated.summary, evaluated.run_id
    create_table_artifact(evaluation_rows(summary), artifact_key(run_id, "rewards"), "Held-out rewards")
    create_markdown_artifact(evaluation_page(summary), artifact_key(run_id, "page"), "Evaluation")
