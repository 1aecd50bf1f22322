"""A policy as the update leaves it: every role, the optimizer, and the counters, exactly."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal

import torch

from solrl_tasks.models.lora import LoraState
from solrl_tasks.models.threads import threaded, total_bytes

Role = Literal["current", "old", "ema"]
ROLES: tuple[Role, ...] = ("current", "old", "ema")
_OPTIMIZER: Final = "optimizer"


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

    @classmethod
    def of_tensors(
        cls, rank: int, alpha: float, tensors: Mapping[str, torch.Tensor], iteration: int, optimizer_step: int
    ) -> "PolicyState":
        """From what ``tensors`` gave."""
        parts: dict[str, dict[str, torch.Tensor]] = {part: {} for part in (*ROLES, _OPTIMIZER)}
        for name, value in tensors.items():
            part, _, own = name.partition("/")
            parts[part][own] = value
        roles = {role: LoraState(rank, alpha, parts[role]) for role in ROLES}
        return cls(**roles, optimizer=parts[_OPTIMIZER], iteration=iteration, optimizer_step=optimizer_step)

    def tensors(self) -> dict[str, torch.Tensor]:
        """All of them: ``<role>/<weight>`` and ``optimizer/<moment>``."""
        named = {f"{role}/{name}": value for role in ROLES for name, value in self.role(role).weights.items()}
        return named | {f"{_OPTIMIZER}/{name}": value for name, value in self.optimizer.items()}

    @cached_property
    def digest(self) -> str:
        """sha256 (hex) of all of it, every tensor and counter; taken once. It names a state between processes alone."""
        # Adapters first: each is hashed by one thread, whose digest is wanted anyway.
        parts = [*ROLES, *sorted(self.optimizer)]
        hashes = threaded(self._hash_of, parts, self.nbytes)
        head = f"{self.current.rank} {self.current.alpha!r} {self.iteration} {self.optimizer_step}\n"
        lines = (f"{part} {one}\n" for part, one in zip(parts, hashes, strict=True))
        return hashlib.sha256("".join([head, *lines]).encode()).hexdigest()

    @property
    def nbytes(self) -> int:
        """Of all its tensors."""
        return sum(self.role(role).nbytes for role in ROLES) + total_bytes(self.optimizer.values())

    def role_digests(self) -> dict[Role, str]:
        """The digest of each LoRA, taken side by side."""
        digests = threaded(lambda role: self.role(role).digest, ROLES, self.nbytes)
        return dict(zip(ROLES, digests, strict=True))

    def _hash_of(self, part: str) -> str:
        if part not in ROLES:
            return _hash([self.optimizer[part]])
        lora = self.role(part)
        # All that change nothing have one digest.
        return _hash([lora.weights[name] for name in sorted(lora.weights)]) if lora.is_zero else lora.digest


def initial_state(lora: LoraState) -> PolicyState:
    """The policy before any update: all roles equal."""
    return PolicyState(current=lora, old=lora, ema=lora)


def _hash(tensors: Sequence[torch.Tensor]) -> str:
    state = hashlib.sha256()
    for tensor in tensors:
        state.update(f"{list(tensor.shape)}\n".encode())
        state.update(tensor.detach().contiguous().numpy().data)
    return state.hexdigest()
