"""Layers computed by NVIDIA's Transformer Engine, whatever its recipe. It is imported when a layer is first built."""

import functools
import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from solrl_tasks.engines.base import EngineError
from solrl_tasks.engines.layers import MatmulLayer, RowsLayer

PACKAGE: Final = "transformer_engine"
MINIMUM: Final = (2, 20)
"""The first release with every field of the recipes that are asked for."""
INSTALL: Final = f"{PACKAGE} is not installed: pip install 'sol-rl[te]'"


class TransformerEngineError(EngineError):
    """Transformer Engine is absent, too old or broken; the message says which."""


@dataclass(frozen=True)
class Recipe:
    """How Transformer Engine is to quantise.

    Attributes:
        label: what the matrix multiplications then are, for records.
        build: the recipe's own object, from the module ``transformer_engine.common.recipe``.
        row_multiple: an input's rows are padded with zeros to a multiple of this. Zeros change no maximum.
        feature_multiple: input and output features must be multiples of this.
    """

    label: str
    build: Callable[[ModuleType], Any]
    row_multiple: int
    feature_multiple: int


def load_transformer_engine() -> ModuleType:
    """The module ``transformer_engine.pytorch``.

    Raises:
        TransformerEngineError: it is not installed, too old, or cannot be imported.
    """
    try:
        package = importlib.import_module(PACKAGE)
        module = importlib.import_module(f"{PACKAGE}.pytorch")
    except ModuleNotFoundError as error:
        if error.name == PACKAGE:
            raise TransformerEngineError(INSTALL) from error
        raise TransformerEngineError(f"{PACKAGE} cannot be imported: it needs {error.name}") from error
    except Exception as error:
        first_line = next(iter(str(error).splitlines()), type(error).__name__)
        raise TransformerEngineError(f"{PACKAGE} cannot be imported: {first_line}") from error
    found = str(getattr(package, "__version__", "0"))
    if _numbers(found) < MINIMUM:
        raise TransformerEngineError(
            f"{PACKAGE} {found} is too old: {'.'.join(map(str, MINIMUM))} or newer is needed, "
            "pip install --upgrade 'sol-rl[te]'"
        )
    return module


def version() -> str:
    """Of Transformer Engine, which must be there."""
    return str(importlib.import_module(PACKAGE).__version__)


def build_recipe(recipe: Recipe) -> Any:
    """The recipe's own object; layers of a twin share one, which spares comparing them at each call."""
    load_transformer_engine()
    return recipe.build(importlib.import_module(f"{PACKAGE}.common.recipe"))


def why_not(weight: Tensor, recipe: Recipe) -> str | None:
    """Why a layer with this weight [out, in, ...] cannot be computed under a recipe; None if it can."""
    outputs, inputs = weight.shape[:2]
    for count, kind in ((inputs, "input"), (outputs, "output")):
        if count % recipe.feature_multiple:
            return f"{count} {kind} features are not a multiple of {recipe.feature_multiple}"
    if weight.dtype != torch.bfloat16:
        dtype = str(weight.dtype).removeprefix("torch.")
        return f"its weight is {dtype}, not bfloat16: set model.dtype to bfloat16"
    return None


class TELayer(RowsLayer):
    """A Linear or 1x1 convolution layer computed by a ``transformer_engine.pytorch.Linear``.

    Its weight exists only quantised, in storage that a ``load`` fills again. No module owns that storage, as no buffer
    can hold it; see ``held``. A compiler leaves the layer as it is and goes on behind it.

    Args:
        source: the base layer, bfloat16; its bias is shared.
        recipe: how rows are padded.
        built: its own object.
    """

    def __init__(self, source: MatmulLayer, recipe: Recipe, built: Any) -> None:
        super().__init__(source)
        engine = load_transformer_engine()
        outputs, inputs = source.weight.shape[:2]
        # Without gradients only what a forward needs is quantised. The initial weight is never used; left to itself
        # it would be drawn from the global random numbers.
        with torch.no_grad(), engine.quantized_model_init(enabled=True, recipe=built):
            linear = engine.Linear(
                inputs,
                outputs,
                bias=source.bias is not None,
                init_method=nn.init.zeros_,
                params_dtype=source.weight.dtype,
                device=source.weight.device,
            )
        linear.weight.requires_grad_(False)
        if source.bias is not None:
            linear.bias = source.bias
        self.bias = source.bias
        self._autocast = functools.partial(engine.autocast, enabled=True, recipe=built)
        self._row_multiple = recipe.row_multiple
        self._features = inputs, outputs
        self._dtype = source.weight.dtype
        # Around nn.Module, which would register it.
        self.__dict__["_linear"] = linear

    def extra_repr(self) -> str:
        return f"in={self._features[0]}, out={self._features[1]}"

    def held(self) -> dict[str, Tensor]:
        """The tensors that hold the quantised weight, by the names that Transformer Engine gives them."""
        weight = self.__dict__["_linear"].weight
        return {name.strip("_"): value for name, value in vars(weight).items() if type(value) is Tensor}

    @torch.no_grad()
    def load(self, weight: Tensor) -> None:
        # Rounded to the layer's dtype first: from other dtypes Transformer Engine quantises by kernels less used.
        self.__dict__["_linear"].weight.copy_(weight.flatten(1).to(self._dtype))

    def forward(self, x: Tensor) -> Tensor:
        return _outside_graphs(self, x)

    def compute(self, x: Tensor) -> Tensor:
        """What ``forward`` gives, never compiled."""
        return self.over_rows(x)

    @torch.no_grad()
    def _rows(self, x: Tensor) -> Tensor:
        inputs, outputs = self._features
        rows = x.reshape(-1, inputs).to(self._dtype)
        count = rows.shape[0]
        shape = (*x.shape[:-1], outputs)
        if count == 0:
            return x.new_empty(shape)
        padding = -count % self._row_multiple
        padded = functional.pad(rows, (0, 0, 0, padding)) if padding else rows
        with self._autocast():
            product: Tensor = self.__dict__["_linear"](padded)
        return product[:count].to(x.dtype).view(shape)


def _compute(layer: TELayer, x: Tensor) -> Tensor:
    return layer.compute(x)


# One function for all layers: compiled graphs are kept by the functions that they call, and are shared by equal blocks.
_outside_graphs: Callable[[TELayer, Tensor], Tensor] = _compute


def leave_to_eager() -> None:
    """Keep compilers out of all layers from now on: they cannot look into Transformer Engine. Loads the compiler."""
    global _outside_graphs  # noqa: PLW0603 (see above)
    if _outside_graphs is _compute:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _outside_graphs = torch.compiler.disable(_compute)  # type: ignore[no-untyped-call]


def _numbers(text: str) -> tuple[int, ...]:
    """The leading numbers of a version."""
    numbers = []
    for part in text.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)
