"""A policy as the update leaves it: every role, the optimizer, and the counters, exactly."""

from dataclasses import dataclass, field
from typing import Literal

import torch

from solrl_tasks.models.lora import LoraState

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


def initial_state(lora: LoraState) -> PolicyState:
    """The policy before any update: all roles equal."""
    return PolicyState(current=lora, old=lora, ema=lora)
