"""Engines on NVIDIA's Transformer Engine; a subclass is one recipe."""

from abc import abstractmethod
from collections import Counter
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from solrl_tasks.engines.base import EngineRecord
from solrl_tasks.engines.cuda_graphs import Recorder, Replayed, record_cuda_graph
from solrl_tasks.engines.execution import EngineOptions
from solrl_tasks.engines.layers import MatmulLayer, RolloutLayer
from solrl_tasks.engines.merging import MergingEngine
from solrl_tasks.engines.te_layer import Recipe, TELayer, build_recipe, leave_to_eager, version, why_not
from solrl_tasks.models.scope import LayerScope


class TransformerEngine(MergingEngine):
    """A twin whose layers are Transformer Engine's, requantised in place by every sync.

    Compiled, a block is graphs with a break at each of its layers. With ``graphs``, a whole forward, compiled or not,
    is one CUDA graph for each shape; it lives through syncs, as weights stay where they are.
    """

    kind: ClassVar[Literal["real", "emulated"]] = "real"
    fullgraph: ClassVar[bool] = False

    class Options(EngineOptions):
        """``graphs``: replay each forward as one CUDA graph, which spares the time that Python takes to start a
        thousand kernels and keeps the memory of one forward for each shape of inputs. It changes no bit, so it is in no
        key."""

        graphs: bool = Field(default=False, exclude=True)

    def __init__(self, options: Any, device: torch.device) -> None:
        super().__init__(options, device)
        self._recipe = self._choose_recipe()
        self._built: Any = None
        self._replayed: Replayed | None = None

    @abstractmethod
    def _choose_recipe(self) -> Recipe:
        """What the options ask for."""

    def _recorder(self) -> Recorder:
        """What makes a recording of a forward."""
        return record_cuda_graph

    @property
    def static_shapes(self) -> bool:
        return self._execution == "compiled" or bool(self.options.graphs)

    @property
    def recordings(self) -> int:
        """CUDA graphs held."""
        return 0 if self._replayed is None else len(self._replayed)

    def attach(self, base: nn.Module, scope: LayerScope) -> None:
        self._built = build_recipe(self._recipe)
        if self._execution == "compiled":
            leave_to_eager()
        super().attach(base, scope)
        assert self._twin is not None
        if self.options.graphs:
            self._replayed = Replayed(self._twin.forward, self.device, self._recorder())
            self._twin.forward = self._replayed

    def memory(self) -> dict[str, int]:
        sizes = Counter(super().memory())
        for layer in self._layers.values():
            if isinstance(layer, TELayer):
                sizes.update({name: tensor.nbytes for name, tensor in layer.held().items()})
        return dict(sizes)

    def record(self) -> EngineRecord:
        record = super().record()
        if self.options.graphs:
            return record.model_copy(update={"execution": f"{record.execution}, replayed as CUDA graphs"})
        return record

    def _adopt(self, paths: frozenset[str]) -> int:
        adopted = super()._adopt(paths)
        if adopted and self._replayed is not None:
            self._replayed.forget()
        return adopted

    def _replacement(self, source: MatmulLayer) -> RolloutLayer | str:
        return why_not(source.weight, self._recipe) or TELayer(source, self._recipe, self._built)

    def _compute(self) -> str:
        return f"{self._recipe.label}, by transformer_engine {version()}"
