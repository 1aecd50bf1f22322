"""NVFP4 numerics on any device."""

from typing import Any, ClassVar, Literal

import torch

from solrl_tasks.engines import shared_inputs
from solrl_tasks.engines.base import Availability, Engine, device_present
from solrl_tasks.engines.execution import Backend, EngineOptions, resolve_execution
from solrl_tasks.engines.kernels import nvfp4 as kernels
from solrl_tasks.engines.kernels import triton_available
from solrl_tasks.engines.layers import MatmulLayer, RolloutLayer
from solrl_tasks.engines.merging import MergingEngine
from solrl_tasks.engines.numerics import nvfp4 as plain
from solrl_tasks.engines.numerics.nvfp4 import BlockShape, ScaleMode, why_not
from solrl_tasks.engines.nvfp4_layer import ActivationQuantizer, NVFP4Layer


class NVFP4EmulatedEngine(MergingEngine):
    """NVFP4 weights and activations (W4A4) in every layer of the scope, on hardware that need not have them.

    Numerics are those of NVFP4; time and memory are not. Operands have the same bits whether they were quantised by
    plain torch, by the kernel or in a compiled graph; sums are float32, in an order that the device chooses.
    """

    name: ClassVar[str] = "nvfp4-emulated"
    version: ClassVar[str] = "1"
    kind: ClassVar[Literal["real", "emulated"]] = "emulated"
    backend: ClassVar[Backend] = staticmethod(shared_inputs.inductor)

    class Options(EngineOptions):
        """How scales are shared.

        ``activation_scale``: one global scale for a whole input, as the hardware recipe has it, which makes
        an image depend on those computed together with it; or one a row, which does not.
        ``weight_block``: numbers of a weight that share a block scale; 1x16 is the more precise.
        """

        activation_scale: ScaleMode = "tensor"
        weight_block: BlockShape = "1x16"

    def __init__(self, options: Options, device: torch.device) -> None:
        super().__init__(options, device)
        self._values_dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self._kernel = device.type == "cuda" and triton_available()
        # Without Triton nothing is compiled for CUDA, and inductor says so.
        operator = self._execution == "compiled" and (self._kernel or device.type != "cuda")
        self._quantizer = ActivationQuantizer(
            options.activation_scale,
            self._values_dtype,
            kernels.quantize_activation if self._kernel else plain.quantize_activation,
            kernels.operator(device.type) if operator else None,
        )

    @classmethod
    def available(cls, device: torch.device) -> Availability:
        present = device_present(device)
        return Availability(True, f"{present.reason}; emulated: its speed is not NVFP4's") if present.ok else present

    @classmethod
    def numerics(cls, options: Any, device_class: str) -> dict[str, str]:
        operands = "bfloat16" if device_class.startswith("sm_") else "float32"
        return {
            "matmul": f"nvfp4 values in {operands}, accumulated in float32",
            "merge": "float32, quantised once",
            "activation_scale": options.activation_scale,
            "weight_block": options.weight_block,
            "execution": resolve_execution(options, device_class),
        }

    def _replacement(self, source: MatmulLayer) -> RolloutLayer | str:
        block: BlockShape = self.options.weight_block
        reason = why_not(source.weight.shape[0], source.weight.shape[1], block)
        weights = kernels.quantize_weight if self._kernel else plain.quantize_weight
        return reason or NVFP4Layer(source, block, self._quantizer, self._values_dtype, weights)

    def _compute(self) -> str:
        dtype = str(self._values_dtype).removeprefix("torch.")
        quantiser = "; quantised by a Triton kernel" if self._kernel else ""
        return f"nvfp4 values multiplied in {dtype}, summed in float32{quantiser}"


ENGINE: type[Engine] = NVFP4EmulatedEngine
