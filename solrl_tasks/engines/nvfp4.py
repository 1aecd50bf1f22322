"""NVFP4 in hardware: Blackwell's FP4 matrix multiplications through Transformer Engine."""

from types import ModuleType
from typing import Any, ClassVar, Final

import torch

from solrl_tasks.engines.base import Availability, Engine, device_present
from solrl_tasks.engines.execution import resolve_execution
from solrl_tasks.engines.numerics.nvfp4 import BlockShape, ScaleMode
from solrl_tasks.engines.te_engine import TransformerEngine
from solrl_tasks.engines.te_layer import Recipe, TransformerEngineError, load_transformer_engine

# Its quantiser takes rows and columns by 16; the kernels that were tuned, and operands of 16 bytes, want 32.
_MULTIPLE: Final = 32
UNVERIFIED: Final = "written without such hardware, so its products are unverified"


class NVFP4Engine(TransformerEngine):
    """NVFP4 weights and activations (W4A4), multiplied by FP4 tensor cores. Needs compute capability 10.0.

    The recipe is Transformer Engine's for inference: no random Hadamard transform, no stochastic rounding. Its
    quantiser is what ``nvfp4-emulated`` has bit for bit; weights are rounded to bfloat16 before.
    """

    name: ClassVar[str] = "nvfp4"
    version: ClassVar[str] = "1"

    class Options(TransformerEngine.Options):
        """``activation_scale`` and ``weight_block`` as for ``nvfp4-emulated``; ``graphs`` and ``execution`` as for
        every engine on Transformer Engine. With ``row``, products are scaled outside of the tensor cores."""

        activation_scale: ScaleMode = "tensor"
        weight_block: BlockShape = "1x16"

    @classmethod
    def available(cls, device: torch.device) -> Availability:
        present = device_present(device)
        if not present.ok:
            return present
        if device.type != "cuda":
            return Availability(False, f"needs a GPU of compute capability 10.0 or higher, this is {device.type}")
        try:
            ok, reason = _ask(load_transformer_engine(), device)
        except TransformerEngineError as error:
            return Availability(False, str(error))
        return Availability(ok, f"{present.reason}; {_caution(device)}" if ok else reason)

    @classmethod
    def numerics(cls, options: Any, device_class: str) -> dict[str, str]:
        return {
            "matmul": "nvfp4 by transformer_engine, accumulated in float32",
            "merge": "float32, rounded to bfloat16, then quantised",
            "activation_scale": options.activation_scale,
            "weight_block": options.weight_block,
            "execution": resolve_execution(options, device_class),
        }

    def _choose_recipe(self) -> Recipe:
        square, by_row = self.options.weight_block == "16x16", self.options.activation_scale == "row"

        def build(recipes: ModuleType) -> Any:
            # Every field that bears on a forward: their defaults come from environment variables.
            return recipes.NVFP4BlockScaling(
                disable_rht=True,
                disable_stochastic_rounding=True,
                disable_2d_quantization=not square,
                row_scaled_activation=by_row,
                nvfp4_4over6="none",
                backward_override=None,
            )

        return Recipe(f"nvfp4 tensor cores ({UNVERIFIED})", build, _MULTIPLE, _MULTIPLE)


def _ask(engine: ModuleType, device: torch.device) -> tuple[bool, str]:
    """Transformer Engine's own answer, which is about the current device."""
    try:
        with torch.cuda.device(device):
            ok, reason = engine.is_nvfp4_available(return_reason=True)
    except Exception as error:
        first_line = next(iter(str(error).splitlines()), type(error).__name__)
        return False, f"transformer_engine cannot say whether it has NVFP4: {first_line}"
    return bool(ok), str(reason)


def _caution(device: torch.device) -> str:
    major, minor = torch.cuda.get_device_capability(device)
    if major == 10:
        return UNVERIFIED
    return f"{UNVERIFIED}; compute capability {major}.{minor} is not the one that Transformer Engine documents"


ENGINE: type[Engine] = NVFP4Engine
