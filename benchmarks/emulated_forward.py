"""What emulating NVFP4 costs on a CPU: one forward of a network like the embedded one.

    python benchmarks/emulated_forward.py [--images 96] [--rounds 15] [--profile]

Float32 base and emulated twins take turns in one process, on one thread, on the same input, so that a busy
machine slows all of them alike. Time is the thread's CPU time, not the wall's; each figure is a median over
rounds, and the ratio is the median of the ratios within a round. The aim is a ratio of at most 1.8 for
``tensor`` scales at 96 images. ``--profile`` adds the operations that an emulated forward consists of.

The network is random: FLUX with 2 double and 4 single blocks, width 128, 2.31 M parameters, 44 quantised
layers, 16 image and 16 text tokens an image. Found on an AMD EPYC (Zen 4, AVX-512) with torch 2.13: 1.4, with
96 images and with 24.
"""

import argparse
import statistics
import time
from typing import Any

import torch
from diffusers import FluxTransformer2DModel
from torch import nn

from solrl_tasks.config.words import counted
from solrl_tasks.engines.nvfp4_emulated import NVFP4EmulatedEngine
from solrl_tasks.models.scope import LayerScope

SCOPE = LayerScope(include=(r"(single_)?transformer_blocks\..*",), skip=((r".*\.norm\w*\.linear", "adaptive norm"),))
TARGET = 1.8


def make_network() -> nn.Module:
    """A network of the embedded model's shape."""
    torch.manual_seed(0)
    network: nn.Module = FluxTransformer2DModel(
        patch_size=1,
        in_channels=64,
        num_layers=2,
        num_single_layers=4,
        attention_head_dim=32,
        num_attention_heads=4,
        joint_attention_dim=64,
        pooled_projection_dim=64,
        guidance_embeds=False,
        axes_dims_rope=(8, 12, 12),
    ).eval()
    return network


def make_inputs(images: int) -> dict[str, Any]:
    """One batch at sigma 0.7."""
    generator = torch.Generator().manual_seed(1)
    grid = torch.stack([torch.zeros(16), torch.arange(16.0) // 4, torch.arange(16.0) % 4], dim=1)
    return {
        "hidden_states": torch.randn(images, 16, 64, generator=generator),
        "encoder_hidden_states": torch.randn(images, 16, 64, generator=generator),
        "pooled_projections": torch.randn(images, 64, generator=generator),
        "timestep": torch.full((images,), 0.7),
        "img_ids": grid,
        "txt_ids": torch.zeros(16, 3),
        "return_dict": False,
    }


def make_twin(network: nn.Module, scale: str) -> nn.Module:
    """The network's emulated twin, synced to the base."""
    options = NVFP4EmulatedEngine.Options.model_validate({"activation_scale": scale})
    engine = NVFP4EmulatedEngine(options, torch.device("cpu"))
    engine.attach(network, SCOPE)
    report = engine.sync(None)
    print(f"{scale}: {counted(report.synced, 'layer')} quantised in {report.seconds:.3f} s")
    return engine.module


def measure(modules: dict[str, nn.Module], inputs: dict[str, Any], rounds: int) -> dict[str, list[float]]:
    """Seconds of CPU time of one forward, by module and round; two rounds to warm up are not counted."""
    times: dict[str, list[float]] = {name: [] for name in modules}
    for turn in range(rounds + 2):
        for name, module in modules.items():
            started = time.thread_time()
            module(**inputs)
            if turn >= 2:
                times[name].append(time.thread_time() - started)
    return times


@torch.no_grad()
def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    network, inputs = make_network(), make_inputs(arguments.images)
    modules = {"float32": network, "tensor": make_twin(network, "tensor"), "row": make_twin(network, "row")}
    times = measure(modules, inputs, arguments.rounds)
    print(f"{counted(arguments.images, 'image')}, {counted(arguments.rounds, 'round')}, one thread, target {TARGET}")
    for name, seconds in times.items():
        ratio = statistics.median(own / base for own, base in zip(seconds, times["float32"], strict=True))
        print(f"{name:8s} {statistics.median(seconds) * 1e3:8.1f} ms   ratio {ratio:.2f}")
    if arguments.profile:
        with torch.profiler.profile() as profile:
            modules["tensor"](**inputs)
        print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=20))


if __name__ == "__main__":
    main()
