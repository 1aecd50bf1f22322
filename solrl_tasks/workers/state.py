"""A policy as the update leaves it: every role, the optimizer, and the counters, exactly."""

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch

from solrl_tasks.models.lora import LoraState
from solrl_tasks.models.threads import threaded, total_bytes

Role = Literal["current", "old", "ema"]
ROLES: tuple[Role, ...] = ("current", "old", "ema")


@dataclass(frozen=True)
class PolicyState:
    """All that the next update needs.

    Random numbers of an update are counter-based (a pure function of run seed, iteration, optimizer step and
    candidate), so the counters are the whole state of the generators.

    Attributes:
        current: the trained LoRA.
        old: the lagged LoRA that samples.
        ema: the moving average that is evaluated.
        optimizer: AdamW's moments, ``<parameter>.exp_avg`` and ``<parameter>.exp_avg_sq``, float32.
        iteration: iterations done.
        optimizer_step: optimizer steps done.
    """

    current: LoraState
    old: LoraState
    ema: LoraState
    optimizer: dict[str, torch.Tensor] = field(default_factory=dict)
    iteration: int = 0
    optimizer_step: int = 0

    def role(self, role: Role) -> LoraState:
        """The LoRA of a role."""
        states: dict[Role, LoraState] = {"current": self.current, "old": self.old, "ema": self.ema}
        return states[role]

    @cached_property
    def digest(self) -> str:
        """sha256 (hex) of all of it, every tensor and counter; taken once. It names a state between processes alone."""
        tensors = {f"{role}/{name}": value for role in ROLES for name, value in self.role(role).weights.items()}
        tensors |= self.optimizer
        names = sorted(tensors)
        hashes = threaded(lambda name: _hash(tensors[name]), names, total_bytes(tensors.values()))
        head = f"{self.current.rank} {self.current.alpha!r} {self.iteration} {self.optimizer_step}\n"
        lines = (f"{name} {list(tensors[name].shape)} {one}\n" for name, one in zip(names, hashes, strict=True))
        return hashlib.sha256("".join([head, *lines]).encode()).hexdigest()

    @property
    def nbytes(self) -> int:
        """Of all its tensors."""
        return sum(self.role(role).nbytes for role in ROLES) + total_bytes(self.optimizer.values())

    def role_digests(self) -> dict[Role, str]:
        """The digest of each LoRA, taken side by side."""
        digests = threaded(lambda role: self.role(role).digest, ROLES, self.nbytes)
        return dict(zip(ROLES, digests, strict=True))


def initial_state(lora: LoraState) -> PolicyState:
    """The policy before any update: all roles equal."""
    return PolicyState(current=lora, old=lora, ema=lora)


def _hash(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.detach().contiguous().numpy().data).hexdigest()
