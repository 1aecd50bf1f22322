"""One training loop for every stage: a step budget or a wall-clock budget, a CUDA graph where there is a GPU."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

Step = Callable[[], Tensor]


@dataclass(frozen=True)
class Budget:
    """When a stage ends: after `steps` optimizer steps or `seconds` of wall-clock, whichever comes first."""

    steps: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.steps is None and self.seconds is None:
            raise ValueError("a training budget needs a number of steps or of seconds")

    def progress(self, steps: int, seconds: float) -> float:
        """The part of the budget that is used up, 0 to 1."""
        by_steps = steps / self.steps if self.steps else 0.0
        by_time = seconds / self.seconds if self.seconds else 0.0
        return min(1.0, max(by_steps, by_time))


@dataclass(frozen=True)
class Schedule:
    """Learning rate: linear warm-up over `warmup` steps, flat until `flat` of the budget, then a cosine to zero."""

    peak: float
    warmup: int = 200
    flat: float = 0.15

    def rate(self, steps: int, progress: float) -> float:
        """The learning rate at this point of the training."""
        rise = min(1.0, (steps + 1) / max(1, self.warmup))
        fall = max(0.0, progress - self.flat) / (1.0 - self.flat)
        return self.peak * rise * 0.5 * (1.0 + math.cos(math.pi * fall))


@dataclass
class History:
    """What a training loop saw: steps, seconds and loss at every report."""

    steps: int = 0
    seconds: float = 0.0
    reports: list[tuple[int, float, float]] = field(default_factory=list)


class Optimizer:
    """AdamW with clipping and an exponential moving average of the weights, all of it fit for a CUDA graph."""

    def __init__(
        self, parameters: Sequence[torch.nn.Parameter], ema_decay: float, betas: tuple[float, float] = (0.9, 0.98)
    ) -> None:
        """`parameters` must all lie on one device and be float32."""
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._tensors: list[Tensor] = [*self.parameters]
        device = self.parameters[0].device
        self.rate = torch.zeros((), device=device)
        self._weight = torch.zeros((), device=device)
        self._ema_decay = ema_decay
        self.average = [parameter.detach().clone() for parameter in self.parameters]
        on_gpu = device.type == "cuda"
        self._adam = torch.optim.AdamW(
            self.parameters, lr=self.rate, betas=betas, eps=1e-8, weight_decay=0.01, fused=True, capturable=on_gpu
        )

    def set(self, rate: float, steps: int) -> None:
        """Set the learning rate, and let the average forget faster while the run is young."""
        self.rate.fill_(rate)
        self._weight.fill_(1.0 - min(self._ema_decay, (1.0 + steps) / (10.0 + steps)))

    def descend(self, loss: Tensor) -> Tensor:
        """Backward pass, clipping to norm 1, AdamW step, average; returns the detached loss."""
        self._adam.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0, foreach=True)
        self._adam.step()
        # Outside no_grad the average would grow an autograd graph with every step.
        with torch.no_grad():
            change = torch._foreach_sub(self._tensors, self.average)
            torch._foreach_mul_(change, self._weight)
            torch._foreach_add_(self.average, change)
        return loss.detach()

    @torch.no_grad()
    def load_average(self) -> None:
        """Replace the weights by their average."""
        for parameter, average in zip(self.parameters, self.average, strict=True):
            parameter.copy_(average)


def graphed(step: Step, device: torch.device, say: Callable[[str], None] = print, warmup: int = 4) -> Step:
    """The step as one CUDA graph; on a CPU, or where it cannot be captured, the step itself.

    These models are so small that a GPU would spend its time launching kernels. The step must not copy from or wait
    for the host.
    """
    if device.type != "cuda":
        return step
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(warmup):
            step()
    torch.cuda.current_stream(device).wait_stream(stream)
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            loss = step()
    except RuntimeError as error:
        say(f"no CUDA graph ({str(error)[:200]}); going on without, slower")
        return step

    def replay() -> Tensor:
        graph.replay()
        return loss

    return replay


def train(
    step: Step,
    optimizer: Optimizer,
    schedule: Schedule,
    budget: Budget,
    say: Callable[[str], None] = print,
    keep: Callable[[], None] | None = None,
    report_every: int = 50,
    keep_seconds: float = 60.0,
) -> History:
    """Repeat `step` until the budget is used up.

    `keep` is called about every `keep_seconds` to save the work done so far. Raises FloatingPointError at the first
    reported loss that is not finite: going on would only hide it.
    """
    history, start = History(), time.perf_counter()
    kept = start
    while True:
        history.seconds = time.perf_counter() - start
        progress = budget.progress(history.steps, history.seconds)
        if progress >= 1.0:
            break
        optimizer.set(schedule.rate(history.steps, progress), history.steps)
        loss = step()
        history.steps += 1
        # Reading the loss waits for the device, which also keeps the wall-clock honest.
        if history.steps % report_every == 0 or history.steps == 1:
            _report(history, float(loss), time.perf_counter() - start, say, report_every)
        if keep is not None and time.perf_counter() - kept > keep_seconds:
            keep()
            kept = time.perf_counter()
    return history


def _report(history: History, loss: float, seconds: float, say: Callable[[str], None], every: int) -> None:
    if not math.isfinite(loss):
        raise FloatingPointError(f"the loss is {loss} at step {history.steps}: training stopped")
    history.reports.append((history.steps, round(seconds, 2), loss))
    if history.steps == 1 or (history.steps // every) % 10 == 0:
        say(f"step {history.steps:6d}  {seconds:6.1f} s  loss {loss:.4f}")
