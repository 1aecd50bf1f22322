"""NVFP4 on a GPU: whether the kernel is exact, what it and its layers cost, and Transformer Engine beside it.

    python benchmarks/nvfp4_kernels.py [--only exact time layers sync twins reference] [--out FILE]

Prints one JSON object a line, and appends them to FILE. A part that fails prints its traceback and the others go on.
Times are medians, in milliseconds, of runs between events of the device after some to warm up.

``exact``      numbers that differ in a bit from plain torch, in eager calls and in compiled graphs (wanted: 0)
``time``       the quantiser alone with its rate in GB/s, beside plain torch, and with other sizes of programs
``layers``     a linear layer of FLUX: bfloat16, emulated NVFP4, and Transformer Engine under FP8 or NVFP4
``sync``       all weights of FLUX's layers quantised once, with the kernel and with plain torch
``twins``      a few blocks of FLUX at full width: bfloat16, emulated NVFP4, Transformer Engine, each compiled and not
``reference``  numbers that differ from Transformer Engine's reference quantiser (wanted: 0)
"""

import argparse
import functools
import itertools
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from solrl_tasks.config.extensions import build
from solrl_tasks.engines.base import hardware_name
from solrl_tasks.engines.kernels import nvfp4 as kernels
from solrl_tasks.engines.merging import MergingEngine
from solrl_tasks.engines.numerics import nvfp4 as plain
from solrl_tasks.engines.nvfp4 import NVFP4Engine
from solrl_tasks.engines.te_engine import TransformerEngine
from solrl_tasks.engines.te_layer import Recipe, TransformerEngineError, load_transformer_engine
from solrl_tasks.models.scope import LayerScope

CUDA = torch.device("cuda")
SHAPES = [(36864, 3072), (36864, 12288), (36864, 15360), (24576, 2240)]
LAYERS = [(36864, 3072, 3072), (36864, 3072, 12288), (36864, 12288, 3072), (36864, 15360, 3072)]
"""(rows, input features, output features): FLUX with 24 images of 512 px."""
FLUX_WEIGHTS = [((3072, 3072), 266), ((12288, 3072), 76), ((3072, 12288), 38), ((3072, 15360), 38)]
"""(shape, number of layers): FLUX's 8.6 billion quantised parameters."""
SCOPE = LayerScope((r"(single_)?transformer_blocks\..*",), ((r".*norm.*", "adaptive norm"),))
Record = dict[str, Any]


class FP8Twin(TransformerEngine):
    """The code of engine nvfp4 under a recipe that Hopper runs."""

    name = "te-fp8"
    version = "1"

    @classmethod
    def numerics(cls, options: Any, device_class: str) -> dict[str, str]:  # noqa: ARG003 (the interface's)
        return {}

    def _choose_recipe(self) -> Recipe:
        return Recipe("fp8", lambda recipes: recipes.Float8CurrentScaling(), row_multiple=8, feature_multiple=16)


def draw(rows: int, columns: int, scale: float = 1.0, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> Any:
    """Rows of many magnitudes with zero rows, zero blocks, zeros of both signs and an outlier."""
    generator = torch.Generator(CUDA).manual_seed(seed)
    x = torch.randn(rows, columns, generator=generator, device=CUDA) * scale
    x *= 10.0 ** torch.empty(rows, 1, device=CUDA).uniform_(-8, 1, generator=generator)
    x[rows // 3], x[:, 32:48], x[1, 7] = 0, -0.0, 300 * scale
    return x.clamp(-3e38, 3e38).to(dtype)


def median_ms(run: Callable[[], Any], repeats: int = 20, warm_up: int = 5) -> float:
    """Median milliseconds of one run."""
    for _ in range(warm_up):
        run()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def wrong(found: plain.Quantized, expected: plain.Quantized) -> int:
    """Values and scales that are not the very same bits."""
    values = expected.values.to(torch.bfloat16).view(torch.int16)
    differing = (found.values.to(torch.bfloat16).view(torch.int16) != values).sum()
    return int(differing + (found.scale.view(torch.int32) != expected.scale.view(torch.int32)).sum())


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """One static graph of inductor's."""
    return torch.compile(function, fullgraph=True, dynamic=False)


def exact() -> Iterator[Record]:
    """Eager calls over shapes, modes, dtypes and magnitudes; then graphs that make their own input."""
    for rows, columns in [*SHAPES[:3], (7992, 2432), (333, 11200)]:
        for mode in ("tensor", "row"):
            count = total = 0
            for seed, scale in enumerate([1e-36, 1e-6, 1e-3, 1.0, 1e4, 1e30]):
                for dtype in (torch.bfloat16, torch.float32) if columns < 12288 else (torch.bfloat16,):
                    x = draw(rows, columns, scale, seed, dtype)
                    out = torch.empty(x.shape, dtype=torch.bfloat16, device=CUDA)
                    found = kernels.quantize_activation(x, mode, out)
                    count += wrong(found, plain.quantize_activation(x, mode))
                    total += x.numel()
            yield {"call": "eager", "shape": [rows, columns], "mode": mode, "numbers": total, "wrong": count}
    operator = kernels.operator("cuda")
    for per_row in (False, True):

        def forward(gate: Any, up: Any, per_row: bool = per_row) -> Any:
            x = nn.functional.gelu(gate, approximate="tanh") * up
            return x, *operator(x, per_row)

        graph = compiled(forward)
        x, values, scale = graph(draw(36864, 3072, seed=1), draw(36864, 3072, seed=2))
        expected = plain.quantize_activation(x, "row" if per_row else "tensor")
        count = wrong(plain.Quantized(values, scale), expected)
        yield {"call": "compiled", "per_row": per_row, "numbers": x.numel(), "wrong": count}


def timing() -> Iterator[Record]:
    """The quantiser at every shape, then other sizes of programs than the kernel's own."""
    for rows, columns in SHAPES:
        torch._dynamo.reset()
        yield from time_shape(draw(rows, columns))
    yield from time_programs(draw(36864, 3072))


def time_shape(x: torch.Tensor) -> Iterator[Record]:
    """Rates count one reading for the maximum of the tensor, one for the values, and one writing, all bfloat16. By rows
    the second reading is of the cache."""
    operator, kernel = kernels.operator("cuda"), kernels.kernels()
    out = torch.empty_like(x)
    bits, scale = torch.zeros((), dtype=torch.int32, device=CUDA), torch.empty((), device=CUDA)
    tensor_graph, row_graph = compiled(lambda x: operator(x, False)), compiled(lambda x: operator(x, True))
    largest = functools.partial(
        kernel["largest"][(-(-x.numel() // 8192),)], x, bits, x.numel(), NUMBERS=8192, num_warps=4
    )
    runs: dict[str, tuple[Callable[[], Any], int]] = {
        "maximum alone": (largest, 1),
        "tensor without maximum": (tensor_run(x, out, bits, scale, kernels.TILE, 4), 2),
        "eager, tensor": (lambda: kernels.quantize_activation(x, "tensor", out), 3),
        "eager, row": (lambda: kernels.quantize_activation(x, "row", out), 2),
        "compiled operator, tensor": (lambda: tensor_graph(x), 3),
        "compiled operator, row": (lambda: row_graph(x), 2),
        "plain torch, eager": (lambda: plain.quantize_activation(x, "tensor", out), 3),
        "copy": (lambda: out.copy_(x), 2),
    }
    for name, (run, passes) in runs.items():
        yield attempt(name, x, run, passes)


def tensor_run(x: Any, out: Any, bits: Any, scale: Any, tile: int, warps: int) -> Callable[[], Any]:
    """The quantising kernel with so many blocks and warps to a program."""
    blocks = x.numel() // plain.BLOCK
    kernel = kernels.kernels()["tensor"][(-(-blocks // tile),)]
    return functools.partial(kernel, x, bits, out, scale, blocks, TILE=tile, num_warps=warps)


def time_programs(x: torch.Tensor) -> Iterator[Record]:
    """Other sizes of programs than the kernels' own."""
    out, scale = torch.empty_like(x), torch.empty(len(x), 1, device=CUDA)
    bits = torch.zeros((), dtype=torch.int32, device=CUDA)
    row = kernels.kernels()["row"][(len(x),)]
    for tile, warps in itertools.product((64, 128, 256, 512, 1024), (1, 2, 4, 8)):
        yield attempt(f"tensor, tile {tile}, {warps} warps", x, tensor_run(x, out, bits, scale, tile, warps), 2)
        run = functools.partial(row, x, out, scale, ROW_BLOCKS=x.shape[1] // 16, TILE=tile, num_warps=warps)
        yield attempt(f"row, tile {tile}, {warps} warps", x, run, 2)
    for numbers, warps in itertools.product((2048, 4096, 8192, 16384, 32768), (4, 8)):
        largest = kernels.kernels()["largest"][(-(-x.numel() // numbers),)]
        run = functools.partial(largest, x, bits, x.numel(), NUMBERS=numbers, num_warps=warps)
        yield attempt(f"maximum, {numbers} numbers, {warps} warps", x, run, 1)


def attempt(name: str, x: torch.Tensor, run: Callable[[], Any], passes: int) -> Record:
    """One time, or why there is none."""
    try:
        ms = median_ms(run)
    except Exception:
        return {"what": name, "shape": list(x.shape), "error": traceback.format_exc()[-1500:]}
    rate = round(passes * x.nbytes / ms / 1e6)
    return {"what": name, "shape": list(x.shape), "ms": round(ms, 4), "gb_per_s": rate}


def kinds() -> list[tuple[str, type[MergingEngine] | None]]:
    """Engines of Transformer Engine that this machine has."""
    try:
        load_transformer_engine()
    except TransformerEngineError:
        return []
    return [("te-fp8", FP8Twin), *([("nvfp4", NVFP4Engine)] if NVFP4Engine.available(CUDA).ok else [])]


def make_engine(name: str, kind: type[MergingEngine] | None, net: nn.Module, scope: LayerScope, **options: Any) -> Any:
    """Attached and synced to the base."""
    engine = build("engine", name, options, CUDA) if kind is None else kind(kind.Options(**options), CUDA)
    engine.attach(net, scope)
    engine.sync(None)
    return engine


def layers() -> Iterator[Record]:
    """Each alone in its graph, beside bfloat16."""
    for rows, inputs, outputs in LAYERS:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(inputs, outputs)).requires_grad_(False).to(CUDA, torch.bfloat16)
        x = torch.randn(rows, inputs, device=CUDA, dtype=torch.bfloat16)
        expected = net(x).float()
        base = 0.0
        for name, kind in [("bf16", None), ("nvfp4-emulated", None), *kinds()]:
            torch._dynamo.reset()
            engine = make_engine(name, kind, net, LayerScope((".*",)))
            with torch.no_grad():
                error = (engine.module(x).float() - expected).norm() / expected.norm()
                ms = median_ms(functools.partial(engine.module, x))
            base = base or ms
            yield {
                "layer": [rows, inputs, outputs], "engine": name, "ms": round(ms, 3), "times_bf16": round(ms / base, 3),
                "tflop_per_s": round(2e-9 * rows * inputs * outputs / ms), "relative_error": round(error.item(), 5),
            }  # fmt: skip


def sync() -> Iterator[Record]:
    """The quantisation alone, float32 weights in, as in a sync."""
    for name, quantize in (("kernel", kernels.quantize_weight), ("plain torch", plain.quantize_weight)):
        for block in ("1x16", "16x16"):
            seconds = 0.0
            for shape, count in FLUX_WEIGHTS:
                weight = torch.randn(shape, device=CUDA)
                out = torch.empty(shape, dtype=torch.bfloat16, device=CUDA)
                ms = median_ms(functools.partial(quantize, weight, block, out), repeats=5, warm_up=2)
                seconds += ms * count / 1e3
            yield {"sync": "FLUX", "quantiser": name, "block": block, "ms": round(seconds * 1e3, 1)}


def make_flux(double: int, single: int) -> nn.Module:
    """A few blocks of FLUX.1 at full width."""
    from diffusers import FluxTransformer2DModel

    torch.manual_seed(0)
    with torch.device(CUDA):
        net = FluxTransformer2DModel(num_layers=double, num_single_layers=single, guidance_embeds=False)
    return net.to(torch.bfloat16).eval().requires_grad_(False)


def flux_inputs(images: int) -> dict[str, Any]:
    """One batch of 512 px at sigma 0.7."""
    generator = torch.Generator(CUDA).manual_seed(1)
    grid = torch.stack([torch.zeros(1024), torch.arange(1024.0) // 32, torch.arange(1024.0) % 32], 1)

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, generator=generator, device=CUDA, dtype=torch.bfloat16)

    return {
        "hidden_states": normal(images, 1024, 64), "encoder_hidden_states": normal(images, 512, 4096),
        "pooled_projections": normal(images, 768), "timestep": torch.full((images,), 0.7, device=CUDA),
        "img_ids": grid.to(CUDA), "txt_ids": torch.zeros(512, 3, device=CUDA), "return_dict": False,
    }  # fmt: skip


def twins(images: int = 24) -> Iterator[Record]:
    """Whole forwards; graphs made by a sync to another policy are counted, and wanted to be 0."""
    from torch._dynamo.utils import counters

    from solrl_tasks.models.lora import init_lora

    net, inputs = make_flux(2, 4), flux_inputs(images)
    arms: list[tuple[str, type[MergingEngine] | None, dict[str, Any]]] = [
        ("bf16", None, {}), ("nvfp4-emulated", None, {}), ("nvfp4-emulated", None, {"activation_scale": "row"}),
        ("nvfp4-emulated", None, {"execution": "eager"}),
    ]  # fmt: skip
    for name, kind in kinds():
        for eager in ({"execution": "eager"}, {}):
            arms += [(name, kind, {**eager, **graphs}) for graphs in ({}, {"graphs": True})]
    base = 0.0
    for name, kind, options in arms:
        try:
            torch._dynamo.reset()
            counters.clear()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            engine = make_engine(name, kind, net, SCOPE, **options)
            with torch.no_grad():
                started = time.perf_counter()
                first = engine.module(**inputs)[0].clone()
                torch.cuda.synchronize()
                seconds = time.perf_counter() - started
                ms = median_ms(functools.partial(engine.module, **inputs), repeats=7, warm_up=2) / images
                graphs = counters["stats"]["unique_graphs"]
                lora = init_lora(net, [engine.record().replaced[0]], 4, 8.0, seed=0)
                lora.weights[f"{lora.paths[0]}.lora_B"].fill_(0.05)
                engine.sync(lora)
                changed = not torch.equal(engine.module(**inputs)[0], first)
            base = base or ms
            yield {
                "twin": f"{name} {options}", "images": images, "ms_per_image": round(ms, 3),
                "times_bf16": round(ms / base, 3), "first_s": round(seconds, 1), "graphs": graphs,
                "graphs_by_sync": counters["stats"]["unique_graphs"] - graphs, "sync_changed_output": changed,
                "recordings": getattr(engine, "recordings", 0), "execution": engine.record().execution,
                "memory": engine.memory(), "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
            }  # fmt: skip
            del engine
        except Exception:
            yield {"twin": f"{name} {options}", "error": traceback.format_exc()[-1500:]}


def reference() -> Iterator[Record]:
    """Transformer Engine's reference quantiser in plain torch, which runs on any GPU that it is installed for."""
    load_transformer_engine()
    from transformer_engine.pytorch.custom_recipes import reference_nvfp4, reference_utils

    for name in ("tensor", "row", "16x16"):
        square = name == "16x16"
        theirs = reference_nvfp4.NVFP4QuantizerRef(
            dtype=reference_utils.Fp4Formats.E2M1,
            columnwise=False,
            quant_tile_shape=(16, 16) if square else (1, 16),
            row_scaled_nvfp4=name == "row",
        )
        for dtype in (torch.bfloat16, torch.float32):
            count = total = 0
            for seed, scale in enumerate([1e-6, 1e-3, 1.0, 1e4]):
                x = draw(4096, 3072, scale, seed, dtype)
                tensor = theirs.quantize(x)
                codes = reference_nvfp4.cast_from_fp4x2(tensor.data, torch.float32)
                values = codes * tensor.scale.float().repeat_interleave(16, 1)
                mode: Any = name
                ours = kernels.quantize_weight(x, mode) if square else kernels.quantize_activation(x, mode)
                count += int((ours.values.float() != values).sum())
                total += x.numel()
            yield {"reference": name, "dtype": str(dtype), "numbers": total, "wrong": count}


PARTS: dict[str, Callable[[], Iterator[Record]]] = {
    "exact": exact, "time": timing, "layers": layers, "sync": sync, "twins": twins, "reference": reference,
}  # fmt: skip


def main() -> int:
    """Run the parts; the status is 1 if one failed or a number is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    bad = False

    def say(record: Record) -> None:
        line = json.dumps(record)
        print(line, flush=True)
        if arguments.out is not None:
            with arguments.out.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    say({"hardware": hardware_name(CUDA), "torch": torch.__version__, "nvfp4": NVFP4Engine.available(CUDA).reason})
    for name in arguments.only:
        started = time.perf_counter()
        try:
            for record in PARTS[name]():
                say({"part": name, **record})
                bad |= bool(record.get("wrong")) or "error" in record
        except Exception:
            bad = True
            say({"part": name, "error": traceback.format_exc()[-3000:]})
        say({"part": name, "seconds": round(time.perf_counter() - started, 1)})
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
