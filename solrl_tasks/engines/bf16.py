"""The baseline: the base network's own precision, LoRA merged into the weights."""

from typing import Any, ClassVar, Literal

import torch

from solrl_tasks.engines.base import Availability, Engine, device_present
from solrl_tasks.engines.execution import EngineOptions, resolve_execution
from solrl_tasks.engines.layers import MatmulLayer, MergedLayer, RolloutLayer
from solrl_tasks.engines.merging import MergingEngine

_FLOAT32 = "bf16 (computed in float32: bf16 is not fast on every CPU)"


class Bf16Engine(MergingEngine):
    """Samples in the dtype in which the family loaded the base: bfloat16, or on CPUs float32 unless asked."""

    name: ClassVar[str] = "bf16"
    version: ClassVar[str] = "1"
    kind: ClassVar[Literal["real", "emulated"]] = "real"

    class Options(EngineOptions):
        """``execution`` alone."""

    @classmethod
    def available(cls, device: torch.device) -> Availability:
        present = device_present(device)
        if present.ok and device.type == "cpu":
            return Availability(True, f"{present.reason}; computes in float32 unless model.dtype is bfloat16")
        return present

    @classmethod
    def numerics(cls, options: Any, device_class: str) -> dict[str, str]:
        return {
            "matmul": "base dtype (on CPU float32 unless asked)" if device_class == "cpu" else "base dtype",
            "merge": "float32, rounded once",
            "execution": resolve_execution(options, device_class),
        }

    def _replacement(self, source: MatmulLayer) -> RolloutLayer | str:
        return MergedLayer(source)

    def _compute(self) -> str:
        dtypes = sorted({str(layer.weight.dtype).removeprefix("torch.") for layer in self._layers.values()})
        if dtypes == ["float32"]:
            return _FLOAT32 if self.device.type == "cpu" else "bf16 (computed in float32: the base was loaded so)"
        return ", ".join(dtypes)


ENGINE: type[Engine] = Bf16Engine
