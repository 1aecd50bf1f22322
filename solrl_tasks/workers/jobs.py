"""What a worker is asked to do, and what it answers: plain data, so that any worker can carry it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from pydantic import JsonValue

from solrl_tasks.config.recipe import ExtensionSpec, RewardSpec, UpdateSpec
from solrl_tasks.config.stochastic import Stochastic
from solrl_tasks.models.lora import LoraState
from solrl_tasks.sampling.identity import candidate_seed
from solrl_tasks.sampling.prompts import PromptSet


@dataclass(frozen=True)
class Guidance:
    """How samples are led by their prompts; see ``model.guidance`` and ``model.guidance_scale`` of a recipe."""

    guidance: float
    guidance_scale: float


@dataclass(frozen=True)
class RolloutJob:
    """Candidates to sample, decode and score with one set of weights.

    Attributes:
        engine: the precision that samples.
        lora: the weights on top of the base; None is the base itself.
        sampler: name of the solver.
        steps: number of solver steps.
        prompts: whose rows the blocks refer to.
        exploration_seed: names the noise together with prompt key and candidate index.
        rewards: scored on every image.
        chunk: images of a whole block. A shorter one is padded to it where the engine's shapes are static.
        rows: of the prompts that are to be sampled, whose texts are encoded before the first block; None is all.
        field: the recipe's field that ``chunk`` comes from, for messages.
        guidance: None is the model's own.
        noise: where the path has noise, whose states are then kept; the rest of it is walked by the ``euler`` sampler.
        resolution: side of an image in pixels, a whole part of the model's, whose noise is then pooled; None is the
            model's.
        scored_at: side in pixels that images are enlarged to before anything is said of them; None leaves them.
    """

    engine: ExtensionSpec
    lora: LoraState | None
    sampler: str
    steps: int
    prompts: PromptSet
    exploration_seed: int
    rewards: tuple[RewardSpec, ...]
    chunk: int
    rows: tuple[int, ...] | None = None
    field: str = "chunk"
    guidance: Guidance | None = None
    noise: Stochastic | None = None
    resolution: int | None = None
    scored_at: int | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """What will be sampled, each text once."""
        rows = range(len(self.prompts)) if self.rows is None else self.rows
        return tuple(dict.fromkeys(self.prompts[row].text for row in rows))

    def seeds(self, row: int, candidates: Sequence[int]) -> list[int]:
        """The 64-bit seeds of some candidates of one prompt."""
        return [candidate_seed(self.exploration_seed, self.prompts.keys[row], index) for index in candidates]


@dataclass(frozen=True)
class Work:
    """One block: the candidates of one prompt that are computed together.

    ``token`` is the caller's own name for the block and comes back with the result. Where ``latents`` [B, C, H, W] or
    ``images`` [B, H, W, 3] are given they are used instead of sampling, and only rewards and features are computed.
    """

    token: object
    row: int
    candidates: tuple[int, ...]
    rewards: tuple[RewardSpec, ...]
    latents: torch.Tensor | None = None
    images: np.ndarray | None = None
    features: tuple[ExtensionSpec, ...] = ()

    @property
    def needs_sampling(self) -> bool:
        """Whether it brings nothing to score."""
        return self.latents is None and self.images is None


@dataclass(frozen=True)
class Shown:
    """A block's images in host memory, before anything is said of them.

    Attributes:
        finite: bool [B]; False where a pixel is not finite, which is no image.
        latents, images, failures, paths: see ``WorkResult``.
    """

    work: Work
    latents: torch.Tensor | None
    images: np.ndarray
    finite: np.ndarray
    failures: tuple[str, ...] = ()
    paths: torch.Tensor | None = None


@dataclass(frozen=True)
class WorkResult:
    """A block's outcome.

    Attributes:
        latents: clean latents x0, float32 on the CPU, [B, C, H, W]; None where images were given.
        images: uint8, [B, H, W, 3].
        rewards: "name@version" to float32 [B]; NaN marks an invalid candidate.
        failures: what went wrong with single images, in words.
        seconds: device-seconds spent; the sum over a rollout is the time in which the device was busy with it.
        features: "name@version" to float32 [B, D]; a row of NaN where the image is not finite.
        paths: of noisy paths, the states around their noisy steps, float32 on the CPU, [B, states, C, H, W].
        actor: name of who computed it, where there are several.
    """

    work: Work
    latents: torch.Tensor | None
    images: np.ndarray
    rewards: dict[str, np.ndarray]
    failures: tuple[str, ...]
    seconds: float = 0.0
    features: dict[str, np.ndarray] = field(default_factory=dict)
    paths: torch.Tensor | None = None
    actor: str = ""


@dataclass(frozen=True)
class Paths:
    """The noisy paths that samples were made by.

    Attributes:
        states: float32, [M, states, C, H, W], before the first noisy step and after each.
        starts: number of the first noisy step of each sample.
    """

    noise: Stochastic
    states: torch.Tensor
    starts: tuple[int, ...]


@dataclass(frozen=True)
class TrainJob:
    """The kept samples of one iteration and how to learn from them.

    Attributes:
        x0: clean latents, float32, [M, C, H, W].
        advantage: float64, [M].
        texts: prompt of each sample.
        prompt_keys: prompt key of each sample.
        candidates: candidate index of each sample.
        steps: of the sampler that made the samples; its noise levels are those that training may use.
        paths: what an objective that learns from paths has besides.
        metadata: of each sample's prompt, and ``rewards``: what an objective that learns from their gradient has.
    """

    x0: torch.Tensor
    advantage: np.ndarray
    texts: tuple[str, ...]
    prompt_keys: tuple[str, ...]
    candidates: tuple[int, ...]
    steps: int
    update: UpdateSpec
    run_seed: int
    iteration: int
    paths: Paths | None = None
    metadata: tuple[Mapping[str, JsonValue], ...] = ()
    rewards: tuple[RewardSpec, ...] = ()

    @cached_property
    def distinct_texts(self) -> tuple[str, ...]:
        """Each text once."""
        return tuple(dict.fromkeys(self.texts))

    @cached_property
    def text_rows(self) -> tuple[int, ...]:
        """Of each sample, the place of its text in ``distinct_texts``."""
        places = {text: place for place, text in enumerate(self.distinct_texts)}
        return tuple(places[text] for text in self.texts)


@dataclass(frozen=True)
class TrainResult:
    """What an update came to; the new state is returned beside it.

    Attributes:
        metrics: by metric name.
        seconds: device-seconds spent, of all devices together.
        actors: the same by the name of each actor, where there are several.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    actors: dict[str, float] = field(default_factory=dict)
