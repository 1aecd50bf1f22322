"""What a step costs in FP8 beside bfloat16, and what a sync does: one network, several engines, one process.

    python benchmarks/fp8_step.py --family flux [--images 24] [--resolution 512] [--arms bf16,fp8-plain,fp8,...]
        [--forwards 7] [--kernels] [--profile] [--out lines.jsonl]

The network alone is measured, with random weights and inputs (``random:`` sources), as the family's blocks are
compiled in a run. Arms, each beside the others in this process:

    bf16            adapter merged, compiled: what everything is compared with
    bf16-eager      the same, operation by operation: the noise floor of errors, and what compiling is worth
    fp8-plain       fp8 with ``fused: false``: what a compiler makes of the quantiser
    fp8             with the kernels that compute norms, gelu and gates
    nvfp4-emulated  as it is

A line of JSON an arm: milliseconds an image and step (median, least and greatest of the forwards, by the device's
clock), relative L2 error of the output against ``bf16``, milliseconds of the first sync and of two with adapters of
rank 32 on every layer (hashing of the adapter apart), graphs compiled and graphs that syncs added, memory of the twin
and greatest memory in use, seconds of the first forward. An arm that fails prints its traceback, and the others go on.

``--kernels`` times each kernel at the family's shapes beside the compiled plain quantiser, for several numbers of
warps, in GB/s of what has to be read and written. ``--profile`` adds the kernels in which a forward and a sync spend
most.
"""

import argparse
import gc
import json
import math
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from solrl_tasks.config.extensions import build, find_extension
from solrl_tasks.engines.base import require_engine
from solrl_tasks.engines.kernels import row_programs, rows
from solrl_tasks.engines.merging import MergingEngine
from solrl_tasks.engines.numerics import fp8
from solrl_tasks.models.lora import LoraState
from solrl_tasks.models.random_pipeline import draw_part
from solrl_tasks.models.sources import fetch

MODELS: Final = {"flux": "random:flux.1-dev", "sd3": "random:sd3.5-large", "sana": "random:sana-1.6b"}
IMAGES: Final = {"flux": 24, "sd3": 24, "sana": 96}
TEXT_TOKENS: Final = {"flux": 512, "sd3": 333, "sana": 300}
ARMS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "bf16": ("bf16", {}),
    "bf16-eager": ("bf16", {"execution": "eager"}),
    "fp8-plain": ("fp8", {"fused": False}),
    "fp8": ("fp8", {}),
    "nvfp4-emulated": ("nvfp4-emulated", {}),
}
RANK: Final = 32


class Lines:
    """Results as they come: to the screen, and to a file if there is one."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def write(self, **line: Any) -> None:
        text = json.dumps(line)
        print(text, flush=True)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(text + "\n")


class Timer:
    """Milliseconds by the device's clock, or the host's on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __call__(self, call: Callable[[], Any]) -> float:
        if self._device.type != "cuda":
            started = time.perf_counter()
            call()
            return 1000 * (time.perf_counter() - started)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))

    def wall(self, call: Callable[[], Any]) -> float:
        """Milliseconds until all that was started is done, by the host's clock."""
        self.wait()
        started = time.perf_counter()
        call()
        self.wait()
        return 1000 * (time.perf_counter() - started)

    def wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()


def make_network(family: str, source: str, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """The transformer of a ``random:`` source."""
    spec = find_extension("family", family)  # an unknown family is refused before weights are drawn
    assert spec.name == family
    from solrl_tasks.config.recipe import ModelSpec

    folder = fetch(ModelSpec(family=family, source=source))
    return draw_part(Path(folder), "transformer", dtype, device)


def make_inputs(family: str, network: nn.Module, images: int, resolution: int) -> dict[str, Any]:
    """One batch in the middle of the way from noise to data."""
    config: Any = network.config
    parameter = next(network.parameters())
    generator = torch.Generator(parameter.device).manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=parameter.device, dtype=parameter.dtype)

    level = torch.full((images,), 0.5, device=parameter.device)
    tokens = TEXT_TOKENS[family]
    if family == "flux":
        side = resolution // 16
        places = torch.arange(side, device=parameter.device, dtype=torch.float32)
        rows_, columns = torch.meshgrid(places, places, indexing="ij")
        return {
            "hidden_states": draw(images, side * side, config.in_channels),
            "encoder_hidden_states": draw(images, tokens, config.joint_attention_dim),
            "pooled_projections": draw(images, config.pooled_projection_dim),
            "timestep": level,
            "guidance": torch.full_like(level, 3.5) if config.guidance_embeds else None,
            "img_ids": torch.stack([torch.zeros_like(rows_), rows_, columns], dim=-1).reshape(-1, 3),
            "txt_ids": torch.zeros(tokens, 3, device=parameter.device),
        }
    if family == "sd3":
        side = resolution // 8
        return {
            "hidden_states": draw(images, config.in_channels, side, side),
            "encoder_hidden_states": draw(images, tokens, config.joint_attention_dim),
            "pooled_projections": draw(images, config.pooled_projection_dim),
            "timestep": level * 1000,
        }
    side = resolution // 32
    return {
        "hidden_states": draw(images, config.in_channels, side, side),
        "encoder_hidden_states": draw(images, tokens, config.caption_channels),
        "encoder_attention_mask": torch.ones(images, tokens, device=parameter.device, dtype=parameter.dtype),
        "timestep": level * 1000,
    }


def make_lora(network: nn.Module, paths: tuple[str, ...], seed: int) -> LoraState:
    """An adapter on every one of these layers, as small as trained ones are."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for path in paths:
        weight = network.get_submodule(path).weight
        assert isinstance(weight, Tensor)
        count, columns = weight.shape[:2]
        weights[f"{path}.lora_A"] = torch.randn(RANK, columns, generator=generator) / RANK
        weights[f"{path}.lora_B"] = torch.randn(count, RANK, generator=generator) / 100
    return LoraState(RANK, 2.0 * RANK, weights)


def graphs() -> int:
    """Graphs that torch has compiled in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


class Bench:
    """One network, and what is done with it."""

    def __init__(self, arguments: argparse.Namespace, lines: Lines) -> None:
        self.arguments = arguments
        self.lines = lines
        self.device = torch.device(arguments.device)
        self.timer = Timer(self.device)
        self.family = find_extension("family", arguments.family)
        dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        self.network = make_network(arguments.family, arguments.source, self.device, dtype)
        self.inputs = make_inputs(arguments.family, self.network, arguments.images, arguments.resolution)
        self.reference: Tensor | None = None
        self.loras: list[LoraState] = []

    def forward(self, engine: MergingEngine) -> Tensor:
        with torch.no_grad():
            output: Tensor = engine.module(**self.inputs, return_dict=False)[0]
        return output

    def arm(self, name: str) -> None:
        """Measure an engine, and write its line."""
        engine_name, options = ARMS[name]
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        require_engine(engine_name, self.device)
        engine: MergingEngine = build("engine", engine_name, options, self.device)
        engine.attach(self.network, self.family.scope)
        line: dict[str, Any] = {"arm": name, "family": self.arguments.family, "images": self.arguments.images}
        line["first_sync_ms"] = round(self.timer.wall(lambda: engine.sync(None)), 1)
        before = graphs()
        started = time.perf_counter()
        output = self.forward(engine)
        self.timer.wait()
        line["first_forward_s"] = round(time.perf_counter() - started, 1)
        line["graphs"] = graphs() - before
        line |= self.error(name, output)
        del output
        line |= self.speed(engine)
        line |= self.syncs(engine)
        record = engine.record()
        line |= {"kind": record.kind, "execution": record.execution, "compute": record.compute}
        line["twin_gib"] = round(sum(engine.memory().values()) / 2**30, 2)
        if self.device.type == "cuda":
            line["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
        self.lines.write(**line)
        if self.arguments.profile:
            self.profile(name, "forward", lambda: self.forward(engine))
            engine.sync(None)
            self.profile(name, "sync", lambda: engine.sync(self.lora(engine, 0)))

    def error(self, name: str, output: Tensor) -> dict[str, Any]:
        output = output.float()
        found: dict[str, Any] = {"finite": bool(output.isfinite().all())}
        if name == "bf16":
            self.reference = output.cpu()
        elif self.reference is not None:
            reference = self.reference.to(output.device)
            found["error"] = round(float((output - reference).norm() / reference.norm()), 5)
        return found

    def speed(self, engine: MergingEngine) -> dict[str, Any]:
        self.forward(engine)
        taken = [self.timer(lambda: self.forward(engine)) for _ in range(self.arguments.forwards)]
        an_image = [round(ms / self.arguments.images, 3) for ms in (statistics.median(taken), min(taken), max(taken))]
        return dict(zip(("ms_image_step", "ms_least", "ms_most"), an_image, strict=True))

    def lora(self, engine: MergingEngine, number: int) -> LoraState:
        while len(self.loras) <= number:
            self.loras.append(make_lora(self.network, engine.record().replaced, len(self.loras)))
        return self.loras[number]

    def syncs(self, engine: MergingEngine) -> dict[str, Any]:
        before = graphs()
        hashed, taken, synced = [], [], []
        for number in range(2):
            lora = self.lora(engine, number)
            hashed.append(round(self.timer.wall(lambda lora=lora: lora.digest), 1))
            taken.append(round(self.timer.wall(lambda lora=lora: synced.append(engine.sync(lora).synced)), 1))
            moved = self.forward(engine)
            assert bool(moved.isfinite().all())
        same = round(self.timer.wall(lambda: engine.sync(self.lora(engine, 1))), 2)
        return {
            "sync_ms": taken,
            "held_sync_ms": same,
            "hash_ms": hashed,
            "synced": synced[-1],
            "new_graphs": graphs() - before,
        }

    def profile(self, name: str, what: str, call: Callable[[], Any]) -> None:
        """Print where the time goes."""
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU]
        if self.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self.timer.wait()
        with profile(activities=activities) as profiler:
            call()
            self.timer.wait()
        key = "self_cuda_time_total" if self.device.type == "cuda" else "self_cpu_time_total"
        print(f"== {name}: {what}", flush=True)
        print(profiler.key_averages().table(sort_by=key, row_limit=25, max_name_column_width=90), flush=True)

    def release(self) -> None:
        gc.collect()
        torch._dynamo.reset()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def kernel_cases(
    family: str, images: int, resolution: int, device: torch.device
) -> Iterator[tuple[str, Any, Any, int]]:
    """Name, kernel call (of warps), plain function, and bytes to be moved, at the shapes of a family."""
    tokens = {"flux": (resolution // 16) ** 2, "sd3": (resolution // 16) ** 2, "sana": (resolution // 32) ** 2}[family]
    width = {"flux": 3072, "sd3": 2432, "sana": 2240}[family]
    compiled = row_programs.kernels()

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, dtype=torch.bfloat16)

    both = tokens + (TEXT_TOKENS[family] if family == "flux" else 0)
    x, modulation = draw(images, both, width), draw(images, 6 * width)
    count = images * both
    yield (
        f"quantise {count}x{width}",
        lambda warps: rows.launch_quantize(compiled["quantize"], x, warps=warps),
        lambda: fp8.quantize_rows(x),
        3 * count * width,
    )
    yield (
        f"modulate {count}x{width}",
        lambda warps: rows.launch_modulate(compiled["modulate"], x, modulation, 3, 4, 1e-6, warps=warps),
        lambda: fp8.modulate_quantize_rows(x, modulation, 3, 4, 1e-6),
        3 * count * width,
    )
    if family == "sana":
        pairs = draw(images, tokens, 2 * 5600)
        yield (
            f"gate {images * tokens}x5600",
            lambda warps: rows.launch_gate(compiled["gate"], pairs, warps=warps),
            lambda: fp8.gate_quantize_rows(pairs),
            5 * images * tokens * 5600,
        )
        return
    hidden = draw(images, both, 4 * width)
    yield (
        f"gelu {count}x{4 * width}",
        lambda warps: rows.launch_gelu(compiled["gelu"], hidden, None, warps=warps),
        lambda: fp8.gelu_quantize_rows(hidden),
        12 * count * width,
    )
    if family == "flux":
        yield (
            f"concat gelu {count}x{5 * width}",
            lambda warps: rows.launch_gelu(compiled["gelu"], hidden, x, warps=warps),
            lambda: fp8.gelu_quantize_rows(hidden, x),
            15 * count * width,
        )


def time_kernels(arguments: argparse.Namespace, lines: Lines) -> None:
    """Each kernel beside the compiled plain function."""
    device = torch.device(arguments.device)
    timer = Timer(device)

    def median_of(call: Callable[[], Any]) -> float:
        for _ in range(3):
            call()
        return statistics.median(timer(call) for _ in range(15))

    for name, call, plain, moved in kernel_cases(arguments.family, arguments.images, arguments.resolution, device):
        taken: dict[str, float] = {}
        for warps in (0, 2, 4, 8, 16):
            try:
                taken[str(warps) if warps else "default"] = round(median_of(lambda w=warps, c=call: c(w)), 4)
            except Exception:
                traceback.print_exc()
        try:
            taken["compiled plain"] = round(median_of(torch.compile(plain, dynamic=False)), 4)
        except Exception:
            traceback.print_exc()
        best = min((ms for label, ms in taken.items() if label != "compiled plain"), default=math.nan)
        lines.write(kernel=name, ms=taken, gb_s=round(moved / best / 1e6, 1))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=sorted(MODELS), required=True)
    parser.add_argument("--source", help="another random: source of the family")
    parser.add_argument("--images", type=int)
    parser.add_argument("--resolution", type=int, default=512)
    parser.add_argument("--arms", default="bf16,fp8-plain,fp8,nvfp4-emulated", help=f"of {', '.join(ARMS)}")
    parser.add_argument("--forwards", type=int, default=7)
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    arguments.source = arguments.source or MODELS[arguments.family]
    arguments.images = arguments.images or IMAGES[arguments.family]
    arguments.arms = [name for name in arguments.arms.split(",") if name]
    unknown = [name for name in arguments.arms if name not in ARMS]
    if unknown:
        parser.error(f"unknown arms {unknown}: there are {', '.join(ARMS)}")
    return arguments


def main() -> int:
    """Measure what the command line says; 1 if anything failed."""
    arguments = parse()
    lines = Lines(arguments.out)
    failures = 0
    if arguments.kernels:
        try:
            time_kernels(arguments, lines)
        except Exception:
            failures += 1
            traceback.print_exc()
        torch._dynamo.reset()
    if not arguments.arms:
        return int(failures > 0)
    bench = Bench(arguments, lines)
    hardware = torch.cuda.get_device_name() if bench.device.type == "cuda" else "CPU"
    size = sum(parameter.numel() for parameter in bench.network.parameters())
    lines.write(
        family=arguments.family, source=arguments.source, parameters=size, hardware=hardware, torch=torch.__version__
    )
    for name in arguments.arms:
        try:
            bench.arm(name)
        except Exception as error:
            failures += 1
            traceback.print_exc()
            lines.write(arm=name, family=arguments.family, failed=f"{type(error).__name__}: {error}"[:300])
        bench.release()
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
