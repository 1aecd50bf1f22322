"""How many images are computed together where a recipe says ``auto``: settled once in a run's life.

A run's recorded recipe holds the numbers, so that a run that goes on never measures again. What a device was found to
hold is kept beside the store's objects and used by later runs: they then fill the same pools, and a study of pools that
are all there loads no weights.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from solrl_tasks.config.extensions import find_extension
from solrl_tasks.config.recipe import ExtensionSpec, ModelSpec, Recipe, SamplingSpec
from solrl_tasks.config.words import counted
from solrl_tasks.models.sources import base_digest
from solrl_tasks.sampling.prompts import PromptSet
from solrl_tasks.stages.reporter import Reporter
from solrl_tasks.stages.resolutions import lowered, sampled_model
from solrl_tasks.store.atomic import read_sealed, write_sealed
from solrl_tasks.store.errors import DamagedError
from solrl_tasks.store.keys import key
from solrl_tasks.store.object_path import Place
from solrl_tasks.store.root import Store
from solrl_tasks.workers.base import Worker
from solrl_tasks.workers.jobs import RolloutJob

HOST_CHUNK: Final = 24
"""On CPUs, where memory says nothing about what pays."""
Fit = Callable[[SamplingSpec], int]
"""How many images of a sampling a device holds at once."""


class UnmeasuredError(ValueError):
    """Something is to be planned that only a measurement on the device can tell."""


def settle_chunks(recipe: Recipe, recorded: Mapping[str, Any] | None, fit: Fit) -> Recipe:
    """The recipe with a number for every ``auto``.

    Args:
        recorded: the run's recipe as it was when the run began; None for a new run.
        fit: asked only for what no record answers.
    """

    def settled(sampling: SamplingSpec, count: int, *path: str, rows: int = 1) -> dict[str, Any]:
        if sampling.chunk != "auto":
            return {}
        known = _recorded(recorded, path)
        return {"chunk": balanced(count, max(1, fit(sampling) // rows)) if known is None else known}

    explore = settled(recipe.explore, recipe.explore.candidates, "explore")
    regenerate = settled(recipe.regenerate, recipe.select.keep, "regenerate")
    # Guidance that the evaluation alone has takes two rows for an image.
    guided = (recipe.evaluate.guidance_scale or 1.0) > 1.0 and recipe.model.guidance_scale == 1.0
    rows = 2 if guided else 1
    evaluate = settled(recipe.evaluate.sampling, recipe.evaluate.seeds, "evaluate", "sampling", rows=rows)
    sampling = recipe.evaluate.sampling.model_copy(update=evaluate)
    return recipe.model_copy(
        update={
            "explore": recipe.explore.model_copy(update=explore),
            "regenerate": recipe.regenerate.model_copy(update=regenerate),
            "evaluate": recipe.evaluate.model_copy(update={"sampling": sampling}),
        }
    )


def balanced(count: int, fit: int) -> int:
    """The size of equal blocks for ``count`` images: as few blocks as fit, and as little in them that nobody asked for.

    Blocks are always computed whole. Where ``fit`` divides ``count`` it is the answer, so that twice the candidates
    fill the same blocks and as many again.
    """
    blocks = -(-count // fit)
    return -(-count // blocks)


def host_fit(sampling: SamplingSpec) -> int:  # noqa: ARG001 (the same for all)
    """See ``HOST_CHUNK``."""
    return HOST_CHUNK


@dataclass(frozen=True)
class MeasuredFit:
    """What the worker's device holds, measured where no run before has.

    Attributes:
        prompts: the first is what is sampled.
    """

    store: Store
    worker: Worker
    recipe: Recipe
    prompts: PromptSet
    reporter: Reporter

    def __call__(self, sampling: SamplingSpec) -> int:
        """A size out of ``workers.memory.SIZES``; loads what a run loads if nobody has measured before."""
        model = sampled_model(self.recipe.model, sampling)
        spec = self._spec(model, sampling.engine)
        path = self._path(spec)
        known = _read(path, spec)
        if known is not None:
            return known
        found = self.worker.fitting_chunk(self._job(sampling), [other.engine for other in samplings(self.recipe)])
        write_sealed(path, {"spec": spec, "fit": found})
        self.reporter.note(
            f"chunk auto: {counted(found, 'image')} of {model.resolution} px at a time fit with engine "
            f"{sampling.engine.name} on {self.worker.site.hardware}"
        )
        return found

    def recorded(self, sampling: SamplingSpec) -> int:
        """The same where somebody has measured; never loads anything.

        Raises:
            UnmeasuredError: nobody has.
        """
        spec = self._spec(sampled_model(self.recipe.model, sampling), sampling.engine)
        known = _read(self._path(spec), spec)
        if known is None:
            raise UnmeasuredError(
                f"chunk is auto, and how many images fit with engine {sampling.engine.name} on "
                f"{self.worker.site.hardware} was never measured, so no blocks can be planned: give the chunk a "
                "number, or start without planning, which measures it first"
            )
        return known

    def _path(self, spec: dict[str, Any]) -> Place:
        return self.store.root / "cache" / "chunks" / f"{key(spec)}.json"

    def _spec(self, model: ModelSpec, engine: ExtensionSpec) -> dict[str, Any]:
        # Neither rewards nor other engines: what they hold is small beside the blocks, and a study that adds one has
        # to find the same pools.
        return {
            "base": base_digest(model, self.store.cache),
            "family": [model.family, find_extension("family", model.family).version],
            "resolution": model.resolution,
            "max_sequence_length": model.max_sequence_length,
            "guided": model.guidance_scale > 1,
            "engine": engine.model_dump(mode="json"),
            "numerics": self.worker.site.numerics(model, engine),
            "hardware": self.worker.site.hardware,
            "memory": self.worker.site.total_memory,
        }

    def _job(self, sampling: SamplingSpec) -> RolloutJob:
        side = lowered(self.recipe.model, sampling)
        return RolloutJob(
            engine=sampling.engine,
            lora=None,
            sampler=sampling.sampler,
            steps=1,
            prompts=self.prompts,
            exploration_seed=0,
            rewards=(*self.recipe.rewards, *self.recipe.evaluate.rewards),
            chunk=1,
            rows=(0,),
            resolution=side,
            scored_at=None if side is None else self.recipe.model.resolution,
        )


def samplings(recipe: Recipe) -> tuple[SamplingSpec, ...]:
    """Every way of sampling that a recipe has."""
    return recipe.explore, recipe.regenerate, recipe.evaluate.sampling


def _recorded(recorded: Mapping[str, Any] | None, path: tuple[str, ...]) -> int | None:
    section: Any = recorded
    for name in (*path, "chunk"):
        section = section.get(name) if isinstance(section, Mapping) else None
    return section if isinstance(section, int) else None


def _read(path: Place, spec: dict[str, Any]) -> int | None:
    try:
        stored = read_sealed(path)
    except (FileNotFoundError, DamagedError):
        return None
    return int(stored["fit"]) if stored.get("spec") == spec else None
