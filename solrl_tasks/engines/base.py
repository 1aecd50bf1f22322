"""What an engine is, and what it says about itself."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import torch
from pydantic import Field, JsonValue
from torch import nn

from solrl_tasks.config.base import Frozen
from solrl_tasks.config.extensions import find_extension, list_extensions
from solrl_tasks.models.lora import LoraState
from solrl_tasks.models.scope import LayerScope


class EngineError(RuntimeError):
    """An engine that cannot do what it is asked to; nothing was replaced by something else instead."""


@dataclass(frozen=True)
class Availability:
    """Whether an engine can run on a device, and why or why not."""

    ok: bool
    reason: str


class SyncReport(Frozen):
    """What one ``sync`` did.

    Attributes:
        engine: its name.
        policy_digest: digest of the LoRA now held; ``base`` is the base alone.
        synced: layers whose weights were written; 0 if the engine held this policy already.
        replaced: layers of the twin that compute at the engine's precision.
        skipped: reason to number of layers left as they are.
        seconds: time spent, on the device's clock.
        note: one sentence for people.
    """

    engine: str
    policy_digest: str
    synced: int
    replaced: int
    skipped: dict[str, int]
    seconds: float
    note: str


class EngineRecord(Frozen):
    """What an engine really is; stored with every result that it made.

    Attributes:
        name, version: as in the recipe, and of the numerics.
        kind: ``real`` if the hardware computes at the precision of the name, else ``emulated``.
        compute: what the matrix multiplications really are.
        hardware: the device's own name.
        replaced: dotted paths of the layers that compute at the engine's precision.
        skipped: dotted path to reason, for every other matrix multiplication.
        execution: ``compiled`` or ``eager``.
        options: the engine's own options.
    """

    name: str
    version: str
    kind: Literal["real", "emulated"]
    compute: str
    hardware: str
    replaced: tuple[str, ...]
    skipped: dict[str, str]
    execution: str
    options: dict[str, JsonValue] = Field(default_factory=dict)


class Engine(Protocol):
    """One precision of one frozen network on one device.

    Built as ``cls(options, device)``, attached once, then synced to one policy after another. The base is
    read by every sync and never written.
    """

    name: ClassVar[str]
    version: ClassVar[str]
    kind: ClassVar[Literal["real", "emulated"]]

    def __init__(self, options: Any, device: torch.device) -> None: ...

    @property
    def Options(self) -> type[Frozen]:
        """A class attribute: the class of ``options``; without fields where there is nothing to choose."""
        ...

    @classmethod
    def available(cls, device: torch.device) -> Availability:
        """Whether it can run on a device; never raises."""
        ...

    @classmethod
    def numerics(cls, options: Any, device_class: str) -> dict[str, str]:
        """What decides the bits of its results, without loading anything.

        Args:
            options: an instance of ``Options``.
            device_class: ``cpu``, or ``sm_90`` and the like.
        """
        ...

    def attach(self, base: nn.Module, scope: LayerScope) -> None:
        """Build the twin of ``base``: the layers of ``scope`` become the engine's own, all else is shared.

        Raises:
            EngineError: the scope leaves no layer that the engine can replace; or it is attached already.
        """
        ...

    def sync(self, lora: LoraState | None) -> SyncReport:
        """Bring the twin to base + LoRA, in place; nothing is done if it is there already.

        Raises:
            EngineError: a LoRA without layers, or for layers that the network does not have.
        """
        ...

    @property
    def module(self) -> nn.Module:
        """The twin: called like the base, without gradients. It stays the same object for life.

        Raises:
            EngineError: not attached or never synced.
        """
        ...

    @property
    def policy_digest(self) -> str | None:
        """Digest of the policy that the twin holds; None before the first sync."""
        ...

    @property
    def static_shapes(self) -> bool:
        """Whether each new shape costs a compilation, so that a short batch is better padded than run as it is."""
        ...

    def memory(self) -> dict[str, int]:
        """Bytes of the tensors that the twin holds beyond those of the base, by what they are."""
        ...

    def record(self) -> EngineRecord:
        """What the attached engine really is."""
        ...


def report_engines(device: torch.device) -> dict[str, Availability]:
    """Every engine of the project by name, with whether it runs on ``device`` and why."""
    return {name: engine.available(device) for name, engine in list_extensions("engine").items()}


def require_engine(name: str, device: torch.device) -> type[Engine]:
    """The class of an engine that can run on ``device``.

    Raises:
        UnknownExtensionError: there is no engine of that name.
        EngineError: there is, but not for this device; the message names those that can run.
    """
    engine: type[Engine] = find_extension("engine", name)
    availability = engine.available(device)
    if not availability.ok:
        usable = ", ".join(other for other, found in report_engines(device).items() if found.ok) or "none"
        raise EngineError(
            f"engine {name!r} cannot run on {hardware_name(device)} ({device}): {availability.reason}. "
            f"Available here: {usable}. Name one of these in the recipe, or move to hardware that has it"
        )
    return engine


def device_present(device: torch.device) -> Availability:
    """Whether torch can use a device at all, which every engine needs; never raises."""
    try:
        torch.empty(0, device=device)
    except Exception as error:
        first_line = next(iter(str(error).splitlines()), type(error).__name__)
        return Availability(False, f"torch cannot use the device {device}: {first_line}")
    return Availability(True, f"runs on {hardware_name(device)}")


def hardware_name(device: torch.device) -> str:
    """The device in the words of its driver; of a CPU, its instruction set as torch uses it."""
    if device.type == "cuda" and torch.cuda.is_available():
        return torch.cuda.get_device_name(device)
    if device.type == "cpu":
        return f"CPU ({torch.backends.cpu.get_cpu_capability()})"
    return str(device)
