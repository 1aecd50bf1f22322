"""The trained network: one base, several LoRA adapters, one active at a time."""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import peft
import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from solrl_tasks.config.words import counted
from solrl_tasks.models.lora import LoraError, LoraState, from_named, init_lora
from solrl_tasks.models.twin import share

Adapter = Literal["current", "old"]
Role = Literal["current", "old", "reference"]
ADAPTERS: tuple[Adapter, ...] = ("current", "old")


class PolicyModel:
    """A twin of the base with two LoRA adapters in float32.

    ``current`` is trained, ``old`` samples, ``reference`` is the base with both switched off. Whatever is
    active, exactly the weights of ``current`` require a gradient. Both start as an adapter that changes
    nothing.

    The network computes as it was loaded. In a bfloat16 one the adapters' products are autocast to bfloat16, and only
    theirs: autocast around the whole network would also take down what a family computes in float32 on purpose, such as
    SANA's linear attention. Weights, gradients and optimizer stay float32.
    """

    def __init__(self, transformer: nn.Module, rank: int, alpha: float, paths: tuple[str, ...]) -> None:
        """
        Args:
            transformer: the base, frozen; it is not modified.
            paths: dotted paths of the layers to adapt.

        Raises:
            LoraError: a path leads to no adaptable layer.
            ValueError: the base is not frozen.
        """
        if any(parameter.requires_grad for parameter in transformer.parameters()):
            raise ValueError("the base of a policy must be frozen: call requires_grad_(False) on it first")
        initial = init_lora(transformer, paths, rank, alpha, seed=0)
        self.module = share(transformer)
        self._rank, self._alpha, self._paths = rank, alpha, initial.paths
        self._inject()
        self._layers = {path: self._layer(path) for path in self._paths}
        self._role: Role = "current"
        self._activate("current")
        for adapter in ADAPTERS:
            self.load(adapter, initial)

    def _inject(self) -> None:
        config = peft.LoraConfig(
            r=self._rank,
            lora_alpha=self._alpha,
            target_modules="|".join(re.escape(path) for path in self._paths),
            lora_dropout=0.0,
            bias="none",
        )
        # peft draws initial weights, which are overwritten: the global generator must not notice.
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Already found a `peft_config`")
            for adapter in ADAPTERS:
                peft.inject_adapter_in_model(config, self.module, adapter_name=adapter)
        self.module.eval()

    def _layer(self, path: str) -> LoraLayer:
        layer = self.module.get_submodule(path)
        assert isinstance(layer, LoraLayer)
        for factors in (layer.lora_A, layer.lora_B):
            for adapter in ADAPTERS:
                factors[adapter] = _autocast(factors[adapter].to(torch.float32))
        layer.cast_input_dtype_enabled = False
        return layer

    def checkpoint(self, enabled: bool) -> None:
        """Whether a forward pass with gradients keeps one activation a block and computes the others again.

        Raises:
            ValueError: the network cannot.
        """
        network: Any = self.module
        if not getattr(network, "_supports_gradient_checkpointing", False):
            if enabled:
                raise ValueError(
                    f"update.gradient_checkpointing: {type(network).__name__} cannot compute activations again: "
                    "set it to false, and lower update.micro_batch where memory is short"
                )
        elif enabled:
            network.enable_gradient_checkpointing(gradient_checkpointing_func=_recomputed)
        else:
            network.disable_gradient_checkpointing()

    def load(self, adapter: Adapter, state: LoraState) -> None:
        """Overwrite an adapter, in place.

        Raises:
            LoraError: the state has another rank, alpha or set of layers.
        """
        if (state.rank, state.alpha, state.paths) != (self._rank, self._alpha, self._paths):
            raise LoraError(
                f"a LoRA of rank {state.rank}, alpha {state.alpha} and {counted(len(state.paths), 'layer')} does not "
                "fit"
                f" rank {self._rank}, alpha {self._alpha} and {counted(len(self._paths), 'layer')}, or the layers "
                "differ"
            )
        with torch.no_grad():
            for name, value in state.weights.items():
                parameter = self._parameter(name, adapter)
                parameter.copy_(value.view_as(parameter))

    def state(self, adapter: Adapter) -> LoraState:
        """A copy of an adapter's weights."""
        return from_named(self._rank, self._alpha, self._paths, lambda name: self._parameter(name, adapter).flatten(1))

    def trainable(self) -> list[tuple[str, nn.Parameter]]:
        """Names (as in ``LoraState.weights``) and parameters of ``current``, sorted by name."""
        names = [f"{path}.{factor}" for path in self._paths for factor in ("lora_A", "lora_B")]
        return [(name, self._parameter(name, "current")) for name in names]

    def memory(self) -> int:
        """Bytes of the adapters; everything else is the base's."""
        return sum(
            weights.weight.nbytes
            for layer in self._layers.values()
            for factor in (layer.lora_A, layer.lora_B)
            for weights in factor.values()
        )

    @contextmanager
    def role(self, role: Role) -> Iterator[None]:
        """Make a role active; on leaving, the one before is active again.

        A backward pass through checkpointed blocks runs them again: it must happen while the role is still
        active.
        """
        before = self._role
        self._activate(role)
        try:
            yield
        finally:
            self._activate(before)

    def _activate(self, role: Role) -> None:
        for layer in self._layers.values():
            layer.enable_adapters(role != "reference")
            layer.set_adapter("current" if role == "reference" else role)
            # peft makes whatever it activates trainable, and freezes the rest.
            for factor in (layer.lora_A, layer.lora_B):
                factor["current"].requires_grad_(True)
                factor["old"].requires_grad_(False)
        self._role = role

    def _parameter(self, name: str, adapter: Adapter) -> nn.Parameter:
        path, _, factor = name.rpartition(".")
        weights: Tensor = getattr(self._layers[path], factor)[adapter].weight
        assert isinstance(weights, nn.Parameter)
        return weights


class _AutocastLinear(nn.Linear):
    """A float32 factor that multiplies in the precision of its input."""

    def forward(self, input: Tensor) -> Tensor:
        with _precision(input):
            return super().forward(input)


class _AutocastConv2d(nn.Conv2d):
    """The same for convolutions."""

    def forward(self, input: Tensor) -> Tensor:
        with _precision(input):
            return super().forward(input)


def _precision(input: Tensor) -> torch.autocast:
    # No cache: it would keep a copy made without gradients, for an old policy, and hand it to the trained one.
    reduced = input.dtype != torch.float32
    dtype = input.dtype if reduced else torch.bfloat16
    return torch.autocast(input.device.type, dtype, enabled=reduced, cache_enabled=False)


def _autocast(factor: nn.Module) -> nn.Module:
    # peft looks factors up by name and asks for their weight alone: the module may as well be one of ours.
    kinds: dict[type[nn.Module], type[nn.Module]] = {nn.Linear: _AutocastLinear, nn.Conv2d: _AutocastConv2d}
    factor.__class__ = kinds[type(factor)]
    return factor


def _recomputed(module: nn.Module, *inputs: Any) -> Any:
    # Nothing in the networks draws random numbers.
    return checkpoint(module.__call__, *inputs, use_reentrant=False, preserve_rng_state=False)
