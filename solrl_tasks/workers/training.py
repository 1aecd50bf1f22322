"""The update: optimizer steps on the kept samples, then the lagged roles."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from solrl_tasks.config.extensions import build
from solrl_tasks.config.recipe import OptimizerSpec
from solrl_tasks.models.families.base import Conditioning, Family
from solrl_tasks.models.lora import LoraState
from solrl_tasks.models.roles import PolicyModel, Role
from solrl_tasks.models.threads import threaded, total_bytes
from solrl_tasks.objectives import base as objectives
from solrl_tasks.objectives.adjoints import lean_adjoints
from solrl_tasks.objectives.base import LossTerms, Objective, Velocities
from solrl_tasks.objectives.decay import ema_decay, old_decay
from solrl_tasks.workers.gradients import RewardGradient
from solrl_tasks.workers.jobs import TrainJob
from solrl_tasks.workers.lessons import Adjoints, Endpoints, Lesson, PathEnd, Row, Steps
from solrl_tasks.workers.numerics import reproducible
from solrl_tasks.workers.reduction import ALONE, GradientSum, Ranks, spans
from solrl_tasks.workers.state import PolicyState
from solrl_tasks.workers.tally import Tally


class TrainingError(RuntimeError):
    """An update that cannot go on without harm."""


@dataclass(frozen=True)
class _Task:
    """One update's work."""

    job: TrainJob
    objective: Objective[Any]
    lesson: Lesson
    conditioning: Conditioning
    ranks: Ranks = ALONE

    def samples(self) -> set[int]:
        """Those that this rank's micro-batches have rows of, in any optimizer step."""
        found: set[int] = set()
        for inner in range(self.job.update.optimizer_steps):
            parts = _slices(self.lesson.rows(inner), self.job.update.micro_batch)
            span = spans(len(parts), self.ranks.world)[self.ranks.rank]
            found |= {sample for number in span for sample, _, _ in parts[number]}
        return found


class Trainer:
    """The trained copy of the transformer; weights and optimizer are set from a ``PolicyState`` at every update."""

    def __init__(self, family: Family, lora: LoraState) -> None:
        self._family = family
        self._model = PolicyModel(family.transformer, lora.rank, lora.alpha, lora.paths)

    @torch.enable_grad()
    def update(
        self,
        job: TrainJob,
        policy: PolicyState,
        conditioning: Conditioning,
        gradient: RewardGradient | None = None,
        ranks: Ranks = ALONE,
    ) -> tuple[PolicyState, Tally]:
        """One iteration's training.

        Args:
            conditioning: one row for each of ``job.distinct_texts``.
            gradient: of the rewards, for an objective that learns from it.
            ranks: devices that train together, each a part of the micro-batches; all are given the same job.

        Returns:
            The next policy, the same on every rank, and what this rank's micro-batches came to.

        Raises:
            TrainingError: every micro-batch of an optimizer step had a non-finite loss.
            ValueError: the network cannot do what ``update.gradient_checkpointing`` asks, or the job lacks what the
                objective learns from.
        """
        with reproducible(self._family.device):
            return self._update(job, policy, conditioning, gradient, ranks)

    def attempt(self, job: TrainJob, policy: PolicyState, conditioning: Conditioning, rows: int) -> None:
        """A micro-batch of so many rows, forward and backward, for the sake of its memory alone.

        Raises:
            torch.OutOfMemoryError: it does not fit.
        """
        small = replace(job, update=job.update.model_copy(update={"micro_batch": rows}))
        objective, optimizer = self._begin(small, policy)
        try:
            with torch.enable_grad(), reproducible(self._family.device):
                task = _Task(small, objective, self._lesson(small, objective), conditioning)
                terms = self._losses(task, _slices(task.lesson.rows(0), rows)[0], (0, 0))
                terms.loss.sum().backward()  # type: ignore[no-untyped-call]
        finally:
            optimizer.zero_grad(set_to_none=True)

    def memory(self) -> int:
        """Bytes of the adapters on the device."""
        return self._model.memory()

    def _update(
        self,
        job: TrainJob,
        policy: PolicyState,
        conditioning: Conditioning,
        gradient: RewardGradient | None,
        ranks: Ranks,
    ) -> tuple[PolicyState, Tally]:
        objective, optimizer = self._begin(job, policy)
        task = _Task(job, objective, self._lesson(job, objective), conditioning, ranks)
        if isinstance(task.lesson, Adjoints):
            task.lesson.carry_back(partial(self._adjoints, task, gradient), task.samples())
        current, ema, step, tally = policy.current, policy.ema, policy.optimizer_step, Tally()
        for inner in range(job.update.optimizer_steps):
            self._accumulate(task, inner, tally)
            self._step(optimizer, job.update.optimizer.grad_clip, tally)
            step += 1
            current = self._model.state("current")
            ema = ema.lerp(current, ema_decay(step))
        old = job.update.old
        decay = old_decay(old.schedule, step, old.decay, job.iteration)
        state = PolicyState(
            current=current,
            old=policy.old.lerp(current, decay),
            ema=ema,
            optimizer=self._moments(optimizer),
            iteration=policy.iteration + 1,
            optimizer_step=step,
        )
        tally.decay, tally.step = decay, step
        return state, tally

    def _begin(self, job: TrainJob, policy: PolicyState) -> tuple[Objective[Any], torch.optim.AdamW]:
        objective: Objective[Any] = build("objective", job.update.objective.name, dict(job.update.objective.options))
        self._model.checkpoint(job.update.gradient_checkpointing)
        self._model.load("current", policy.current)
        self._model.load("old", policy.old)
        optimizer = self._optimizer(job.update.optimizer, policy)
        # An update that failed half-way leaves its gradients behind.
        optimizer.zero_grad(set_to_none=True)
        return objective, optimizer

    def _lesson(self, job: TrainJob, objective: Objective[Any]) -> Lesson:
        sigmas, device = self._family.sigmas(job.steps), self._family.device
        if objective.needs == "endpoints":
            return Endpoints(job, objective, sigmas, device)
        if job.paths is None:
            raise ValueError(f"objective {objective.name!r} learns from paths, but the samples were made without noise")
        steps = Steps(job, job.paths, sigmas, device)
        return steps if objective.needs == "trajectories" else Adjoints(steps, job, device)

    def _adjoints(self, task: _Task, gradient: RewardGradient | None, samples: Sequence[int], end: PathEnd) -> Tensor:
        """Of some samples, behind each noisy step: [B, noisy steps, C, H, W]."""
        job, objective = task.job, task.objective
        if gradient is None:
            raise ValueError(f"objective {objective.name!r} learns from the gradient of rewards, and was given none")
        texts, metadata = [job.texts[sample] for sample in samples], [job.metadata[sample] for sample in samples]
        prompts = task.conditioning.take([job.text_rows[sample] for sample in samples])
        slope, _ = gradient(end.x0, texts, metadata)
        family = self._guided(objective, "reference")

        def velocity(x: Tensor, number: int) -> Tensor:
            return family.velocity(self._model.module, x, end.levels[number], prompts)

        # Around the way back as well: checkpointed blocks are computed again there.
        with self._model.role("reference"):
            return lean_adjoints(velocity, end.states, end.steps, cast(Any, objective).terminal(slope))

    def _losses(self, task: _Task, part: list[Row], place: tuple[int, int]) -> LossTerms:
        prompts = task.conditioning.take([task.job.text_rows[sample] for sample, _, _ in part])
        batch = task.lesson.batch(part, place[0])
        velocities = self._velocities(task.objective, batch, prompts)
        begun = task.lesson.begun(*place, velocities.current)
        return task.objective.loss(batch, velocities if begun is None else replace(velocities, old=begun))

    def _accumulate(self, task: _Task, inner: int, tally: Tally) -> None:
        """Leave the gradient of an optimizer step, over the micro-batches of all ranks, in the parameters."""
        rows = task.lesson.rows(inner)
        parts = _slices(rows, task.job.update.micro_batch)
        gradient = GradientSum(len(parts), task.ranks)
        for number in gradient.span:
            gradient.add(self._gradient(task, parts[number], (inner, number), len(rows), tally))
        parameters = [parameter for _, parameter in self._model.trainable()]
        total = gradient.total(parameters)
        if total is None:
            raise TrainingError(
                f"update of iteration {task.job.iteration}, optimizer step {inner}: the loss of every micro-batch is "
                "NaN or infinite. Lower update.optimizer.lr, or look at the last images; the previous policy is intact"
            )
        for parameter, value in zip(parameters, total, strict=True):
            parameter.grad = value

    def _gradient(
        self, task: _Task, part: list[Row], place: tuple[int, int], rows: int, tally: Tally
    ) -> list[Tensor] | None:
        """Of a micro-batch, as its share of a step of so many rows; None where its loss is not finite."""
        terms = self._losses(task, part, place)
        if not bool(torch.isfinite(terms.loss).all()):
            # Multiplying by zero would keep the NaN: such a micro-batch must not reach the gradient at all.
            tally.skip(place)
            return None
        torch.autograd.backward(terms.loss.sum() / rows)
        tally.add(place, len(part), {"loss": terms.loss, **terms.metrics})
        gradient = []
        for _, parameter in self._model.trainable():
            gradient.append(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
            parameter.grad = None
        return gradient

    def _velocities(self, objective: Objective[Any], batch: Any, conditioning: Conditioning) -> Velocities:
        x, t = batch.x_t, batch.t

        def evaluated(role: Role) -> Tensor:
            with self._model.role(role):
                return self._guided(objective, role).velocity(self._model.module, x, t, conditioning)

        def without_gradient(role: objectives.Role) -> Tensor | None:
            if role not in objective.roles:
                return None
            with torch.no_grad():
                return evaluated(role)

        old, reference = without_gradient("old"), without_gradient("reference")
        return Velocities(current=evaluated("current"), old=old, reference=reference)

    def _guided(self, objective: Objective[Any], role: Role) -> Family:
        spec = self._family.spec
        if spec.guidance_scale == 1.0 or role in objectives.guided_roles(objective):
            return self._family
        return self._family.with_guidance(spec.guidance, 1.0)

    def _step(self, optimizer: torch.optim.AdamW, clip: float, tally: Tally) -> None:
        parameters = [parameter for _, parameter in self._model.trainable()]
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, clip))
        if not math.isfinite(norm):
            raise TrainingError(
                f"the gradient norm is {norm}: lower update.optimizer.lr; the previous policy is intact in the store"
            )
        tally.gradient_norms.append(norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def _optimizer(self, spec: OptimizerSpec, policy: PolicyState) -> torch.optim.AdamW:
        named = self._model.trainable()
        optimizer = torch.optim.AdamW(
            [parameter for _, parameter in named],
            lr=spec.lr,
            betas=spec.betas,
            eps=spec.eps,
            weight_decay=spec.weight_decay,
        )
        if policy.optimizer:
            for name, parameter in named:
                kept = {key: policy.optimizer[f"{name}.{key}"] for key in ("exp_avg", "exp_avg_sq")}
                moments = {key: value.to(parameter.device, copy=True) for key, value in kept.items()}
                optimizer.state[parameter] = {"step": torch.tensor(float(policy.optimizer_step)), **moments}
        return optimizer

    def _moments(self, optimizer: torch.optim.AdamW) -> dict[str, Tensor]:
        moments = {
            f"{name}.{key}": optimizer.state[parameter][key].detach()
            for name, parameter in self._model.trainable()
            for key in ("exp_avg", "exp_avg_sq")
        }
        found = list(moments.values())
        copies = threaded(lambda tensor: tensor.to("cpu", copy=True), found, total_bytes(found))
        return dict(zip(moments, copies, strict=True))


def _slices(rows: list[Row], size: int) -> list[list[Row]]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]
