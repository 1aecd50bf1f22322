"""The stages of making a model, each from a folder to the same folder: what a flow or a command line calls.

A folder holds `pipeline/` (float32, a diffusers folder), `report.json` (what each stage measured) and `grid.png`.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

from solrl_tasks.pretrain.architecture import SIZES, build_pipeline
from solrl_tasks.pretrain.base import BaseSettings, VelocityModel, train_base
from solrl_tasks.pretrain.curves import CurveSettings, as_records, generate, measure, sigmas, table
from solrl_tasks.pretrain.data import encode_scenes
from solrl_tasks.pretrain.loop import Budget
from solrl_tasks.pretrain.straighten import make_pairs
from solrl_tasks.pretrain.tokenizers import clip_tokenizer, t5_tokenizer
from solrl_tasks.pretrain.vae import VaeSettings, reconstruction, train_autoencoder
from solrl_tasks.scenes.checker import score_scenes
from solrl_tasks.scenes.grammar import heldout_prompts, parse
from solrl_tasks.scenes.layout import captions_of

Say = Callable[[str], None]
_ORIGIN = ("_name_or_path", "is_local", "local_files_only")


@dataclass(frozen=True)
class Place:
    """Where a stage works: the folder, the device, and whether the transformer is compiled (GPU only)."""

    folder: Path
    device: torch.device
    compiled: bool = False

    @property
    def pipeline(self) -> Path:
        """The diffusers folder."""
        return self.folder / "pipeline"


def pick_device(name: str) -> torch.device:
    """The torch device of a name; `auto` is the GPU where there is one. Raises ValueError where it is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"the device {name!r} was asked for, but torch sees no GPU here; use cpu or auto")
    return device


def place_at(folder: Path, device: str, compiled: bool = False) -> Place:
    """A place on the named device, which is set to TF32 if it is a GPU; errors as `pick_device`."""
    chosen = pick_device(device)
    if chosen.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
    return Place(folder, chosen, compiled and chosen.type == "cuda")


def load(place: Place) -> Any:
    """The pipeline of a folder, in float32. Raises FileNotFoundError where no stage has made it yet."""
    if not (place.pipeline / "model_index.json").is_file():
        raise FileNotFoundError(f"{place.pipeline} holds no pipeline yet: run the autoencoder stage first")
    pipeline = FluxPipeline.from_pretrained(place.pipeline, dtype=torch.float32, local_files_only=True)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def _note(place: Place, stage: str, values: dict[str, Any]) -> dict[str, Any]:
    path = place.folder / "report.json"
    report = json.loads(path.read_text()) if path.is_file() else {}
    report[stage] = values
    path.write_text(json.dumps(report, indent=1) + "\n")
    return values


def _save(pipeline: Any, folder: Path) -> None:
    pipeline.to("cpu")
    pipeline.save_pretrained(folder, safe_serialization=True)


def autoencoder(
    place: Place, size: str, settings: VaeSettings, budget: Budget, seed: int = 0, say: Say = print
) -> dict[str, Any]:
    """Build a pipeline of the named size (a key of `SIZES`) and train its autoencoder; returns what was measured."""
    if size not in SIZES:
        raise ValueError(f"unknown pipeline size {size!r}; known: {', '.join(SIZES)}")
    shape = SIZES[size]
    place.folder.mkdir(parents=True, exist_ok=True)
    pipeline = build_pipeline(shape, seed)
    history = train_autoencoder(pipeline.vae, shape.image, settings, budget, place.device, say)
    quality = reconstruction(pipeline.vae, shape.image, min(2048, settings.pool), settings.seed + 1000, place.device)
    say(f"autoencoder: {quality}")
    _save(pipeline, place.pipeline)
    values = {"settings": asdict(settings), "steps": history.steps, "seconds": history.seconds, **quality}
    return _note(place, "autoencoder", {**values, "losses": history.reports[-3:]})


def _model(pipeline: Any, place: Place, settings: BaseSettings, say: Say) -> VelocityModel:
    """The trained parts, compiled if that works here: a compiler that fails must not cost the run."""
    model = VelocityModel(pipeline, place.device, compiled=place.compiled).train()
    if not settings.train_text:
        model.freeze_text()
    if not place.compiled:
        return model
    start, batch = time.perf_counter(), settings.batch
    try:
        captions = torch.zeros(batch, dtype=torch.int64, device=place.device)
        x = torch.randn(batch, model.side**2, int(model.transformer.config.in_channels), device=place.device)
        sigma = torch.rand(batch, device=place.device)
        torch.autograd.backward(model.velocity(x, sigma, *model.encode(captions)).square().mean())
        model.zero_grad(set_to_none=True)
        say(f"compiled in {time.perf_counter() - start:.0f} s")
        return model
    except Exception as error:
        say(f"not compiled ({type(error).__name__}: {str(error)[:300]}); going on without")
        model.release()
        return VelocityModel(pipeline, place.device)


def base(
    place: Place,
    settings: BaseSettings,
    budget: Budget,
    scenes: int,
    checkpoint: Path | None = None,
    say: Say = print,
) -> dict[str, Any]:
    """Train transformer and text encoders on `scenes` scenes; `checkpoint` is a safetensors file kept up to date."""
    pipeline = load(place)
    size = int(pipeline.vae.config.sample_size)
    generator = torch.Generator(place.device).manual_seed(settings.seed + 100)
    data = encode_scenes(pipeline.vae.to(place.device), scenes, size, generator, say)
    model = _model(pipeline, place, settings, say)
    history = train_base(model, data, settings, budget, say, _saver(checkpoint))
    model.release()
    _save(pipeline, place.pipeline)
    values = {"settings": asdict(settings), "scenes": scenes, "steps": history.steps, "seconds": history.seconds}
    every = max(1, len(history.reports) // 40)
    values |= {"samples": history.steps * settings.batch, "losses": history.reports[::every]}
    return _note(place, "base", values)


def _saver(checkpoint: Path | None) -> Callable[[dict[str, Tensor]], None] | None:
    if checkpoint is None:
        return None

    def save(weights: dict[str, Tensor]) -> None:
        part = checkpoint.with_suffix(".part")
        save_file({name: value.detach().cpu().contiguous() for name, value in weights.items()}, part)
        part.replace(checkpoint)

    return save


def restore(place: Place, checkpoint: Path) -> None:
    """Put the weights of a `base` checkpoint into the folder's pipeline."""
    pipeline = load(place)
    model = VelocityModel(pipeline, torch.device("cpu"))
    model.load_state_dict({**model.state_dict(), **load_file(checkpoint)})
    model.release()
    _save(pipeline, place.pipeline)


def straighten(
    place: Place, settings: BaseSettings, budget: Budget, pairs: int, steps: int = 20, say: Say = print
) -> dict[str, Any]:
    """Make `pairs` pairs by `steps` Heun steps and train the folder's base on them."""
    pipeline = load(place)
    model = _model(pipeline, place, settings, say)
    start = time.perf_counter()
    data = make_pairs(model.eval(), pairs, steps, settings.batch, settings.seed + 200, say)
    making = time.perf_counter() - start
    history = train_base(model, data, settings, budget, say)
    model.release()
    _save(pipeline, place.pipeline)
    values = {"settings": asdict(settings), "pairs": pairs, "steps": history.steps, "seconds": history.seconds}
    return _note(place, "straighten", {**values, "pair_seconds": making, "samples": history.steps * settings.batch})


class ScorerPool:
    """The checker in several processes; with no workers, in this one."""

    def __init__(self, workers: int) -> None:
        """Starts the processes at once, so that they are ready when the first pictures come."""
        self._pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn")) if workers else None
        self._workers = workers
        if self._pool:
            blank = np.zeros((1, 64, 64, 3), np.uint8)
            self._ready = [self._pool.submit(score_scenes, blank, ["a red circle"]) for _ in range(workers)]

    def __call__(
        self, images: NDArray[np.uint8], prompts: Sequence[str]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """As `score_scenes`."""
        if self._pool is None:
            return score_scenes(images, prompts)
        cuts = np.linspace(0, len(prompts), 4 * self._workers + 1).astype(int)
        parts = [slice(a, b) for a, b in pairwise(cuts.tolist())]
        results = list(self._pool.map(score_scenes, [images[p] for p in parts], [prompts[p] for p in parts]))
        return np.concatenate([soft for soft, _ in results]), np.concatenate([strict for _, strict in results])

    def close(self) -> None:
        """End the processes."""
        if self._pool:
            self._pool.shutdown()


def curves(
    place: Place, settings: CurveSettings, score: ScorerPool | None = None, name: str = "curves", say: Say = print
) -> dict[str, Any]:
    """Measure the folder's pipeline, draw `grid.png`, and return the curve."""
    pipeline = load(place)
    model = VelocityModel(pipeline, place.device, compiled=place.compiled).eval()
    vae = pipeline.vae.to(place.device)
    points, _ = measure(model, vae, settings, score or score_scenes)
    say(f"{name}, shift {settings.shift}\n{table(points)}")
    _grid(model, vae, settings, place.folder / "grid.png")
    return _note(place, name, {"settings": asdict(settings), "points": as_records(points)})


def _grid(model: VelocityModel, vae: Any, settings: CurveSettings, path: Path, columns: int = 12) -> None:
    texts = heldout_prompts(min(16, settings.prompts))
    captions = captions_of([parse(text) for text in texts]).index().repeat_interleave(columns)
    channels = int(model.transformer.config.in_channels)
    noise = torch.randn(len(captions), model.side**2, channels, generator=torch.Generator().manual_seed(11))
    steps = sigmas(settings.regenerate, settings.shift)
    images = generate(model, vae, captions, noise, steps, min(settings.batch, len(captions)))
    side = images.shape[1]
    rows = images.reshape(len(texts), columns, side, side, 3).transpose(0, 2, 1, 3, 4)
    Image.fromarray(rows.reshape(len(texts) * side, columns * side, 3)).save(path)


@dataclass(frozen=True)
class Plan:
    """A whole training: how long each stage may take. A stage without a budget is left out; the folder must then
    hold what an earlier run made."""

    size: str = "embedded"
    vae: Budget | None = None
    base: Budget | None = None
    straighten: Budget | None = None
    scenes: int = 2_000_000
    pairs: int = 500_000
    vae_settings: VaeSettings = field(default_factory=VaeSettings)
    base_settings: BaseSettings = field(default_factory=BaseSettings)
    straighten_rate: float = 1e-3
    curve_settings: CurveSettings = field(default_factory=CurveSettings)


def run_plan(place: Place, plan: Plan, score: ScorerPool | None = None, say: Say = print) -> dict[str, Any]:
    """All stages of a plan in this process, curves after the base and after the straightening; the last curves."""
    # The curves need few forwards of another batch size: compiling for them would take longer than it saves.
    eager = replace(place, compiled=False)
    if plan.vae:
        autoencoder(place, plan.size, plan.vae_settings, plan.vae, say=say)
    found: dict[str, Any] = {}
    if plan.base:
        base(place, plan.base_settings, plan.base, plan.scenes, place.folder / "checkpoint.safetensors", say)
        found = curves(eager, plan.curve_settings, score, "base curves", say)
    if plan.straighten:
        settings = replace(plan.base_settings, learning_rate=plan.straighten_rate, train_text=False)
        shutil.copytree(place.pipeline, place.folder / "unstraightened", dirs_exist_ok=True)
        straighten(place, settings, plan.straighten, plan.pairs, say=say)
        found = curves(eager, plan.curve_settings, score, "straightened curves", say)
    return found


def export(place: Place, folder: Path, shift: float = CurveSettings.shift) -> None:
    """Write the folder's pipeline in bfloat16, as it is shipped, with its scheduler at this static shift."""
    pipeline = load(place)
    pipeline.register_modules(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=shift), tokenizer=clip_tokenizer(), tokenizer_2=t5_tokenizer()
    )
    for part in (pipeline.transformer, pipeline.vae, pipeline.text_encoder, pipeline.text_encoder_2):
        torch.nn.Module.to(part, dtype=torch.bfloat16)
    pipeline.save_pretrained(folder, safe_serialization=True)
    for path in folder.rglob("*"):
        if path.name.endswith(("config.json", "index.json")):
            _forget_origin(path)
        if path.is_file():
            path.chmod(0o644)


def _forget_origin(path: Path) -> None:
    """Take out where the part was loaded from: the same weights would differ from machine to machine."""
    content = json.loads(path.read_text())
    kept = {key: value for key, value in content.items() if key not in _ORIGIN}
    path.write_text(json.dumps(kept, indent=2) + "\n")
