"""An open run: its recipe, its store, its worker."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from solrl_tasks.config.extensions import build, find_extension, parse_options
from solrl_tasks.config.recipe import ExtensionSpec, Recipe, RewardSpec
from solrl_tasks.config.words import counted
from solrl_tasks.models.sources import base_digest, resolve_source
from solrl_tasks.prompts.read import read_sets, source_name
from solrl_tasks.rewards.base import reward_id
from solrl_tasks.rewards.fitness import require_dependable, require_fitting
from solrl_tasks.rewards.scoring import make_reward
from solrl_tasks.sampling.prompts import PromptSet
from solrl_tasks.stages.chunks import Fit, MeasuredFit, host_fit, samplings, settle_chunks
from solrl_tasks.stages.learning import check_learning
from solrl_tasks.stages.reporter import Reporter, SilentReporter
from solrl_tasks.stages.resolutions import UnsuitableError, check_resolution, sampled_model
from solrl_tasks.store.models import name_model
from solrl_tasks.store.object_path import Place
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import Run, RunView, require_free
from solrl_tasks.workers.base import Worker
from solrl_tasks.workers.inline import InlineWorker
from solrl_tasks.workers.numerics import default_device
from solrl_tasks.workers.site import Site, StandInSite, work_elsewhere


@dataclass(frozen=True)
class Prepared:
    """A recipe that was found usable: names resolved, options and prompts read. No weights are loaded."""

    recipe: Recipe
    train: PromptSet
    heldout: PromptSet


@dataclass
class Session:
    """What every stage works with while a run is open.

    Attributes:
        prepared: the validated recipe and its prompts.
        store: the only authority on what is done.
        run: the run's own folder, locked.
        worker: does the work; loads weights when it must.
        reporter: told what goes on.
    """

    prepared: Prepared
    store: Store
    run: Run
    worker: Worker
    reporter: Reporter

    @property
    def device(self) -> torch.device:
        """Where the worker computes."""
        return self.worker.site.device

    @property
    def recipe(self) -> Recipe:
        """The run's recipe, chunks resolved."""
        return self.prepared.recipe

    @cached_property
    def base_digest(self) -> str:
        """Content digest of the base model."""
        digest = base_digest(self.recipe.model, self.store.cache)
        name_model(self.store, digest, self.recipe.model.source)
        return digest

    @cached_property
    def latent_shape(self) -> tuple[int, ...]:
        """(C, H, W) of one latent, from the model's configuration; no weights are loaded."""
        family = find_extension("family", self.recipe.model.family)
        shape: tuple[int, ...] = family.latent_shape_of(self.recipe.model)
        return shape


def prepare(recipe: Recipe, base: Path | None = None) -> Prepared:
    """Check everything that can be checked before a run is made.

    Args:
        base: folder that relative prompt files are looked up in; the current directory by default.

    Raises:
        ValueError or LookupError: an extension is unknown, an option is refused, a prompt file is unusable, the counts
            do not fit, or a resolution or a grid does not suit the model; the message names the field.
    """
    _check_extensions(recipe)
    resolve_source(recipe.model)
    train, heldout = read_sets(recipe.prompts, base)
    for reward in recipe.rewards:
        require_fitting(reward, ((prompt.text, prompt.metadata) for prompt in train.prompts), "prompts.train")
    if recipe.prompts.per_iteration > len(train):
        raise ValueError(
            f"prompts.per_iteration is {recipe.prompts.per_iteration}, but prompts.train "
            f"({source_name(recipe.prompts.train)}) has only {counted(len(train), 'prompt')}: lower it or give more "
            "prompts"
        )
    if recipe.evaluate.every and recipe.evaluate.prompts > len(heldout):
        raise ValueError(
            f"evaluate.prompts is {recipe.evaluate.prompts}, but prompts.heldout "
            f"({source_name(recipe.prompts.heldout)}) has only {counted(len(heldout), 'prompt')}: lower it or give "
            "more prompts"
        )
    if recipe.audit.every and recipe.audit.prompts > recipe.prompts.per_iteration:
        raise ValueError(
            f"audit.prompts is {recipe.audit.prompts}, more than prompts.per_iteration "
            f"({recipe.prompts.per_iteration}): an audit regenerates groups of the iteration"
        )
    check_learning(recipe)
    _check_grids(recipe)
    return Prepared(recipe, train, heldout)


def require_engines(recipe: Recipe, site: Site) -> None:
    """Refuse a recipe with an engine that the devices of ``site`` cannot run.

    Raises:
        EngineError: there is one; the message names those that can run.
    """
    for sampling in samplings(recipe):
        site.require_engine(sampling.engine.name)


@contextmanager
def open_session(
    root: str | Place, run_id: str, recipe: Recipe, reporter: Reporter | None = None, base: Path | None = None
) -> Iterator[Session]:
    """Open a run, new or begun, for as long as the context lasts.

    The run is locked against a second process. Nothing is computed and no weights are loaded by opening, unless a new
    run leaves a chunk to ``auto`` on a device whose memory nobody has measured yet for its model and engine.

    Args:
        root: the store, a folder or ``s3://bucket/prefix``.
        run_id: names the run; the same id goes on where it stopped.
        recipe: must equal the recorded one but for ``iterations``, which may grow.

    Raises:
        ConfigChangedError: the run exists with another recipe, or what the recipe points to (model files, prompts,
            code of a reward) has changed since; the message names it.
        UnsuitableError: the sampler cannot walk the model's sigma grid well, or ``explore.resolution`` does not suit
            the model.
        LockedError: another process has the run open.
    """
    prepared = prepare(recipe, base)
    store = Store.open(root, create=True)
    reporter = reporter or SilentReporter()
    if prepared.recipe.workers.kind != "inline":
        # Actors come before the lock, and would wait for devices that whoever holds the run may have.
        require_free(store, run_id)
    with _worker(prepared.recipe, store, reporter) as worker:
        require_engines(prepared.recipe, worker.site)
        prepared = _with_chunks(prepared, store, run_id, worker, reporter)
        with Run.open(store, run_id, prepared.recipe.model_dump(mode="json"), _with_later_fields) as run:
            session = Session(prepared, store, run, worker, reporter)
            run.pin_inputs(_inputs(session))
            yield session


def planning_session(root: str | Place, run_id: str, recipe: Recipe, base: Path | None = None) -> Session:
    """A session to plan with: it makes no run, takes no lock and loads no weights; nothing may be run in it.

    Arguments as for ``open_session``. Where a cluster that is there already is to do the work, no engine is refused:
    what its devices can run is not known without its actors, and a plan starts none.

    Raises:
        EngineError: an engine cannot run here, where the work is to be done.
        UnmeasuredError: a chunk is ``auto`` and was never measured on this device.
        ValueError or LookupError: as ``prepare``.
    """
    prepared = prepare(recipe, base)
    worker, reporter = InlineWorker(prepared.recipe.model, default_device()), SilentReporter()
    if work_elsewhere(recipe.workers) is not None:
        worker.site = StandInSite(worker.site.device)
    require_engines(prepared.recipe, worker.site)
    store = Store.open(root, create=True)
    fit: Fit = host_fit
    if worker.site.device.type == "cuda":
        fit = MeasuredFit(store, worker, prepared.recipe, prepared.train, reporter).recorded
    run = Run(store, run_id)
    settled = replace(prepared, recipe=settle_chunks(prepared.recipe, run.recorded(), fit))
    return Session(settled, store, run, worker, reporter)


@contextmanager
def _worker(recipe: Recipe, store: Store, reporter: Reporter) -> Iterator[Worker]:
    cache = store.cache / "embeddings"
    if recipe.workers.kind == "inline":
        yield InlineWorker(recipe.model, default_device(), cache)
        return
    from solrl_tasks.workers.ray_worker import hired

    with hired(recipe.workers, recipe.model, cache, reporter.note) as worker:
        yield worker


def _with_chunks(prepared: Prepared, store: Store, run_id: str, worker: Worker, reporter: Reporter) -> Prepared:
    fit: Fit = host_fit
    if worker.site.device.type == "cuda":
        fit = MeasuredFit(store, worker, prepared.recipe, prepared.train, reporter)
    return replace(prepared, recipe=settle_chunks(prepared.recipe, RunView(store, run_id).recorded(), fit))


def _with_later_fields(recorded: dict[str, Any]) -> dict[str, Any]:
    """A recorded recipe with what recipes have got since: the default of a later field is how it was before.

    One that this version cannot read stays as it is, and is told apart field by field.
    """
    try:
        return Recipe.model_validate(recorded).model_dump(mode="json")
    except ValueError:
        return recorded


def _inputs(session: Session) -> dict[str, str]:
    recipe, prepared = session.recipe, session.prepared
    rewards = {
        f"reward {spec.name}": reward_id(make_reward(spec)) for spec in (*recipe.rewards, *recipe.evaluate.rewards)
    }
    return {
        "model.source": session.base_digest,
        "prompts.train": prepared.train.digest,
        "prompts.heldout": prepared.heldout.digest,
        **rewards,
    }


def _check_grids(recipe: Recipe) -> None:
    family = find_extension("family", recipe.model.family)
    check_resolution(recipe.model, recipe.explore)
    for sampling in samplings(recipe):
        sampler = build("sampler", sampling.sampler, {})
        if hasattr(sampler, "check"):
            grid = family.grid_of(sampled_model(recipe.model, sampling), sampling.steps)
            try:
                sampler.check(grid)
            except ValueError as error:
                raise UnsuitableError(str(error)) from error


def _check_extensions(recipe: Recipe) -> None:
    find_extension("family", recipe.model.family)
    rule = find_extension("selection rule", recipe.select.rule)
    parse_options("selection rule", rule, {})
    for sampling in samplings(recipe):
        find_extension("sampler", sampling.sampler)
        _check("engine", sampling.engine)
    _check("objective", recipe.update.objective)
    for reward in recipe.rewards:
        require_dependable(reward)
    for reward in (*recipe.rewards, *recipe.evaluate.rewards):
        make_reward(reward)


def _check(kind: str, spec: ExtensionSpec | RewardSpec) -> None:
    parse_options(kind, find_extension(kind, spec.name), dict(spec.options))
