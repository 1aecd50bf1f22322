"""The update: optimizer steps on the kept samples, then the lagged roles."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from solrl_tasks.config.extensions import build
from solrl_tasks.config.recipe import OptimizerSpec
from solrl_tasks.models.families.base import Conditioning, Family
from solrl_tasks.models.lora import LoraState
from solrl_tasks.models.roles import PolicyModel
from solrl_tasks.objectives.base import MicroBatch, Objective, Velocities
from solrl_tasks.objectives.decay import ema_decay, old_decay
from solrl_tasks.objectives.times import draw_times
from solrl_tasks.sampling.identity import stream, training_noise
from solrl_tasks.workers.jobs import TrainJob
from solrl_tasks.workers.state import PolicyState

Row = tuple[int, int, float]
"""Sample, slot among the sample's noise levels, noise level."""


class TrainingError(RuntimeError):
    """An update that cannot go on without harm."""


@dataclass
class _Tally:
    """Sums over an update's micro-batches."""

    rows: int = 0
    skipped: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    gradient_norms: list[float] = field(default_factory=list)

    def add(self, name: str, values: Tensor) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + float(values.detach().double().sum())


class Trainer:
    """The trained copy of the transformer; weights and optimizer are set from a ``PolicyState`` at every update."""

    def __init__(self, family: Family, lora: LoraState) -> None:
        self._family = family
        self._model = PolicyModel(family.transformer, lora.rank, lora.alpha, lora.paths)

    @torch.enable_grad()
    def update(
        self, job: TrainJob, policy: PolicyState, conditioning: Conditioning
    ) -> tuple[PolicyState, dict[str, float]]:
        """One iteration's training.

        Args:
            conditioning: one row a sample of ``job``.

        Returns:
            The next policy, and metrics by name.

        Raises:
            TrainingError: every micro-batch of an optimizer step had a non-finite loss.
        """
        objective: Objective = build("objective", job.update.objective.name, dict(job.update.objective.options))
        self._model.load("current", policy.current)
        self._model.load("old", policy.old)
        optimizer = self._optimizer(job.update.optimizer, policy)
        # An update that failed half-way leaves its gradients behind.
        optimizer.zero_grad(set_to_none=True)
        ema, step, tally = policy.ema, policy.optimizer_step, _Tally()
        for inner in range(job.update.optimizer_steps):
            self._accumulate(job, objective, conditioning, inner, tally)
            self._step(optimizer, job.update.optimizer.grad_clip, tally)
            step += 1
            ema = ema.lerp(self._model.state("current"), ema_decay(step))
        current = self._model.state("current")
        old = job.update.old
        decay = old_decay(old.schedule, step, old.decay)
        state = PolicyState(
            current=current,
            old=policy.old.lerp(current, decay),
            ema=ema,
            optimizer=self._moments(optimizer),
            iteration=policy.iteration + 1,
            optimizer_step=step,
        )
        return state, self._metrics(tally, decay, step)

    def _accumulate(
        self, job: TrainJob, objective: Objective, conditioning: Conditioning, inner: int, tally: _Tally
    ) -> None:
        rows = [
            (sample, slot, time)
            for sample, times in enumerate(self._times(job, objective, inner))
            for slot, time in enumerate(times)
        ]
        noise = torch.stack([_noise(job, sample, inner) for sample in range(len(job.texts))])
        done = 0
        for part in _slices(rows, job.update.micro_batch):
            samples = [sample for sample, _, _ in part]
            batch = self._batch(job, part, noise)
            terms = objective.loss(batch, self._velocities(objective, batch, conditioning.take(samples)))
            if not bool(torch.isfinite(terms.loss).all()):
                # Multiplying by zero would keep the NaN: such a micro-batch must not reach the gradient at all.
                tally.skipped += 1
                continue
            torch.autograd.backward(terms.loss.sum() / len(rows))
            done += len(part)
            tally.rows += len(part)
            tally.add("loss", terms.loss)
            for name, values in terms.metrics.items():
                tally.add(name, values)
        if done == 0:
            raise TrainingError(
                f"update of iteration {job.iteration}, optimizer step {inner}: the loss of every micro-batch is NaN or "
                "infinite. Lower update.optimizer.lr, or look at the last images; the previous policy is intact"
            )

    def _times(self, job: TrainJob, objective: Objective, inner: int) -> Iterator[list[float]]:
        grid = self._family.sigmas(job.steps)[:-1]
        for key, candidate in zip(job.prompt_keys, job.candidates, strict=True):
            random = stream("training-times", job.run_seed, job.iteration, inner, key, candidate)
            yield [float(t) for t in draw_times(objective.times, job.update.times_per_sample, grid, random)]

    def _batch(self, job: TrainJob, part: list[Row], noise: Tensor) -> MicroBatch:
        device = self._family.device
        samples = torch.tensor([sample for sample, _, _ in part])
        slots = torch.tensor([slot for _, slot, _ in part])
        return MicroBatch(
            x0=job.x0[samples].to(device),
            eps=noise[samples, slots].to(device),
            t=torch.tensor([time for _, _, time in part], dtype=torch.float32, device=device),
            advantage=torch.from_numpy(job.advantage)[samples].float().to(device),
        )

    def _velocities(self, objective: Objective, batch: MicroBatch, conditioning: Conditioning) -> Velocities:
        x, t = batch.x_t, batch.t

        def without_gradient(role: str) -> Tensor | None:
            if role not in objective.roles:
                return None
            with torch.no_grad(), self._model.role(role):
                return self._family.velocity(self._model.module, x, t, conditioning)

        old, reference = without_gradient("old"), without_gradient("reference")
        with self._model.role("current"):
            current = self._family.velocity(self._model.module, x, t, conditioning)
        return Velocities(current=current, old=old, reference=reference)

    def _step(self, optimizer: torch.optim.AdamW, clip: float, tally: _Tally) -> None:
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
                moments = {key: policy.optimizer[f"{name}.{key}"].clone() for key in ("exp_avg", "exp_avg_sq")}
                moments = {key: value.to(parameter.device) for key, value in moments.items()}
                optimizer.state[parameter] = {"step": torch.tensor(float(policy.optimizer_step)), **moments}
        return optimizer

    def _moments(self, optimizer: torch.optim.AdamW) -> dict[str, Tensor]:
        return {
            f"{name}.{key}": optimizer.state[parameter][key].detach().cpu().clone()
            for name, parameter in self._model.trainable()
            for key in ("exp_avg", "exp_avg_sq")
        }

    def _metrics(self, tally: _Tally, decay: float, step: int) -> dict[str, float]:
        rows = max(tally.rows, 1)
        means = {f"train/{name}": total / rows for name, total in tally.sums.items()}
        norms = tally.gradient_norms
        return {
            **means,
            "train/grad_norm": sum(norms) / len(norms),
            "train/skipped_micro_batches": float(tally.skipped),
            "train/old_decay": decay,
            "train/optimizer_steps": float(step),
        }


def _noise(job: TrainJob, sample: int, inner: int) -> Tensor:
    shape = (job.update.times_per_sample, *job.x0.shape[1:])
    return training_noise(job.run_seed, job.iteration, inner, job.prompt_keys[sample], job.candidates[sample], shape)


def _slices(rows: list[Row], size: int) -> Iterator[list[Row]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
