"""Does a picture show what its prompt says? Exact, deterministic, from pixels and prompt alone.

Every pixel is given a colour name, connected regions of one colour become objects, their outlines are compared with
the six shapes, and the objects are matched with what the prompt asks for. `score_scenes` gives a smooth score, which
ranks imperfect pictures too, and a strict one, which is 1 only where everything is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage

from solrl_tasks.scenes.grammar import COLOURS, RELATIONS, SHAPES, Prompt, parse
from solrl_tasks.scenes.shapes import outline
from solrl_tasks.scenes.verdict import UNRELATED, Relation, match, verdict

Floats = NDArray[np.float32]

_GRID = 24
_WHITE, _BLACK = len(COLOURS) + 1, len(COLOURS) + 2
_REACH = 71
_LEAST_AREA, _LEAST_CORE = 12, 3
_SHARPNESS = 0.08
_LEAST_OVERLAP = 0.65
_CROSSING = ndimage.generate_binary_structure(2, 1)


@dataclass(frozen=True)
class Blob:
    """One object found: colour name, centre (x, y) in parts of the picture, and its overlap with each shape [6]."""

    colour: str
    x: float
    y: float
    overlap: Floats

    @property
    def shape(self) -> str | None:
        """The shape that fits best, or None where none fits well."""
        best = int(self.overlap.argmax())
        return SHAPES[best] if self.overlap[best] >= _LEAST_OVERLAP else None


@lru_cache(maxsize=1)
def _colour_table() -> NDArray[np.uint8]:
    """Colour number of every RGB value at 5 bits a channel: 0 none, then `COLOURS`, then white and black."""
    level = np.arange(32) * 8 + 4
    rgb = np.stack(np.meshgrid(level, level, level, indexing="ij"), -1).reshape(-1, 1, 3)
    palette = np.array([*COLOURS.values(), (255, 255, 255), (0, 0, 0)])
    far = np.abs(rgb - palette).max(-1)
    return np.where(far.min(1) < _REACH, far.argmin(1) + 1, 0).astype(np.uint8)


@lru_cache(maxsize=1)
def _templates() -> Floats:
    """The six shapes cut to their boxes, 0/1, [6, 24 * 24]."""
    axis = torch.linspace(-1.3, 1.3, 521)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    masks = [np.asarray((outline(name, x, y) <= 0).numpy()) for name in SHAPES]
    return np.stack([_boxed(mask, ndimage.find_objects(mask.astype(np.int32))[0]) for mask in masks])


def _boxed(mask: NDArray[np.bool_], box: tuple[slice, slice]) -> Floats:
    rows, columns = (_samples(side.start, side.stop) for side in box)
    cut: Floats = mask[rows[:, None], columns].astype(np.float32).ravel()
    return cut


def _samples(start: int, stop: int) -> NDArray[np.int64]:
    return (start + (np.arange(_GRID) + 0.5) * (stop - start) / _GRID).astype(np.int64)


def _overlaps(mask: NDArray[np.bool_], box: tuple[slice, slice]) -> Floats:
    """Intersection over union with every shape, lowered for a region that is much longer than wide."""
    cut, templates = _boxed(mask, box), _templates()
    both = templates @ cut
    height, width = (side.stop - side.start for side in box)
    stretch = min(1.0, min(height, width) / max(height, width) / 0.7)
    overlaps: Floats = (both / (templates.sum(1) + cut.sum() - both) * stretch).astype(np.float32)
    return overlaps


def _colour_maps(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    levels = images >> 3
    index = (levels[..., 0].astype(np.int32) << 10) | (levels[..., 1].astype(np.int32) << 5) | levels[..., 2]
    maps: NDArray[np.uint8] = _colour_table()[index]
    return maps


def _cores(maps: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Pixels whose four neighbours have their colour: the rims that anti-aliasing leaves have none."""
    core = np.zeros(maps.shape, dtype=np.bool_)
    middle = maps[:, 1:-1, 1:-1]
    core[:, 1:-1, 1:-1] = (
        (maps[:, :-2, 1:-1] == middle)
        & (maps[:, 2:, 1:-1] == middle)
        & (maps[:, 1:-1, :-2] == middle)
        & (maps[:, 1:-1, 2:] == middle)
    )
    return core


def _blobs(colours: NDArray[np.uint8], core: NDArray[np.bool_]) -> list[Blob]:
    scale = colours.size / 64**2
    inner = np.bincount(colours[core], minlength=_BLACK + 1)
    found: list[Blob] = []
    for number, name in enumerate(COLOURS, start=1):
        if inner[number] < _LEAST_CORE * scale:
            continue
        labels, _ = ndimage.label(colours == number, structure=_CROSSING)
        areas, cores = np.bincount(labels.ravel()), np.bincount(labels[core], minlength=labels.max() + 1)
        for index, box in enumerate(ndimage.find_objects(labels), start=1):
            if areas[index] >= _LEAST_AREA * scale and cores[index] >= _LEAST_CORE * scale:
                rows, columns = box
                blob = _overlaps(labels == index, box)
                x = (columns.start + columns.stop) / (2 * colours.shape[1])
                found.append(Blob(name, x, (rows.start + rows.stop) / (2 * colours.shape[0]), blob))
    return found


def find_objects(image: NDArray[np.uint8]) -> list[Blob]:
    """The objects of one picture, uint8 [H, W, 3], by colour and then from top to bottom."""
    colours = _colour_maps(image[None])
    return _blobs(colours[0], _cores(colours)[0])


def _fit(blob: Blob, colour: str, shape: int) -> float:
    """How well an object is the wanted one, 0 to 1: smooth, so that no group of imperfect pictures is flat."""
    if blob.colour != colour:
        return 0.0
    sharp = np.exp((blob.overlap - blob.overlap.max()) / _SHARPNESS)
    return float(0.2 + 0.4 * blob.overlap[shape] ** 2 + 0.4 * sharp[shape] / sharp.sum())


def _relation(name: str, first: Blob, second: Blob) -> Relation:
    """How far the second object lies in the stated direction from the first, and how far to the side."""
    dx, dy = second.x - first.x, second.y - first.y
    ahead = {"left of": dx, "right of": -dx, "above": dy, "below": -dy}[name]
    aside = abs(dy if name in ("left of", "right of") else dx)
    return Relation(ahead, aside, ahead > aside)


def _judge(prompt: Prompt, blobs: list[Blob], ground_right: bool) -> tuple[float, float]:
    wanted = prompt.things
    fits = np.array([[_fit(blob, thing.colour, SHAPES.index(thing.shape)) for blob in blobs] for thing in wanted])
    found = match(fits)
    chosen = {row: blobs[column] for row, column in found.chosen.items()}
    exact = all(chosen[row].shape == thing.shape for row, thing in enumerate(wanted) if row in chosen)
    relations = []
    if prompt.form in RELATIONS:
        relations = [_relation(prompt.form, chosen[0], chosen[1]) if len(chosen) == 2 else UNRELATED]
    return verdict(found, len(wanted), exact, len(blobs) - len(chosen), ground_right, relations)


def score_scenes(images: NDArray[np.uint8], prompts: Sequence[str]) -> tuple[Floats, Floats]:
    """Smooth and strict score of every picture for its prompt, two float32 [B] in 0..1.

    `images`: uint8 [B, H, W, 3]. Smooth, per wanted object: 0.2 for its colour, 0.4 for the squared overlap with its
    shape, 0.4 for being told from the other shapes; times factors for surplus objects, a wrong relation and a wrong
    background. Raises ValueError for another array, for lengths that differ, or for a prompt outside the grammar.
    """
    images = np.asarray(images)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3:
        raise ValueError(f"images must be uint8 [B, H, W, 3], not {images.dtype} {list(images.shape)}")
    if len(images) != len(prompts):
        raise ValueError(f"{len(images)} images but {len(prompts)} prompts")
    parsed = [parse(text) for text in prompts]
    smooth, strict = np.zeros(len(parsed), np.float32), np.zeros(len(parsed), np.float32)
    for start in range(0, len(parsed), 64):
        maps = _colour_maps(images[start : start + 64])
        cores = _cores(maps)
        grounds = [(int((colours == _WHITE).sum()), int((colours == _BLACK).sum())) for colours in maps]
        for row, (white, black) in enumerate(grounds):
            prompt = parsed[start + row]
            ground_right = black > white if prompt.black else white > black
            smooth[start + row], strict[start + row] = _judge(prompt, _blobs(maps[row], cores[row]), ground_right)
    return smooth, strict
