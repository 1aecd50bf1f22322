"""The life of an engine that holds merged weights: twin, merge, sync, record."""

import time
import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Set
from typing import Any, ClassVar, Literal, cast

import torch
from torch import nn

from solrl_tasks.config.base import Frozen
from solrl_tasks.config.words import counted
from solrl_tasks.engines.base import (
    Availability,
    EngineError,
    EngineRecord,
    SyncReport,
    device_present,
    hardware_name,
)
from solrl_tasks.engines.execution import Backend, Execution, compile_regions, resolve_execution
from solrl_tasks.engines.factors import FactorLoader
from solrl_tasks.engines.layers import MatmulLayer, MergedLayer, RolloutLayer
from solrl_tasks.models.dtypes import device_class
from solrl_tasks.models.lora import BASE_DIGEST, LoraState
from solrl_tasks.models.scope import LayerScope, is_matmul
from solrl_tasks.models.twin import share


class MergingEngine(ABC):
    """Base class of the engines; see ``engines.base.Engine`` for what each method promises.

    Weights are rebuilt from the untouched base every time: base + delta in float32, rounded (or quantised)
    once, written into storage that never moves, so that compiled graphs live on. A LoRA may touch layers outside the
    engine's scope; those are merged at the base's own precision.
    """

    name: ClassVar[str]
    version: ClassVar[str]
    kind: ClassVar[Literal["real", "emulated"]]
    Options: ClassVar[type[Frozen]]
    backend: ClassVar[Backend] = "inductor"
    """Of ``torch.compile``."""
    fullgraph: ClassVar[bool] = True
    """Whether compiled blocks must be one graph each."""

    def __init__(self, options: Any, device: torch.device) -> None:
        self.options = options
        self.device = device
        self._base: nn.Module | None = None
        self._twin: nn.Module | None = None
        self._layers: dict[str, RolloutLayer] = {}
        self._replaced: tuple[str, ...] = ()
        self._skipped: dict[str, str] = {}
        self._touched: frozenset[str] = frozenset()
        self._digest: str | None = None
        self._held: weakref.ref[LoraState] | None = None
        self._factors = FactorLoader(device)
        self._execution: Execution = resolve_execution(options, device_class(device))

    @classmethod
    def available(cls, device: torch.device) -> Availability:
        return device_present(device)

    @classmethod
    @abstractmethod
    def numerics(cls, options: Any, device_class: str) -> dict[str, str]:
        """See ``Engine.numerics``."""

    @abstractmethod
    def _replacement(self, source: MatmulLayer) -> RolloutLayer | str:
        """The engine's own layer for a base layer, or the reason why there cannot be one."""

    @abstractmethod
    def _compute(self) -> str:
        """What the matrix multiplications really are, for the record."""

    @classmethod
    def kind_on(cls, device_class: str) -> Literal["real", "emulated"]:  # noqa: ARG003
        """``kind``, unless it is another on devices of a class such as ``cpu`` or ``sm_90``."""
        return cls.kind

    def _rewrite(self, twin: nn.Module) -> None:  # noqa: B027 (most engines leave it as it is)
        """Change what is around the layers of a twin, once they are its own; nothing by default."""

    def attach(self, base: nn.Module, scope: LayerScope) -> None:
        if self._twin is not None:
            raise EngineError(f"engine {self.name!r} is attached already: build another one for another network")
        _check_device(base, self.device, self.name)
        match = scope.resolve(base)
        twin, skipped = share(base), dict(match.skipped)
        layers: dict[str, RolloutLayer] = {}
        for path in match.replaced:
            layer = self._replacement(_matmul(base, path))
            if isinstance(layer, str):
                skipped[path] = layer
            else:
                twin.set_submodule(path, layer, strict=True)
                layers[path] = layer
        if not layers:
            reasons = "; ".join(f"{path}: {reason}" for path, reason in skipped.items()) or "it has none"
            raise EngineError(f"engine {self.name!r} can replace no layer of this network ({reasons})")
        self._rewrite(twin)
        if self._execution == "compiled":
            compile_regions(twin, layers, self.name, self.backend, self.fullgraph)
        self._base, self._twin, self._layers = base, twin, layers
        self._replaced, self._skipped = tuple(layers), skipped

    @torch.no_grad()
    def sync(self, lora: LoraState | None) -> SyncReport:
        started = time.perf_counter()
        if lora is not None and self._held is not None and self._held() is lora and self._digest is not None:
            # The very same adapter: its digest, a hash of all its numbers, need not be asked for.
            return self._report(0, started, f"already held policy {self._digest[:12]}")
        paths = self._check_paths(lora)
        digest = BASE_DIGEST if lora is None else lora.digest
        held = None if lora is None else weakref.ref(lora)
        if digest == self._digest:
            self._held = held
            return self._report(0, started, f"already held policy {digest[:12]}")
        if digest == BASE_DIGEST:
            lora, paths = None, frozenset()
        adopted = self._adopt(paths)
        stale = set(self._layers) if self._digest is None else paths | self._touched
        # Until every layer is written the twin holds no policy, so a failure half-way cannot pass for one.
        self._digest = self._held = None
        synced = self._write(stale, lora, paths)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        if synced != len(stale):
            raise EngineError(f"engine {self.name!r} wrote {synced} of {counted(len(stale), 'layer')}")
        self._touched, self._digest, self._held = paths, digest, held
        return self._report(synced, started, self._note(synced, adopted))

    def _write(self, stale: Set[str], lora: LoraState | None, paths: frozenset[str]) -> int:
        """Rebuild the weights of these layers; returns how many."""
        assert self._base is not None
        synced = 0
        for path in sorted(stale - paths):
            self._layers[path].merge(_matmul(self._base, path).weight.detach(), None)
            synced += 1
        if lora is None:
            return synced
        for path, factors in self._factors.load(lora, sorted(stale & paths)):
            base = _matmul(self._base, path).weight.detach()
            self._layers[path].merge(base, factors.delta().view(base.shape))
            synced += 1
        return synced

    def _note(self, synced: int, adopted: int) -> str:
        assert self._digest is not None
        note = f"wrote {counted(synced, 'layer')} for policy {self._digest[:12]}"
        if adopted and self._execution == "compiled":
            plural = "s" if adopted > 1 else ""
            note += f"; {adopted} new layer{plural}: compiled blocks are traced again"
        return note

    @property
    def module(self) -> nn.Module:
        if self._twin is None or self._digest is None:
            raise EngineError(f"engine {self.name!r} holds no policy yet: attach and sync it before use")
        return self._twin

    @property
    def policy_digest(self) -> str | None:
        return self._digest

    @property
    def static_shapes(self) -> bool:
        return self._execution == "compiled"

    def memory(self) -> dict[str, int]:
        sizes: Counter[str] = Counter()
        for layer in self._layers.values():
            sizes.update({name: buffer.nbytes for name, buffer in layer.named_buffers()})
        return dict(sizes)

    def record(self) -> EngineRecord:
        return EngineRecord(
            name=self.name,
            version=self.version,
            kind=self.kind_on(device_class(self.device)),
            compute=self._compute(),
            hardware=hardware_name(self.device),
            replaced=self._replaced,
            skipped=self._skipped,
            execution=self._execution,
            options=self.options.model_dump(mode="json"),
        )

    def _check_paths(self, lora: LoraState | None) -> frozenset[str]:
        if self._base is None:
            raise EngineError(f"engine {self.name!r} is not attached: call attach with the base network first")
        if lora is None:
            return frozenset()
        if not lora.paths:
            raise EngineError(
                f"engine {self.name!r} was given a LoRA without layers: 0 layers would be synced. "
                "Pass None to sample from the base"
            )
        for path in lora.paths:
            expected, found = _matmul(self._base, path).weight.shape[:2], _delta_shape(lora, path)
            if expected != found:
                raise EngineError(f"LoRA layer {path} is {list(found)}, the network's is {list(expected)}")
        return frozenset(lora.paths)

    def _adopt(self, paths: frozenset[str]) -> int:
        assert self._base is not None and self._twin is not None
        adopted = sorted(paths - set(self._layers))
        for path in adopted:
            layer = MergedLayer(_matmul(self._base, path))
            self._twin.set_submodule(path, layer, strict=True)
            self._layers[path] = layer
            self._skipped[path] += "; LoRA merged at the base's precision"
        return len(adopted)

    def _report(self, synced: int, started: float, note: str) -> SyncReport:
        assert self._digest is not None
        return SyncReport(
            engine=self.name,
            policy_digest=self._digest,
            synced=synced,
            replaced=len(self._replaced),
            skipped=dict(Counter(self._skipped.values())),
            seconds=time.perf_counter() - started,
            note=note,
        )


def _delta_shape(lora: LoraState, path: str) -> torch.Size:
    return torch.Size((lora.weights[f"{path}.lora_B"].shape[0], lora.weights[f"{path}.lora_A"].shape[1]))


def _matmul(root: nn.Module, path: str) -> MatmulLayer:
    try:
        layer = root.get_submodule(path)
    except AttributeError as error:
        raise EngineError(f"LoRA layer {path}: the network has no such layer") from error
    if not is_matmul(layer):
        raise EngineError(f"LoRA layer {path} is a {type(layer).__name__}, not a Linear or 1x1 convolution layer")
    return cast(MatmulLayer, layer)


def _check_device(base: nn.Module, device: torch.device, name: str) -> None:
    found = {parameter.device.type for parameter in base.parameters()}
    if found - {device.type}:
        raise EngineError(
            f"engine {name!r} is for {device}, the base network is on {', '.join(sorted(found))}: "
            "load the model on the engine's device"
        )
