"""What a base can do: reward by number of steps, spread inside a group of seeds, agreement of rankings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor

from solrl_tasks.pretrain.base import VelocityModel
from solrl_tasks.pretrain.data import to_images, unpack
from solrl_tasks.scenes.checker import score_scenes
from solrl_tasks.scenes.grammar import heldout_prompts, parse
from solrl_tasks.scenes.layout import captions_of

Scorer = Callable[[NDArray[np.uint8], Sequence[str]], tuple[NDArray[np.float32], NDArray[np.float32]]]


@dataclass(frozen=True)
class CurveSettings:
    """What is measured: `prompts` held-out prompts with `seeds` seeds each, at every count of `steps`.

    Rankings are compared with those at `regenerate` steps and at the largest count.
    """

    prompts: int = 64
    seeds: int = 96
    steps: tuple[int, ...] = (4, 6, 8, 10, 20, 40)
    regenerate: int = 10
    shift: float = 3.0
    batch: int = 2048
    seed: int = 7


@dataclass(frozen=True)
class CurvePoint:
    """One count of steps. `sigma`: mean standard deviation of the smooth score inside a group; `rho_*`: mean Spearman
    correlation inside a group, NaN where every group is flat."""

    steps: int
    soft: float
    strict: float
    soft_heldout: float
    sigma: float
    rho_regenerate: float
    rho_reference: float


def sigmas(steps: int, shift: float = 1.0) -> Tensor:
    """The grid of a flow-match Euler scheduler with a static shift, float32 [steps + 1], from 1 to 0."""
    linear = torch.linspace(1.0, 1.0 / steps, steps, dtype=torch.float64)
    shifted = shift * linear / (1.0 + (shift - 1.0) * linear)
    return torch.cat([shifted, torch.zeros(1, dtype=torch.float64)]).float()


@torch.no_grad()
def euler(model: VelocityModel, captions: Tensor, noise: Tensor, grid: Tensor) -> Tensor:
    """Integrate from `noise` [B, tokens, channels] along `grid`; caption numbers [B]. Returns clean latents."""
    tokens, pooled = model.encode(captions)
    x = noise
    for now, then in pairwise(grid.tolist()):
        x = x + (then - now) * model.velocity(x, torch.full((len(x),), now, device=x.device), tokens, pooled)
    return x


@torch.no_grad()
def decode(vae: Any, packed: Tensor) -> NDArray[np.uint8]:
    """Packed latents to uint8 images [B, H, W, 3] on the CPU."""
    latents = unpack(packed) / vae.config.scaling_factor + vae.config.shift_factor
    return np.asarray(to_images(vae.decode(latents).sample).cpu().numpy())


def generate(
    model: VelocityModel, vae: Any, captions: Tensor, noise: Tensor, grid: Tensor, batch: int
) -> NDArray[np.uint8]:
    """Images of all captions and noises, in batches of one size (the last is filled up, so nothing recompiles)."""
    images = []
    for start in range(0, len(captions), batch):
        rows = torch.arange(start, start + batch) % len(captions)
        clean = euler(model, captions[rows].to(model.device), noise[rows].to(model.device), grid)
        images.append(np.concatenate([decode(vae, part) for part in torch.split(clean, 1024)]))
    return np.concatenate(images)[: len(captions)]


def spearman(left: NDArray[np.floating[Any]], right: NDArray[np.floating[Any]]) -> float:
    """Spearman correlation with average ranks; NaN where one side does not vary."""
    a, b = (rankdata(side) - (len(side) + 1) / 2 for side in (left, right))
    scale = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / scale if scale > 0 else float("nan")


def mean_spearman(left: NDArray[np.floating[Any]], right: NDArray[np.floating[Any]]) -> float:
    """Mean over the rows of two arrays [prompts, seeds], flat rows left out; NaN where all are flat."""
    values = np.array([spearman(a, b) for a, b in zip(left, right, strict=True)])
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def measure(
    model: VelocityModel, vae: Any, settings: CurveSettings, score: Scorer = score_scenes
) -> tuple[list[CurvePoint], dict[int, NDArray[np.float32]]]:
    """The curve, and the smooth scores behind it: for each count of steps an array [prompts, seeds]."""
    texts = heldout_prompts(settings.prompts)
    captions = captions_of([parse(text) for text in texts]).index().repeat_interleave(settings.seeds)
    repeated = [text for text in texts for _ in range(settings.seeds)]
    generator = torch.Generator().manual_seed(settings.seed)
    channels = int(model.transformer.config.in_channels)
    noise = torch.randn(len(captions), model.side**2, channels, generator=generator)
    shape = (settings.prompts, settings.seeds)
    soft: dict[int, NDArray[np.float32]] = {}
    strict: dict[int, float] = {}
    for steps in settings.steps:
        grid = sigmas(steps, settings.shift)
        images = generate(model, vae, captions, noise, grid, min(settings.batch, len(captions)))
        smooth, exact = score(images, repeated)
        soft[steps], strict[steps] = smooth.reshape(shape), float(exact.mean())
    novel = np.array([parse(text).heldout for text in texts])
    return [_point(steps, soft, strict[steps], novel, settings) for steps in settings.steps], soft


def _point(
    steps: int,
    soft: dict[int, NDArray[np.float32]],
    strict: float,
    novel: NDArray[np.bool_],
    settings: CurveSettings,
) -> CurvePoint:
    here, close = soft[steps], soft.get(settings.regenerate)
    return CurvePoint(
        steps=steps,
        soft=float(here.mean()),
        strict=strict,
        soft_heldout=float(here[novel].mean()) if novel.any() else float("nan"),
        sigma=float(here.std(1).mean()),
        rho_regenerate=mean_spearman(here, close) if close is not None else float("nan"),
        rho_reference=mean_spearman(here, soft[max(soft)]),
    )


def table(points: Sequence[CurvePoint]) -> str:
    """The curve as text, one line a count of steps."""
    head = "steps   soft strict held-out  sigma  rho(regen)  rho(ref)"
    rows = [
        f"{p.steps:5d}  {p.soft:.3f}  {p.strict:.3f}    {p.soft_heldout:.3f}  {p.sigma:.3f}      "
        f"{p.rho_regenerate:6.3f}    {p.rho_reference:6.3f}"
        for p in points
    ]
    return "\n".join([head, *rows])


def as_records(points: Sequence[CurvePoint]) -> list[dict[str, float | None]]:
    """The curve for JSON: NaN becomes null."""
    return [{key: None if value != value else value for key, value in asdict(point).items()} for point in points]
