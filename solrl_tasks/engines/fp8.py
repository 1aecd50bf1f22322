"""FP8 on hardware that has it: E4M3 by rows, with fused kernels where a network is known."""

from typing import Any, ClassVar, Literal

import torch
from torch import nn

from solrl_tasks.engines import shared_inputs
from solrl_tasks.engines.base import Availability, Engine, device_present
from solrl_tasks.engines.execution import Backend, EngineOptions, resolve_execution
from solrl_tasks.engines.fp8_layer import Fp8Layer
from solrl_tasks.engines.fusions import fuse
from solrl_tasks.engines.kernels import rows, triton_available
from solrl_tasks.engines.layers import MatmulLayer, RolloutLayer
from solrl_tasks.engines.merging import MergingEngine
from solrl_tasks.engines.numerics.fp8 import why_not

CAPABILITY = (8, 9)
"""The first of NVIDIA's devices that multiply FP8."""


class Fp8Engine(MergingEngine):
    """E4M3 weights and activations in every layer of the scope, one float32 scale a row, dynamic for activations."""

    name: ClassVar[str] = "fp8"
    version: ClassVar[str] = "1"
    kind: ClassVar[Literal["real", "emulated"]] = "real"
    backend: ClassVar[Backend] = staticmethod(shared_inputs.inductor)

    class Options(EngineOptions):
        """``fused``: activations and norms of known blocks are computed by the kernel that quantises them, with nothing
        rounded in between; else by the operations of the network."""

        fused: bool = True

    def __init__(self, options: Options, device: torch.device) -> None:
        super().__init__(options, device)
        self._fused_blocks = 0
        if device.type == "cuda" and options.fused:
            rows.register()

    @classmethod
    def available(cls, device: torch.device) -> Availability:
        present = device_present(device)
        if not present.ok:
            return present
        if device.type == "cuda":
            reason = _missing(device)
            return present if reason is None else Availability(False, reason)
        return Availability(
            True, f"{present.reason}; emulated: FP8 values multiplied in float32, its speed is not FP8's"
        )

    @classmethod
    def numerics(cls, options: Any, device_class: str) -> dict[str, str]:
        real = device_class.startswith("sm_")
        return {
            "matmul": "e4m3 rows, fast accumulation" if real else "e4m3 rows, accumulated in float32",
            "merge": "float32, quantised once",
            "fused": "on" if options.fused else "off",
            "execution": resolve_execution(options, device_class),
        }

    def _replacement(self, source: MatmulLayer) -> RolloutLayer | str:
        reason = why_not(source.weight.shape[0], source.weight.shape[1])
        return reason or Fp8Layer(source, self.options.fused)

    def _rewrite(self, twin: nn.Module) -> None:
        if self.options.fused:
            self._fused_blocks = fuse(twin)

    @classmethod
    def kind_on(cls, device_class: str) -> Literal["real", "emulated"]:
        return "real" if device_class.startswith("sm_") else "emulated"

    def _compute(self) -> str:
        how = "fast accumulation" if self.device.type == "cuda" else "emulated, summed in float32"
        return f"e4m3 values with a scale a row, {how}; {self._fused_blocks} blocks with fused kernels"


def _missing(device: torch.device) -> str | None:
    """What a CUDA device or its software lacks, or None."""
    if torch.version.hip is not None:
        return "FP8 of this engine is that of NVIDIA's devices"
    found = torch.cuda.get_device_capability(device)
    if found < CAPABILITY:
        return f"FP8 needs compute capability {_dotted(CAPABILITY)} or higher, this device has {_dotted(found)}"
    if not triton_available():
        return "FP8 quantises by Triton kernels, and Triton is not installed"
    return None


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))


ENGINE: type[Engine] = Fp8Engine
