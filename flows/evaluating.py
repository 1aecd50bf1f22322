"""An evaluation of a stored policy, from what was asked in plain words to what the store and MLflow hold."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.errors import UserError
from flows.home import open_store
from flows.parameters import require_ray
from flows.settings import Settings, find_config

if TYPE_CHECKING:
    from solrl_tasks.config.recipe import Recipe
    from solrl_tasks.stages.evaluations import PolicyEvaluation
    from solrl_tasks.stages.iteration import Call
    from solrl_tasks.stages.reporter import Reporter
    from solrl_tasks.store.root import Store
    from solrl_tasks.tracking.summary import Summary
    from solrl_tasks.workers.state import Role


@dataclass(frozen=True)
class Asked:
    """What is asked of an evaluation; None is what the run's recipe says.

    Attributes:
        run_id: run whose policy is measured.
        iteration: None is the last committed one.
        rewards: names; None is all that the recipe trains on or watches.
        heldout: other prompts, as ``prompts.heldout`` of a recipe names them.
        against: run whose policy it is compared with; None is the untrained model.
        config: the run's recipe file, where its prompts are files named from the recipe's folder.
        workers, actors, ray_address: who computes; see ``workers`` of a recipe. None is one device in this process.
    """

    run_id: str
    iteration: int | None = None
    role: "Role" = "ema"
    rewards: tuple[str, ...] | None = None
    prompts: int | None = None
    seeds: int | None = None
    steps: int | None = None
    guidance: float | None = None
    guidance_scale: float | None = None
    heldout: str | None = None
    against: str | None = None
    against_iteration: int | None = None
    against_role: "Role" = "ema"
    config: str | None = None
    workers: str | None = None
    actors: int | None = None
    ray_address: str | None = None


@dataclass(frozen=True)
class Evaluated:
    """What came of it. ``run_id`` is the run of the store that holds it, ``url`` its page in MLflow, if any, and
    ``report`` the file of its report."""

    run_id: str
    summary: "Summary"
    url: str
    report: str = ""


def evaluate_policy(settings: Settings, asked: Asked, reporter: "Reporter", call: "Call | None" = None) -> Evaluated:
    """Measure, commit, and show in MLflow; what is there already is not computed again.

    Raises:
        UserError: the run's prompts, or what was asked for, cannot be used.
        StudyError: there is no such policy.
    """
    from flows.publishing import Publisher
    from flows.report import draw_or_note
    from flows.report_artifact import show_report
    from solrl_tasks.stages.evaluations import measure_policy
    from solrl_tasks.stages.iteration import direct
    from solrl_tasks.stages.session import open_session

    base = find_config(asked.config).parent if asked.config else Path()
    recipe, evaluation = plan_evaluation(open_store(settings.home), asked, base)
    run_id = evaluation.run_id(recipe)
    with (
        open_session(settings.store_root, run_id, recipe, reporter, base) as session,
        Publisher(settings, session) as publisher,
    ):
        summary = measure_policy(session, evaluation, call or direct)
        drawn = draw_or_note(session.store, run_id, reporter.note)
    if drawn is not None:
        show_report(run_id, drawn.page, drawn.html, publisher.shown, reporter.note)
    url = publisher.shown.url if publisher.shown else ""
    return Evaluated(run_id, summary, url, str(drawn.html) if drawn else "")


def plan_evaluation(store: "Store", asked: Asked, base: Path) -> "tuple[Recipe, PolicyEvaluation]":
    """The recipe and the measurement that the words stand for, checked without loading weights. Raises as
    ``evaluate_policy``."""
    from solrl_tasks.prompts.errors import PromptsError
    from solrl_tasks.stages.evaluations import PolicyEvaluation, ask_rewards, evaluation_recipe
    from solrl_tasks.stages.recorded import PolicyName, resolve_policy
    from solrl_tasks.stages.session import prepare
    from solrl_tasks.store.runs import view_run

    policy = resolve_policy(store, PolicyName(asked.run_id, asked.iteration, asked.role))
    against = resolve_policy(store, PolicyName(asked.against, asked.against_iteration, asked.against_role))
    try:
        fields = _fields(asked, base)
        recipe = evaluation_recipe(view_run(store, asked.run_id).config, fields, asked.rewards)
        require_ray(recipe, {"actors": asked.actors, "ray_address": asked.ray_address}, f"evaluation of {asked.run_id}")
        prepare(recipe, base)
    except PromptsError as error:
        hint = "" if asked.config else "; name the run's recipe file as config if its prompts start from there"
        raise UserError(f"{error}{hint}") from error
    except (ValueError, LookupError) as error:
        raise UserError(str(error)) from error
    return recipe, PolicyEvaluation(policy, against, ask_rewards(recipe, asked.rewards))


def _fields(asked: Asked, base: Path) -> dict[str, Any]:
    from solrl_tasks.prompts.read import read_prompts

    count = asked.prompts
    if asked.heldout is not None and count is None:
        count = len(read_prompts(asked.heldout, base))
    return {
        "evaluate.prompts": count,
        "evaluate.seeds": asked.seeds,
        "evaluate.sampling.steps": asked.steps,
        "evaluate.guidance": asked.guidance,
        "evaluate.guidance_scale": asked.guidance_scale,
        "prompts.heldout": asked.heldout,
        "workers.kind": asked.workers,
        "workers.actors": asked.actors,
        "workers.address": asked.ray_address,
    }
