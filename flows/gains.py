"""A study of what more candidates gain, from what was asked in plain words to what the store and MLflow hold."""

import math
import shlex
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from flows.errors import UserError
from flows.home import nothing_there, open_store, study_id
from flows.parameters import read_recipe, read_usable
from flows.settings import DEFAULT_CONFIG, Settings

if TYPE_CHECKING:
    from solrl_tasks.config.recipe import Recipe
    from solrl_tasks.stages.iteration import Call
    from solrl_tasks.stages.recorded import PolicyName
    from solrl_tasks.stages.reporter import Reporter
    from solrl_tasks.store.root import Store
    from solrl_tasks.studies.evidence import Evidence
    from solrl_tasks.studies.plan import StudyPlan
    from solrl_tasks.studies.theory import Theory

PROMPTS: Final = 8
"""Held-out prompts, where nothing else is asked."""
OF_HELD_OUT: Final = ("prompts", "candidates", "steps", "engine", "policy_run", "policy_step", "config")
"""What can be asked only where the study samples for itself."""


@dataclass(frozen=True)
class Asked:
    """What is asked of a study. The groups come from a run's audits, from two pools, or else from held-out prompts.

    Attributes:
        run: whose audits are read.
        explored, reference: keys of two pools, or how they begin; ``reward`` says which, where they share several.
        prompts, candidates, steps, engine: of held-out groups; None is the recipe's, and 8 prompts.
        policy_run, policy_step: whose policy samples them; None is the untrained model.
        config: recipe of held-out groups; None is that of the embedded model.
        keep: K; None is the recipe's, or a quarter of the candidates.
        threshold: elasticity that the marginal rule stops at; None is the one of ``analysis.gain``.
        prices_from: run whose prices count, the update's among them.
        explore_seconds, regenerate_seconds, update_seconds: device seconds of a candidate, a kept one, and its update
            that are known otherwise, such as those of other hardware; they go before all others.
    """

    run: str | None = None
    explored: str | None = None
    reference: str | None = None
    reward: str | None = None
    prompts: int | None = None
    candidates: int | None = None
    steps: int | None = None
    engine: str | None = None
    keep: int | None = None
    policy_run: str | None = None
    policy_step: int | None = None
    config: str | None = None
    threshold: float | None = None
    prices_from: str | None = None
    explore_seconds: float | None = None
    regenerate_seconds: float | None = None
    update_seconds: float | None = None

    def command(self) -> str:
        """How the same is asked on the command line."""
        words = ["solrl", "study", "theory"]
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None:
                words += [f"--{field.name.replace('_', '-')}", str(value)]
        return shlex.join(words)

    def given(self) -> dict[str, Any]:
        """What was asked for, without what was left out."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True)
class Gained:
    """What came of it. ``run_id`` is the run of the store that holds it, ``summary`` the answer in a few sentences."""

    run_id: str
    summary: str
    theory: "Theory"


def plan_gains(settings: Settings, asked: Asked) -> "StudyPlan":
    """What the study has and lacks; loads no weights, computes nothing. Raises as ``study_gains``."""
    from solrl_tasks.stages.session import planning_session
    from solrl_tasks.store.root import Store
    from solrl_tasks.studies.evidence import pair_jobs
    from solrl_tasks.studies.plan import StudyPlan, plan_pools

    _check(asked)
    if asked.run is not None or asked.explored is not None:
        _ = _stored(open_store(settings.home), asked)
        return StudyPlan(())
    unmade = nothing_there(Store.find(settings.store_root), settings)
    recipe, base, policy = _held_out(settings, asked)
    session = planning_session(settings.store_root, _run_id(asked, recipe), recipe, base)
    return plan_pools(session, pair_jobs(session, asked.prompts or PROMPTS, policy).named()).with_note(unmade)


def study_gains(settings: Settings, asked: Asked, reporter: "Reporter", call: "Call | None" = None) -> Gained:
    """Sample what is missing, find the answer, and publish its report.

    Raises:
        UserError: what is asked contradicts itself.
        RecipeError, StudyError: a value is not usable; the message names it.
        MissingObjectError: there is no such run or pool.
    """
    from flows.reporting import use_reporter
    from flows.study_publishing import publish_study
    from solrl_tasks.analysis.gain import THRESHOLD
    from solrl_tasks.studies.theory import study_theory
    from solrl_tasks.studies.theory_page import theory_page

    _check(asked)
    if asked.run is not None or asked.explored is not None:
        store = open_store(settings.home)
        evidence, run_id = _stored(store, asked), _run_id(asked, None)
        _hold(store, run_id, evidence)
    else:
        evidence, run_id = _sampled(settings, asked, reporter, call)
    theory = study_theory(_priced(settings, evidence, asked), asked.threshold or THRESHOLD)
    page = theory_page(theory, [asked.command()], asked.given())
    with use_reporter(reporter):
        publish_study(settings, run_id, page, theory.metrics(), theory.curves())
    return Gained(run_id, page.summary, theory)


def plain_result(gained: Gained) -> dict[str, Any]:
    """Run and result as plain values."""
    return {"run_id": gained.run_id, **gained.theory.as_json()}


def _check(asked: Asked) -> None:
    given = asked.given()
    for name in ("threshold", "explore_seconds", "regenerate_seconds", "update_seconds"):
        if name in given and not 0 < given[name] < math.inf:
            raise UserError(f"{name} is {given[name]}: give a number above 0, or leave it out")
    if (asked.explored is None) != (asked.reference is None):
        raise UserError("explored and reference are the two pools of one comparison: give both keys, or neither")
    if asked.run is not None and asked.explored is not None:
        raise UserError(f"run is {asked.run!r}, and pools are named too: give a run, or two pools")
    source = "run" if asked.run is not None else "explored" if asked.explored is not None else None
    others = [] if source is None else [name for name in OF_HELD_OUT if name in given]
    if others:
        raise UserError(f"{', '.join(others)}: nothing is sampled where {source} is given; leave that out, or {source}")
    if source != "explored" and asked.reward is not None:
        raise UserError("reward chooses among those of two pools: name explored and reference, or leave it out")
    if asked.run is not None and asked.keep is not None:
        raise UserError(f"keep is {asked.keep}, but run {asked.run} has kept its own number, whose update is priced")
    if asked.prices_from is not None and asked.run is not None:
        raise UserError(
            f"prices_from is {asked.prices_from!r}, but run {asked.run} has prices of its own: leave one out"
        )


def _stored(store: "Store", asked: Asked) -> "Evidence":
    from solrl_tasks.studies.evidence import audited_evidence, pooled_evidence

    if asked.run is not None:
        return audited_evidence(store, asked.run)
    assert asked.explored is not None and asked.reference is not None
    return pooled_evidence(store, asked.explored, asked.reference, asked.reward, asked.keep)


def _hold(store: "Store", run_id: str, evidence: "Evidence") -> None:
    """Keep from the garbage collection what was only read: no run of the study made it."""
    from solrl_tasks.store.contents import Contents
    from solrl_tasks.store.holds import hold

    hold(store, run_id, [Contents.find(store, key).place() for key in evidence.pools])


def _sampled(settings: Settings, asked: Asked, reporter: "Reporter", call: "Call | None") -> "tuple[Evidence, str]":
    from solrl_tasks.stages.iteration import direct
    from solrl_tasks.stages.session import open_session
    from solrl_tasks.studies.evidence import measured_evidence, pair_jobs

    recipe, base, policy = _held_out(settings, asked)
    run_id = _run_id(asked, recipe)
    with open_session(settings.store_root, run_id, recipe, reporter, base) as session:
        jobs = pair_jobs(session, asked.prompts or PROMPTS, policy)
        return measured_evidence(session, jobs, policy, call or direct), run_id


def _held_out(settings: Settings, asked: Asked) -> "tuple[Recipe, Path, PolicyName]":
    from solrl_tasks.stages.recorded import PolicyName, resolve_policy
    from solrl_tasks.store.root import Store
    from solrl_tasks.studies.evidence import require_prices

    config = asked.config or DEFAULT_CONFIG
    changes: dict[str, object] = {
        "explore_steps": asked.steps,
        "engine": asked.engine,
        "candidates": asked.candidates,
        "keep": asked.keep,
    }
    if asked.keep is None and asked.candidates is not None:
        fewer = asked.candidates < read_recipe(config, {})[0].select.keep
        changes["keep"] = max(2, asked.candidates // 4) if fewer else None
    recipe, base = read_usable(config, changes)
    store = Store.open(settings.store_root, create=True)
    if asked.prices_from is not None:
        # What could not be priced afterwards is not to be sampled first.
        require_prices(store, asked.prices_from, recipe)
    return recipe, base, resolve_policy(store, PolicyName(asked.policy_run, asked.policy_step, "old"))


def _priced(settings: Settings, evidence: "Evidence", asked: Asked) -> "Evidence":
    """The same groups at the prices that were asked for."""
    from solrl_tasks.studies.evidence import with_prices_of

    if asked.prices_from is not None:
        evidence = with_prices_of(open_store(settings.home), evidence, asked.prices_from)
    for side, seconds in (("explored", asked.explore_seconds), ("reference", asked.regenerate_seconds)):
        if seconds is not None:
            given = replace(getattr(evidence, side), seconds=seconds, price_origin="as given")
            evidence = replace(evidence, **{side: given})
    if asked.update_seconds is not None:
        evidence = replace(evidence, update=asked.update_seconds, update_origin="as given")
    return evidence


def _run_id(asked: Asked, recipe: "Recipe | None") -> str:
    from solrl_tasks.store.keys import digest

    name = "audits" if asked.run else "pools" if recipe is None else asked.config or DEFAULT_CONFIG
    content = [asked.given(), None if recipe is None else recipe.model_dump(mode="json")]
    return study_id("theory", name, digest(content)[:8])
