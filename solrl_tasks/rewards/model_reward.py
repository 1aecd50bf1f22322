"""What all rewards with weights of their own share: loading, batches, giving memory back."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, JsonValue
from torch import Tensor

from solrl_tasks.config.base import Frozen
from solrl_tasks.rewards.base import Images, RewardError
from solrl_tasks.rewards.checkpoints import Checkpoint
from solrl_tasks.rewards.loading import Build, load_module, random_module
from solrl_tasks.rewards.pixels import Preprocess
from solrl_tasks.rewards.weights import Hub, Place, Random, fetch_weights, find_place, identify


class WeightOptions(Frozen):
    """Where weights come from, how many images are computed together, and how precisely.

    ``source`` is a hub id, a folder, or ``random``; None is the published weights. ``revision`` is one of the hub.
    With ``precision`` ``bfloat16`` weights stay in float32 and products are taken in bfloat16 (autocast).
    """

    source: str | None = None
    revision: str | None = None
    batch: int = Field(8, ge=1, le=1024)
    precision: Literal["float32", "bfloat16"] = "float32"


class ModelReward(ABC):
    """A reward computed by a network, in float32 unless its options say otherwise.

    Images are computed in blocks of exactly ``batch``, the last one filled up by repeating its last image: a score does
    not depend on which other images, or how many, are scored with it. (The same kernel on the same shape; between
    different ``batch`` and kinds of device scores agree to about 1e-5.) That is why ``batch`` is part of the identity.

    Weights are loaded by the first ``load`` and stay until ``unload``. They come from a hub id, a folder, or a seeded
    generator: ``random`` or ``random:NAME`` for one of ``architectures``.
    """

    name: ClassVar[str]
    version: ClassVar[str]
    range: ClassVar[tuple[float, float]]
    Options: ClassVar[type[WeightOptions]] = WeightOptions

    pinned: ClassVar[Hub | None] = None
    """The published weights, if they are published as safetensors."""
    checkpoint: ClassVar[Checkpoint | None] = None
    """How they are published otherwise."""
    architectures: ClassVar[Mapping[str, dict[str, Any]]]
    """Configurations for random weights, by name; the first is the reward's own."""
    preprocess: ClassVar[Preprocess]

    def __init__(self, options: WeightOptions, device: torch.device) -> None:
        self.options = options
        self.device = device
        self._module: Any = None
        # A timed-out attempt may still be scoring in its thread.
        self._lock = threading.Lock()

    @classmethod
    def identity(cls, options: WeightOptions) -> dict[str, JsonValue]:
        """What of the options decides scores: nothing for the published weights and the default batch.

        Raises:
            RewardError: an option names nothing that could be loaded.
        """
        parts = {
            "weights": identify(cls.place(options), cls.pinned),
            "batch": None if options.batch == cls.Options.model_fields["batch"].default else options.batch,
            "precision": None if options.precision == "float32" else options.precision,
        }
        return {name: part for name, part in parts.items() if part is not None}

    @classmethod
    def place(cls, options: WeightOptions) -> Place:
        """Where the weights are.

        Raises:
            RewardError: the published weights are asked for, and have to be converted first.
        """
        if options.source is not None:
            return find_place(options.source, options.revision, cls.pinned)
        if cls.pinned is None:
            file = cls.checkpoint.file if cls.checkpoint is not None else "its weights"
            raise RewardError(
                f"reward {cls.name!r} needs option source: its weights are published as a pickle. Download {file}, run "
                f"`solrl convert {cls.name} FILE FOLDER`, and give FOLDER as source"
            )
        return cls.pinned if options.revision is None else Hub(cls.pinned.hub_id, options.revision)

    def load(self) -> None:
        """Have the weights on the device; nothing is done if they are there.

        Raises:
            RewardError: they are not to be had, or do not fit.
        """
        with self._lock:
            if self._module is None:
                self._module = self._loaded()

    def unload(self) -> None:
        """Give the memory of the weights back; the next batch loads again."""
        with self._lock:
            self._module = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def memory(self) -> int:
        """Bytes of the weights on the device; 0 while they are not loaded."""
        module = self._module
        tensors = [] if module is None else [*module.parameters(), *module.buffers()]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    @torch.inference_mode()
    def __call__(
        self, images: Images, prompts: Sequence[str], metadata: Sequence[Mapping[str, JsonValue]] = ()
    ) -> list[float]:
        """See ``Reward``; metadata is not looked at.

        Raises:
            RewardError: the weights cannot be had, or the device has no memory for a block of ``batch`` images.
        """
        del metadata
        self.load()
        module, size = self._module, self.options.batch
        try:
            blocks = [
                self._block(module, images[start : start + size], prompts[start : start + size])
                for start in range(0, len(images), size)
            ]
        except torch.OutOfMemoryError as error:
            raise RewardError(
                f"reward {self.name!r} found no memory on {self.device} for {size} images at once: lower its option "
                "batch, or leave more memory free by a smaller chunk"
            ) from error
        scores: list[float] = torch.cat(blocks).tolist() if blocks else []
        return scores

    def _block(self, module: Any, images: Images, prompts: Sequence[str]) -> Tensor:
        count = len(images)
        pixels = type(self).preprocess(images, self.side(module)).to(self.device)
        missing = self.options.batch - count
        if missing:
            pixels = torch.cat([pixels, pixels[-1:].expand(missing, -1, -1, -1)])
        lower = self.options.precision == "bfloat16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=lower):
            scores = self.score(module, pixels, [*prompts, *[prompts[-1]] * missing])
        return scores.float()[:count]

    def _loaded(self) -> Any:
        place = type(self).place(self.options)
        build, unused = self.builder()
        if isinstance(place, Random):
            return random_module(build, random_config(place, self.architectures, self.name), self.device)
        return load_module(build, fetch_weights(place), self.device, unused)

    @abstractmethod
    def builder(self) -> tuple[Build, tuple[str, ...]]:
        """How the module is built from its configuration, and patterns of tensors in its files that it does without."""

    @abstractmethod
    def side(self, module: Any) -> int:
        """Side of the square image that the module takes, in pixels."""

    @abstractmethod
    def score(self, module: Any, pixels: Tensor, prompts: Sequence[str]) -> Tensor:
        """Scores float32 ``[batch]`` of pixels ``[batch, 3, S, S]`` on the device, each with its prompt."""


def random_config(place: Random, known: Mapping[str, dict[str, Any]], of: str) -> dict[str, Any]:
    """The configuration that a random place names; the first of those known where it names none.

    Raises:
        RewardError: there is none of that name.
    """
    name = place.architecture or next(iter(known))
    if name not in known:
        raise RewardError(f"random:{name}: {of} has the architectures {', '.join(known)}")
    return dict(known[name])
