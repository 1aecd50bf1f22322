"""What steps of runs have in common: which objects are the same, told from recipes before anything is computed.

Objects of a store are found by what they were made from. Two runs make the same candidates in an iteration where all
that decides the policy up to there is the same: nothing but the model in the first iteration, the whole of training in
later ones. Evaluations, pictures and names decide nothing of it. How much of such an object is there is a count of
candidates from the first one on, for each thing that can be asked of a candidate: a reward, a feature, a picture.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from pydantic import ValidationError

from solrl_tasks.config.recipe import Keep, Recipe, RewardSpec, SamplingSpec
from solrl_tasks.features.base import feature_id, make_feature
from solrl_tasks.models.sources import base_digest
from solrl_tasks.prompts.read import read_sets
from solrl_tasks.rewards.base import reward_id
from solrl_tasks.rewards.scoring import make_reward
from solrl_tasks.stages.chunks import host_fit, settle_chunks
from solrl_tasks.stages.resolutions import sampled_model
from solrl_tasks.stages.thumbnails import resolved
from solrl_tasks.store.keys import key
from solrl_tasks.store.records import environment_record
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import RunView, list_runs
from solrl_tasks.studies.arms import ArmRun
from solrl_tasks.tracking.environments import first_environment
from solrl_tasks.tracking.summary import Summary

Units = dict[str, int]
"""Forward passes of sampling stages, and rows of optimizer steps of the update."""
Inputs = Mapping[str, str]
"""Digests of what a recipe points to, by field."""
UPDATE: Final = "update"
IMAGES: Final = "images"
OBJECTS: Final = {"evaluate": "evaluate_pool"}
"""Names of the references of stages, where they are not the stage's own."""
POINTED: Final = ("model.source", "prompts.train", "prompts.heldout")


@dataclass(frozen=True)
class Want:
    """What a stage of a step asks of an object.

    Attributes:
        name: of the object, the same wherever it is the same one.
        units: see ``Units``.
        things: that are asked of every candidate; whatever is made of images comes of kept ones too.
    """

    stage: str
    name: str
    units: int
    things: frozenset[str]


@dataclass
class Shelf:
    """How much there is of each object, by name and thing."""

    store: Store | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    there: dict[tuple[str, str], int] = field(default_factory=dict)
    _inputs: dict[str, Inputs] = field(default_factory=dict)

    @classmethod
    def of(cls, store: Store | None, runs: Sequence[ArmRun], device: torch.device) -> "Shelf":
        """A shelf with what runs of the store left of what ``runs`` will ask for, on devices of this class."""
        shelf = cls(store, device)
        if store is None:
            return shelf
        steps = ((run, step) for run in runs for step in range(run.recipe.iterations + 1))
        wanted = {want.name for run, step in steps for want in shelf.wants(run, step)}
        here = environment_record(str(device)).get("device_class")
        for view, recipe, summaries in runs_of(store):
            if summaries and first_environment(store, summaries).get("device_class") == here:
                shelf._put(view, recipe, summaries, wanted)
        return shelf

    def take(self, run: ArmRun, step: int) -> Units:
        """What a step still takes, by stage, and note it as done."""
        return {want.stage: self._lack(want) for want in self.wants(run, step)}

    def wants(self, run: ArmRun, step: int) -> list[Want]:
        """What a step asks for if nothing of it is there."""
        recipe = run.recipe
        if self.device.type == "cpu":
            recipe = settle_chunks(recipe, None, host_fit)
        return step_wants(recipe, self._pointed(run), step)

    def _pointed(self, run: ArmRun) -> Inputs:
        if self.store is None:
            return {}
        name = key([run.recipe.prompts.model_dump(mode="json"), model_of(run.recipe), str(run.base)])
        if name not in self._inputs:
            train, heldout = read_sets(run.recipe.prompts, run.base)
            digests = base_digest(run.recipe.model, self.store.cache), train.digest, heldout.digest
            self._inputs[name] = dict(zip(POINTED, digests, strict=True))
        return self._inputs[name]

    def _put(self, view: RunView, recipe: Recipe, summaries: Sequence[Summary], wanted: set[str]) -> None:
        pinned = view.inputs()
        if not all(name in pinned for name in POINTED):
            return
        inputs = {name: pinned[name] for name in POINTED}
        for summary in summaries:
            for want in step_wants(recipe, inputs, summary.step):
                ref = summary.refs.get(OBJECTS.get(want.stage, want.stage))
                if want.name in wanted and ref is not None and (view.store.root / ref.path).exists():
                    self._lack(want)

    def _lack(self, want: Want) -> int:
        covered = min((self.there.get((want.name, thing), 0) for thing in want.things), default=0)
        free = max(covered, self.there.get((want.name, IMAGES), 0))
        for thing in want.things:
            place = want.name, thing
            self.there[place] = max(self.there.get(place, 0), want.units)
        return max(0, want.units - free)


def step_wants(recipe: Recipe, inputs: Inputs, step: int) -> list[Want]:
    """What a step of a run asks for, stage by stage."""
    units = iteration_units(recipe, step)
    made: list[Want] = []
    if "explore" in units:
        kept = resolved(recipe.explore.store_images, sampled_model(recipe.model, recipe.explore).resolution)
        things = _scores(recipe.rewards) | _pictures(kept)
        made.append(Want("explore", _pool_name(recipe, inputs, step), units["explore"], things))
    for stage, more in (("regenerate", []), ("audit", [recipe.audit.prompts]), (UPDATE, [])):
        if stage in units:
            whole = _training(recipe) if step > 1 or stage == UPDATE else _choice(recipe)
            name = key([stage, step, _basis(recipe, inputs), whole, more])
            made.append(Want(stage, name, units[stage], frozenset({stage})))
    if "evaluate" in units:
        made.append(_evaluation(recipe, inputs, step, units["evaluate"]))
    return made


def iteration_units(recipe: Recipe, step: int) -> Units:
    """What a step of a run takes if nothing of it is there, by stage."""
    units: Units = {}
    prompts, evaluate = recipe.prompts.per_iteration, recipe.evaluate
    if step > 0:
        units["explore"] = prompts * _whole(recipe.explore.candidates, recipe.explore) * recipe.explore.steps
        units["regenerate"] = prompts * _whole(recipe.select.keep, recipe.regenerate) * recipe.regenerate.steps
        units[UPDATE] = prompts * recipe.select.keep * recipe.update.optimizer_steps * recipe.update.times_per_sample
        if recipe.audit.every and (step - 1) % recipe.audit.every == 0:
            images = recipe.audit.prompts * _whole(recipe.explore.candidates, recipe.regenerate)
            units["audit"] = images * recipe.regenerate.steps
    if evaluate.every and step % evaluate.every == 0:
        units["evaluate"] = evaluate.prompts * _whole(evaluate.seeds, evaluate.sampling) * evaluate.sampling.steps
    return units


def model_of(recipe: Recipe) -> dict[str, Any]:
    """The model as far as it decides bits or cost."""
    return recipe.model.model_dump(mode="json", exclude={"text_encoders"})


def runs_of(store: Store | None) -> Iterator[tuple[RunView, Recipe, list[Summary]]]:
    """Every run of a store that this version can read, and what it has committed."""
    for info in list_runs(store) if store is not None else []:
        if info.config is None or store is None:
            continue
        view = RunView(store, info.run_id)
        try:
            recipe = Recipe.model_validate(info.config)
        except ValidationError:  # of another version: nothing is known of what it cost
            continue
        yield view, recipe, [Summary.model_validate(one) for one in view.summaries().values()]


def _evaluation(recipe: Recipe, inputs: Inputs, step: int, units: int) -> Want:
    spec = recipe.evaluate
    trained = {reward.name for reward in recipe.rewards}
    watched = [reward for reward in spec.rewards if reward.name not in trained]
    feature = feature_id(make_feature(spec.features))
    things = _scores([*recipe.rewards, *watched]) | _pictures(resolved(spec.store_images, recipe.model.resolution))
    sampled = spec.model_dump(mode="json", exclude={"every", "seeds", "rewards", "features", "store_images"})
    # The untrained model is the same whatever it is going to learn.
    learned = [_basis(recipe, inputs), _training(recipe)] if step else [model_of(recipe), dict(inputs)]
    heldout = recipe.prompts.model_dump(mode="json", exclude={"per_iteration"})
    return Want("evaluate", key(["evaluate", step, learned, heldout, sampled]), units, things | {feature})


def _pool_name(recipe: Recipe, inputs: Inputs, step: int) -> str:
    explore = recipe.explore.model_dump(mode="json", exclude={"candidates", "store_images", "reuse"})
    learned = _training(recipe) if step > 1 else None
    return key(["explore", step, _basis(recipe, inputs), explore, learned])


def _basis(recipe: Recipe, inputs: Inputs) -> list[Any]:
    """What every iteration starts from."""
    return [model_of(recipe), recipe.prompts.model_dump(mode="json"), recipe.seed, dict(inputs)]


def _choice(recipe: Recipe) -> list[Any]:
    """What decides the samples of the first iteration, whose policy has learned nothing."""
    objective = recipe.update.objective.model_dump(mode="json")
    return [_explored(recipe), _rewards(recipe), recipe.select.model_dump(mode="json"), _regenerated(recipe), objective]


def _training(recipe: Recipe) -> list[Any]:
    """What decides a policy, and so all later samples."""
    return [*_choice(recipe), recipe.update.model_dump(mode="json")]


def _explored(recipe: Recipe) -> dict[str, Any]:
    return recipe.explore.model_dump(mode="json", exclude={"store_images", "reuse"})


def _regenerated(recipe: Recipe) -> dict[str, Any]:
    return recipe.regenerate.model_dump(mode="json")


def _rewards(recipe: Recipe) -> list[dict[str, Any]]:
    return [reward.model_dump(mode="json") for reward in recipe.rewards]


def _scores(rewards: Sequence[RewardSpec]) -> frozenset[str]:
    return frozenset(reward_id(make_reward(reward)) for reward in rewards)


def _pictures(keep: Keep) -> frozenset[str]:
    return frozenset() if keep == "none" else frozenset({IMAGES if keep == "lossless" else keep})


def _whole(count: int, sampling: SamplingSpec) -> int:
    """Images that are sampled for so many: blocks are computed whole."""
    chunk = sampling.chunk
    return -(-count // chunk) * chunk if isinstance(chunk, int) else count
