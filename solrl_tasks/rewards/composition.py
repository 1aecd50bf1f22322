"""Does the image show the objects that are asked for: how many, of which colour, where? Partial credit."""

import hashlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Final
from weakref import WeakValueDictionary

import numpy as np
import torch
from pydantic import Field, JsonValue

from solrl_tasks.config.base import Frozen
from solrl_tasks.rewards.asked import Asked, parse_asked
from solrl_tasks.rewards.base import Images, RewardError
from solrl_tasks.rewards.clip_model import VIT_L
from solrl_tasks.rewards.composing import FLOOR, Detection, distinct, judge
from solrl_tasks.rewards.hues import ClipColours
from solrl_tasks.rewards.owl import ARCHITECTURES, PUBLISHED, OwlDetector
from solrl_tasks.rewards.reading_reward import EMBEDDED_TOKENIZER
from solrl_tasks.rewards.weights import Folder, Hub, Place, Random, find_place, identify


class CompositionOptions(Frozen):
    """The detector and the colour model, each a hub id, a folder or ``random``, and how sure a find must be.

    Without a ``colours`` model prompts that ask for colours cannot be scored.
    """

    source: str = PUBLISHED.hub_id
    revision: str | None = None
    colours: str | None = VIT_L.hub_id
    colours_revision: str | None = None
    threshold: Annotated[float, Field(gt=0, le=1)] = 0.3
    batch: Annotated[int, Field(ge=1, le=1024)] = 8


class Perception:
    """Detector and colour model on one device, and what they saw last."""

    def __init__(self, options: CompositionOptions, device: torch.device) -> None:
        self.options, self.device = options, device
        self.detector: OwlDetector | None = None
        self.colours: ClipColours | None = None
        self._seen: tuple[str, list[list[Detection]]] = ("", [])
        # Partial and strict reward share it, and a timed-out attempt may still be scoring in its thread.
        self._lock = threading.RLock()

    def load(self) -> None:
        """Have the weights on the device; nothing is done if they are there."""
        options = self.options
        with self._lock:
            if self.detector is None:
                place = _place(options)
                self.detector = OwlDetector(place, _tokenizer(place), self.device, options.batch)
            if self.colours is None and options.colours is not None:
                place = _colour_place(options.colours, options.colours_revision)
                self.colours = ClipColours(place, _tokenizer(place), self.device, options.batch)

    def unload(self) -> None:
        """Give the memory of the weights back."""
        with self._lock:
            self.detector = self.colours = None
            self._seen = ("", [])
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def memory(self) -> int:
        """Bytes of the weights; 0 while they are not loaded."""
        modules = [part.module for part in (self.detector, self.colours) if part is not None]
        tensors = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def see(self, images: Images, asked: Sequence[Asked]) -> list[list[Detection]]:
        """The distinct objects of the classes asked for in each image, with colours where one is asked."""
        digest = hashlib.sha256(repr((images.shape, asked)).encode() + images.tobytes()).hexdigest()
        with self._lock:
            if self._seen[0] != digest:
                self.load()
                self._seen = (digest, self._look(images, asked))
            return self._seen[1]

    def _look(self, images: Images, asked: Sequence[Asked]) -> list[list[Detection]]:
        found: list[list[Detection]] = [[] for _ in asked]
        groups: dict[tuple[str, ...], list[int]] = {}
        for row, each in enumerate(asked):
            groups.setdefault(each.names, []).append(row)
        for names, rows in groups.items():
            for row, objects in zip(rows, self._objects(images[rows], names), strict=True):
                found[row] = self._coloured(images[row], objects, asked[row].coloured)
        return found

    def _objects(self, images: Images, names: Sequence[str]) -> list[list[Detection]]:
        assert self.detector is not None
        least = FLOOR * self.options.threshold
        return [distinct(boxes, least) for boxes in self.detector.detect(images, names, least)]

    def _coloured(self, image: Images, found: list[Detection], names: frozenset[str]) -> list[Detection]:
        if not names:
            return found
        if self.colours is None:
            raise RewardError("a prompt asks for a colour, but the option colours names no model that tells them")
        seen: dict[int, Detection] = {}
        for name in sorted(names):
            own = [index for index, thing in enumerate(found) if thing.name == name]
            read = self.colours.read(image, [found[index].box for index in own], name)
            seen |= {index: replace(found[index], colours=each) for index, each in zip(own, read, strict=True)}
        return [seen.get(index, thing) for index, thing in enumerate(found)]


_SHARED: Final[WeakValueDictionary[str, Perception]] = WeakValueDictionary()


def _shared_perception(options: CompositionOptions, device: torch.device) -> Perception:
    """The same for the partial and the strict reward of one recipe: each image is looked at once."""
    key = f"{options.model_dump_json()} {device}"
    perception = _SHARED.get(key) or Perception(options, device)
    _SHARED[key] = perception
    return perception


class Composition:
    """Objects, counts, colours and positions against the prompt's metadata, in the manner of GenEval.

    Partial credit, meant for training: see ``composing.judge``. Objects are found by OWLv2 (``owl``), colours told by
    CLIP (``hues``). That published weights load into these classes has not been tried on the real files.
    """

    name: ClassVar[str] = "composition"
    version: ClassVar[str] = "1"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    Options: ClassVar[type[CompositionOptions]] = CompositionOptions
    strict: ClassVar[bool] = False

    def __init__(self, options: CompositionOptions, device: torch.device) -> None:
        self.options = options
        self.perception = _shared_perception(options, device)
        self.load, self.unload, self.memory = self.perception.load, self.perception.unload, self.perception.memory

    @classmethod
    def identity(cls, options: CompositionOptions) -> dict[str, JsonValue]:
        """What of the options decides scores: nothing for the published weights and the defaults.

        Raises:
            RewardError: an option names nothing that could be loaded.
        """
        changed = options.model_dump(mode="json", exclude_defaults=True, include={"threshold", "batch"})
        colours = options.colours and identify(_colour_place(options.colours, options.colours_revision), VIT_L)
        parts = {"weights": identify(_place(options), PUBLISHED), "colours": colours or options.colours is None or None}
        return changed | {name: part for name, part in parts.items() if part is not None}

    @classmethod
    def check_prompt(cls, prompt: str, metadata: Mapping[str, JsonValue], options: CompositionOptions) -> None:  # noqa: ARG003
        """Raises ValueError where the metadata do not say what to look for, or ask for what nothing here can tell."""
        if parse_asked(metadata).coloured and options.colours is None:
            raise ValueError("it asks for a colour, but the option colours names no model that tells them")

    def __call__(
        self,
        images: Images,
        prompts: Sequence[str],  # noqa: ARG002 (the interface's)
        metadata: Sequence[Mapping[str, JsonValue]],
    ) -> list[float]:
        """Scores in 0..1 of uint8 images [B, H, W, 3].

        Raises:
            UnaskedError: the metadata of a prompt do not say what to look for.
            RewardError: weights are not to be had, or there is no memory for a block of ``batch`` images.
        """
        asked = [parse_asked(item) for item in metadata]
        try:
            found = self.perception.see(np.ascontiguousarray(images), asked)
        except torch.OutOfMemoryError as error:
            raise RewardError(
                f"reward {self.name!r} found no memory on {self.perception.device} for {self.options.batch} images at "
                "once: lower its option batch, or leave more memory free by a smaller chunk"
            ) from error
        verdicts = [judge(each, seen, self.options.threshold) for each, seen in zip(asked, found, strict=True)]
        return [pair[self.strict] for pair in verdicts]


def _place(options: CompositionOptions) -> Place:
    place = find_place(options.source, options.revision, PUBLISHED)
    if isinstance(place, Random) and place.architecture not in (None, *ARCHITECTURES):
        raise RewardError(f"source random:{place.architecture}: there is {', '.join(ARCHITECTURES)}")
    return place


def _colour_place(source: str, revision: str | None) -> Place:
    return find_place(source, revision, VIT_L, "colours")


def _tokenizer(place: Place) -> Hub | Folder:
    return Folder(EMBEDDED_TOKENIZER) if isinstance(place, Random) else place


REWARD = Composition
