"""The study of how far cheap exploration ranks as precise sampling does, on pools that are mostly there."""

from typing import TYPE_CHECKING, Annotated, Any

from prefect import runtime
from prefect.states import Completed
from pydantic import AfterValidator, Field, WithJsonSchema
from pydantic.json_schema import SkipJsonSchema

from flows.closed import closed_flow
from flows.ending import failed_by
from flows.parameters import Count, Engine, Group, KnownEngine, RunId
from flows.presence import present
from flows.ranking import Asked, one_or_several, plain_result, plan_ranks, study_ranks
from flows.reporting import current_reporter
from flows.settings import DEFAULT_CONFIG, Settings
from solrl_tasks.config.extensions import list_extensions

if TYPE_CHECKING:
    from solrl_tasks.studies.plan import StudyPlan


def _known_sampler(name: str) -> str:
    if name not in (known := list(list_extensions("sampler"))) and ":" not in name:
        raise ValueError(f"{name!r} is not one of {known}")
    return name


Step = Annotated[int, Field(ge=0, le=100_000)] | SkipJsonSchema[None]
StepCount = Annotated[int, Field(ge=1, le=200)]
Steps = Annotated[list[StepCount], Field(min_length=1)]
Engines = Annotated[list[KnownEngine], Field(min_length=1)] | SkipJsonSchema[None]
Sampler = Annotated[str, AfterValidator(_known_sampler), WithJsonSchema({"type": "string", "minLength": 1})]
Samplers = Annotated[list[Sampler], Field(min_length=1)] | SkipJsonSchema[None]
Side = Annotated[int, Field(ge=16, le=4096)]
Resolutions = Annotated[list[Side], Field(min_length=1)] | SkipJsonSchema[None]
Counts = Annotated[list[Count], Field(min_length=1)] | SkipJsonSchema[None]


@closed_flow("solrl-rank-fidelity")
def rank_fidelity(
    explore_steps: Steps = [2, 4, 6, 8],  # noqa: B006 (a tuple is no JSON list in the run form)
    candidates: Group = None,
    keep: Group = None,
    prompts: Count = 4,
    engine: Engine = None,
    engines: Engines = None,
    samplers: Samplers = None,
    resolutions: Resolutions = None,
    reference_steps: Steps = [10, 40],  # noqa: B006
    match_counts: Counts = None,
    policy_run: RunId = None,
    policy_step: Step = None,
    config: str = DEFAULT_CONFIG,
    plan: bool = False,
) -> Any:
    """How far cheap exploration ranks seeds as precise sampling does, on held-out prompts.

    Pools that an earlier study left are used again; where all are there, no weights are loaded.

    Args:
        explore_steps: the step counts to compare, a list.
        candidates: seeds for each prompt.
        keep: seeds kept for each prompt, which contrast, regret and true ranks are measured for; a quarter of the
            candidates where they are no more than the recipe keeps.
        prompts: how many held-out prompts.
        engine: precision that explores.
        engines: several of them, a list.
        samplers: solvers to compare, a list; the recipe's if left out.
        resolutions: sides in pixels to explore at, a list; the recipe's if left out.
        reference_steps: step counts of the precise references, a list.
        match_counts: each k of the match of the top k and the bottom k, a list; 4, 8 and 12 if left out.
        policy_run: run whose policy samples; the untrained model if left out.
        policy_step: iteration of that run, the last committed one if left out.
        config: recipe file, from the current folder or the project's.
        plan: only tell what is there, what is missing and how long that takes; nothing is computed.
    """
    settings = Settings.read()
    try:
        asked = Asked(
            steps=tuple(explore_steps),
            engines=one_or_several(engine, engines),
            samplers=_tuple(samplers),
            resolutions=_tuple(resolutions),
            references=tuple(reference_steps),
            counts=_tuple(match_counts),
            prompts=prompts,
            candidates=candidates,
            keep=keep,
            policy_run=policy_run,
            policy_step=policy_step,
            config=config,
        )
        if plan:
            return _planned(plan_ranks(settings, asked))
        return _studied(settings, asked)
    except Exception as error:
        return failed_by(error)


def _studied(settings: Settings, asked: Asked) -> Any:
    from solrl_tasks.stages.tasks import call_as_task

    with present(settings, runtime.flow_run.id, "rank fidelity"):
        found = study_ranks(settings, asked, current_reporter(), call_as_task)
        return Completed(message=found.summary, data=plain_result(found))


def _planned(found: "StudyPlan") -> dict[str, Any]:
    from prefect.artifacts import create_table_artifact

    from solrl_tasks.studies.plan import plan_rows, plan_summary

    create_table_artifact(plan_rows(found), "rank-fidelity-plan", plan_summary(found))
    current_reporter().note(plan_summary(found))
    return found.as_json()


def _tuple(values: list[Any] | None) -> tuple[Any, ...] | None:
    return None if values is None else tuple(values)
