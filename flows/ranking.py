"""A study of ranks, from what was asked in plain words to what the store and MLflow hold."""

import shlex
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.errors import UserError
from flows.home import nothing_there, study_id
from flows.parameters import read_recipe, read_usable
from flows.settings import DEFAULT_CONFIG, Settings

if TYPE_CHECKING:
    from solrl_tasks.config.recipe import Recipe
    from solrl_tasks.reports.page import Page
    from solrl_tasks.reports.stored import StudyFigures
    from solrl_tasks.stages.iteration import Call
    from solrl_tasks.stages.reporter import Reporter
    from solrl_tasks.store.runs import RunView
    from solrl_tasks.studies.plan import StudyPlan
    from solrl_tasks.studies.rank_fidelity import RankSettings
    from solrl_tasks.studies.rank_results import Measured, RankFidelity


@dataclass(frozen=True)
class Asked:
    """What is asked of a study; None is what the recipe says.

    Attributes:
        steps, engines, samplers, resolutions: of the proxies.
        references: step counts of the references.
        counts: each k of top-k and bottom-k.
        keep: a quarter of the candidates where these are named and no more than the recipe keeps.
        policy_run: run whose policy samples; None is the untrained model.
    """

    steps: tuple[int, ...]
    engines: tuple[str, ...] | None = None
    samplers: tuple[str, ...] | None = None
    resolutions: tuple[int, ...] | None = None
    references: tuple[int, ...] | None = None
    counts: tuple[int, ...] | None = None
    prompts: int | None = None
    candidates: int | None = None
    keep: int | None = None
    policy_run: str | None = None
    policy_step: int | None = None
    config: str = DEFAULT_CONFIG

    def command(self) -> str:
        """How the same is asked on the command line."""
        words = ["solrl", "study", "rank-fidelity"]
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None or (field.name == "config" and value == DEFAULT_CONFIG):
                continue
            shown = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            words += [f"--{field.name.replace('_', '-')}", shown]
        return shlex.join(words)


@dataclass(frozen=True)
class Ranked:
    """What came of it. ``run_id`` is the run of the store that holds it, ``summary`` the answer in a few sentences."""

    run_id: str
    summary: str
    measured: "Measured"


@dataclass(frozen=True)
class _Settled:
    recipe: "Recipe"
    base: Path
    ranks: "RankSettings"
    run_id: str


def plan_ranks(settings: Settings, asked: Asked) -> "StudyPlan":
    """What a study has and lacks. It loads no weights and makes nothing but a store. Raises as ``study_ranks``."""
    from solrl_tasks.stages.session import planning_session
    from solrl_tasks.store.root import Store
    from solrl_tasks.studies.plan import plan_pools
    from solrl_tasks.studies.rank_fidelity import make_study

    unmade = nothing_there(Store.find(settings.store_root), settings)
    settled = _settle(settings, asked)
    session = planning_session(settings.store_root, settled.run_id, settled.recipe, settled.base)
    return plan_pools(session, make_study(session, settled.ranks).jobs()).with_note(unmade)


def study_ranks(settings: Settings, asked: Asked, reporter: "Reporter", call: "Call | None" = None) -> Ranked:
    """Measure what is missing, compare, keep the result, and publish its report.

    Raises:
        UserError: what is asked contradicts itself.
        RecipeError, StudyError: a value is not usable; the message names it.
    """
    from flows.reporting import use_reporter
    from flows.study_publishing import publish_study
    from solrl_tasks.stages.iteration import direct
    from solrl_tasks.stages.session import open_session
    from solrl_tasks.studies.rank_fidelity import make_study
    from solrl_tasks.studies.rank_results import measure_ranks

    settled = _settle(settings, asked)
    with open_session(settings.store_root, settled.run_id, settled.recipe, reporter, settled.base) as session:
        study = make_study(session, settled.ranks)
        measured = measure_ranks(session, study, call or direct, asked.command())
        page, figures = _report(session.run, measured.result)
    with use_reporter(reporter):
        publish_study(settings, settled.run_id, page, figures.metrics, figures.curves)
    return Ranked(settled.run_id, page.summary, measured)


def ranks_report(view: "RunView") -> "tuple[Page, StudyFigures] | None":
    """The report of a study, made again from the result that its run keeps; None where it keeps no ranks.

    Raises:
        DamagedError: the result is damaged; the study run again makes it anew.
    """
    from solrl_tasks.studies.rank_results import read_result

    result = read_result(view)
    return None if result is None else _report(view, result)


def _report(view: "RunView", result: "RankFidelity") -> "tuple[Page, StudyFigures]":
    from solrl_tasks.reports.stored import StudyFigures
    from solrl_tasks.studies.rank_report import rank_curves, rank_metrics, rank_page

    return rank_page(result, view.config), StudyFigures(rank_metrics(result), rank_curves(result))


def _settle(settings: Settings, asked: Asked) -> _Settled:
    from solrl_tasks.store.root import Store
    from solrl_tasks.studies.rank_fidelity import name_policy, settle_settings

    recipe, base = read_usable(asked.config, {"candidates": asked.candidates, "keep": _keep(asked)})
    names = ("steps", "engines", "samplers", "resolutions", "references", "counts", "prompts")
    policy = {"policy_run": asked.policy_run, "policy_step": asked.policy_step}
    ranks = settle_settings(recipe, {name: getattr(asked, name) for name in names} | policy)
    ranks = name_policy(Store.open(settings.store_root), ranks)
    return _Settled(recipe, base, ranks, study_id("ranks", asked.config, ranks.digest(recipe)))


def _keep(asked: Asked) -> int | None:
    if asked.keep is not None or asked.candidates is None:
        return asked.keep
    all_kept = asked.candidates <= read_recipe(asked.config, {})[0].select.keep
    return max(2, asked.candidates // 4) if all_kept else None


def one_or_several(engine: str | None, engines: list[str] | None) -> tuple[str, ...] | None:
    """Engines named one way or the other.

    Raises:
        UserError: both are given.
    """
    if engine is not None and engines is not None:
        raise UserError(f"engine is {engine!r} and engines is {engines}: give one of the two")
    return (engine,) if engine is not None else None if engines is None else tuple(engines)


def plain_result(ranked: Ranked) -> dict[str, Any]:
    """Run, blocks computed now by pool, and the result without the values of single prompts."""
    from solrl_tasks.studies.rank_results import short

    measured = ranked.measured
    return {"run_id": ranked.run_id, "computed": dict(measured.computed), **short(measured.result)}
