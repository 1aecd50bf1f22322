"""The study of how far cheap exploration ranks as precise sampling does, on pools that are mostly there."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from prefect import flow, runtime
from prefect.states import Failed
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from flows.errors import is_for_people
from flows.home import STUDY_PREFIX
from flows.parameters import Count, Engine, Group, RunId, read_recipe
from flows.presence import present
from flows.reporting import current_reporter
from flows.settings import DEFAULT_CONFIG, Settings

if TYPE_CHECKING:
    from solrl_tasks.analysis.estimates import Estimate
    from solrl_tasks.studies.rank_fidelity import RankFidelity

Step = Annotated[int, Field(ge=0, le=100_000)] | SkipJsonSchema[None]
Steps = Annotated[list[Annotated[int, Field(ge=1, le=200)]], Field(min_length=1)]


@flow(name="solrl-rank-fidelity", persist_result=False)
def rank_fidelity(
    explore_steps: Steps = [2, 4, 6, 8],  # noqa: B006 (a tuple is no JSON list in the run form)
    candidates: Group = None,
    keep: Group = None,
    prompts: Count = 4,
    engine: Engine = None,
    policy_run: RunId = None,
    policy_step: Step = None,
    config: str = DEFAULT_CONFIG,
) -> Any:
    """Rank correlation of cheap exploration with precise sampling, by explore steps, on held-out prompts.

    Pools that an earlier study left are used again; where all are there, no weights are loaded.

    Args:
        explore_steps: the step counts to compare, a list.
        candidates: seeds for each prompt.
        keep: seeds kept for each prompt, which overlap and contrast are measured for; a quarter of the candidates
            where they are fewer than the recipe keeps.
        prompts: how many held-out prompts.
        engine: precision that explores.
        policy_run: run whose policy samples; the untrained model if left out.
        policy_step: iteration of that run, the last committed one if left out.
        config: recipe file, from the current folder or the project's.
    """
    try:
        asked = {"candidates": candidates, "keep": keep, "engine": engine}
        return _study(list(explore_steps), prompts, config, asked, (policy_run, policy_step))
    except Exception as error:
        if is_for_people(error):
            return Failed(message=str(error))
        raise


def _study(
    steps: list[int], prompts: int, config: str, asked: dict[str, Any], policy: tuple[str | None, int | None]
) -> dict[str, Any]:
    from solrl_tasks.stages.recorded import StudyError, recorded_policy
    from solrl_tasks.stages.session import open_session
    from solrl_tasks.stages.specs import BASE
    from solrl_tasks.stages.tasks import call_as_task
    from solrl_tasks.store.keys import digest
    from solrl_tasks.studies.rank_fidelity import base_study, measure_ranks

    settings = Settings.read()
    source, step = policy
    if source is None and step is not None:
        raise StudyError(f"policy_step is {step}, but of which run? Give policy_run too")
    if asked["keep"] is None and isinstance(asked["candidates"], int):
        kept = read_recipe(config, {})[0].select.keep
        asked["keep"] = max(2, asked["candidates"] // 4) if asked["candidates"] < kept else None
    recipe, base = read_recipe(config, asked)
    run_id = f"{STUDY_PREFIX}{Path(config).stem}-{digest([recipe.model_dump(mode='json'), source, step])[:8]}"
    with (
        present(settings, runtime.flow_run.id, run_id),
        open_session(settings.store_root, run_id, recipe, current_reporter(), base) as session,
    ):
        chosen = BASE if source is None else recorded_policy(session, source, step)
        study = base_study(session, prompts, steps, [recipe.explore.engine.name], chosen)
        result = measure_ranks(session, study, call_as_task)
    _show(result, run_id)
    return result.model_dump(mode="json")


def _show(result: "RankFidelity", run_id: str) -> None:
    from prefect.artifacts import create_markdown_artifact, create_table_artifact

    from solrl_tasks.tracking.artifacts import artifact_key

    rows = study_rows(result)
    create_table_artifact(rows, artifact_key(run_id, "ranks"), "Rank fidelity by explore steps")
    create_markdown_artifact(study_page(result, rows), artifact_key(run_id, "page"), "Rank fidelity")


def study_rows(result: "RankFidelity") -> list[dict[str, str]]:
    """A row for each proxy: engine, steps, its agreement with the reference, and what was computed for it."""
    return [
        {
            "engine": proxy.engine,
            "explore steps": str(proxy.steps),
            **{name.replace("_", " "): _shown(estimate) for name, estimate in proxy.metrics.items()},
            "blocks computed": str(proxy.computed),
        }
        for proxy in result.proxies
    ]


def _shown(estimate: "Estimate") -> str:
    return f"{estimate.mean:.3f} ± {estimate.stderr:.3f}" if estimate.n > 1 else f"{estimate.mean:.3f}"


def study_page(result: "RankFidelity", rows: list[dict[str, str]]) -> str:
    """The study as markdown."""
    head = list(rows[0])
    lines = [head, ["---"] * len(head), *(list(row.values()) for row in rows)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return (
        f"# Rank fidelity\n\n{result.prompts} held-out prompts, {result.candidates} candidates each, against "
        f"{result.reference_engine} at {result.reference_steps} steps. Overlap and contrast are of the "
        f"{result.keep} kept, best and worst; ± is one standard error over prompts.\n\n{table}\n"
    )
