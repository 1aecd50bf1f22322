"""How alike the gradients of one sample are: re-noised endpoints against steps of a sampling path."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from solrl_tasks.analysis.estimates import Estimate, mean_estimate
from solrl_tasks.config.base import Frozen
from solrl_tasks.config.extensions import build
from solrl_tasks.config.recipe import LoraSpec
from solrl_tasks.config.stochastic import Stochastic, Window
from solrl_tasks.models.families.base import Conditioning, Family
from solrl_tasks.models.lora import init_lora
from solrl_tasks.models.roles import PolicyModel, Role
from solrl_tasks.objectives.base import MicroBatch, Objective, Velocities
from solrl_tasks.objectives.core import per_row
from solrl_tasks.objectives.transitions import Transitions
from solrl_tasks.sampling.identity import candidate_seed, initial_noise, stream
from solrl_tasks.sampling.sde.base import transitions
from solrl_tasks.sampling.sde.walk import Path, Walk, step_noise, window_starts
from solrl_tasks.workers.device import Device
from solrl_tasks.workers.numerics import reproducible

SEED: Final = 20_001
"""Of the noise that samples begin with."""


class GradientCosines(Frozen):
    """Mean pairwise cosine of the LoRA gradients of one sample, estimated over samples.

    Attributes:
        gradients: of each sample, one a noise level.
        renoised: RAM's loss at the clean sample with fresh noise at every level.
        path: RAM's loss at the states of the path that led to the sample, at the same levels.
        policy: Flow-GRPO's loss on the steps from these states.
    """

    samples: int
    gradients: int
    steps: int
    eta: float
    renoised: Estimate
    path: Estimate
    policy: Estimate


def measure_gradients(
    device: Device, lora: LoraSpec, texts: Sequence[str], seeds: int, steps: int = 10, eta: float = 0.7
) -> GradientCosines:
    """Sample paths of the untrained policy by Flow-SDE, and take each of their gradients by itself.

    The levels are the same in all three, so that nothing differs between the first two but where the states lie.
    An advantage would scale all gradients of a sample alike: it is 1.

    Args:
        texts: distinct prompts.
        seeds: samples of each.
        steps: of a path; all but the last are noisy.
    """
    bench = _Bench(device, lora)
    found = [bench.sample(text, seed, steps, eta) for text in texts for seed in range(seeds)]
    kinds = [mean_estimate(np.array([one[kind] for one in found])) for kind in range(3)]
    return GradientCosines(
        samples=len(found),
        gradients=steps - 1,
        steps=steps,
        eta=eta,
        renoised=kinds[0],
        path=kinds[1],
        policy=kinds[2],
    )


def mean_pairwise_cosine(gradients: Tensor) -> float:
    """Mean cosine over all pairs of different rows of [n, P]; NaN where a row is zero.

    Raises:
        ValueError: there is no pair, or a gradient is not finite: a mean over the others would hide it.
    """
    count = len(gradients)
    if count < 2:
        raise ValueError(f"a pair takes two gradients, found {count}")
    broken = (~gradients.isfinite().all(dim=1)).nonzero().flatten().tolist()
    if broken:
        raise ValueError(f"gradients {broken} of {count} are not finite: nothing can be said of their directions")
    unit = gradients.double() / gradients.double().norm(dim=1, keepdim=True)
    # The sum over pairs is what the squared length of the sum of all has beyond each row's own.
    return float((unit.sum(dim=0).square().sum() - unit.square().sum()) / (count * (count - 1)))


class _Bench:
    """The untrained policy with its adapter, ready for gradients."""

    def __init__(self, device: Device, lora: LoraSpec) -> None:
        self._device = device
        self._family: Family = device.family
        paths = self._family.lora_targets(lora.targets)
        self._model = PolicyModel(self._family.transformer, lora.rank, lora.alpha, paths)
        state = init_lora(self._family.transformer, paths, lora.rank, lora.alpha, lora.seed)
        self._model.load("current", state)
        self._model.load("old", state)
        self._ram: Objective[Any] = build("objective", "ram", {})

    def sample(self, text: str, seed: int, steps: int, eta: float) -> tuple[float, float, float]:
        """Cosines of one sample: re-noised, along its path, of the policy gradient there."""
        prompt = self._device.resident.embeddings.get((text,)).to(self._device.device)
        grpo: Objective[Any] = build("objective", "grpo", {"step": "flow-sde", "eta": eta, "clip": 0.1})
        noise = Stochastic(step="flow-sde", eta=eta, window=Window(size=steps - 1).settle(steps, 1))
        own = candidate_seed(SEED, text, seed)
        path = self._walk(prompt, noise, own, steps)
        levels = self._family.sigmas(steps)[:-1][: noise.window.size]
        along = _along(path, levels)
        drawn = stream("gradient-cosine", own).standard_normal(tuple(along.eps.shape), dtype=np.float32)
        fresh = MicroBatch(along.x0, torch.from_numpy(drawn).to(along.x0.device), along.t, along.advantage)
        taken = _taken(path, noise, self._family.sigmas(steps))
        batches = ((self._ram, fresh), (self._ram, along), (grpo, taken))
        first, second, third = (self._cosine(objective, batch, prompt) for objective, batch in batches)
        return first, second, third

    def _walk(self, prompt: Conditioning, noise: Stochastic, seed: int, steps: int) -> Path:
        family, device, shape = self._family, self._device.device, self._family.latent_shape
        start, fresh = initial_noise([seed], shape), step_noise(noise.window, [seed], shape)
        walk = Walk(noise, family.sigmas(steps), window_starts(noise.window, [seed]))

        def velocity(x: Tensor, sigma: float) -> Tensor:
            return family.velocity(self._model.module, x, torch.full((len(x),), sigma, device=device), prompt)

        with torch.no_grad(), self._model.role("reference"):
            return walk.run(velocity, start.to(device), fresh.to(device))

    def _cosine(self, objective: Objective[Any], batch: Any, prompt: Conditioning) -> float:
        rows = len(batch.t)
        x, t, repeated = batch.x_t, batch.t, prompt.take([0] * rows)

        def evaluated(role: Role) -> Tensor:
            with self._model.role(role):
                return self._family.velocity(self._model.module, x, t, repeated)

        with torch.no_grad():
            old, reference = evaluated("old"), evaluated("reference")
        # As in updates: cuDNN's attention, which the order of kernels begins with, has no such backward pass.
        with torch.enable_grad(), reproducible(self._device.device):
            terms = objective.loss(batch, Velocities(evaluated("current"), old, reference))
            return mean_pairwise_cosine(self._each(terms.loss))

    def _each(self, losses: Tensor) -> Tensor:
        parameters = [parameter for _, parameter in self._model.trainable()]
        rows = []
        for number, loss in enumerate(losses):
            last = number == len(losses) - 1
            parts = torch.autograd.grad(loss, parameters, retain_graph=not last)
            rows.append(torch.cat([part.flatten() for part in parts]))
        return torch.stack(rows)


def _along(path: Path, levels: Sequence[float]) -> MicroBatch:
    """The states of a path as if noised from its end."""
    states = path.states[0, : len(levels)].float()
    t = torch.tensor(levels, dtype=torch.float32, device=states.device)
    x0 = path.end[:1].float().expand_as(states)
    level = per_row(t, states)
    return MicroBatch(x0, (states - (1 - level) * x0) / level, t, torch.ones_like(t))


def _taken(path: Path, noise: Stochastic, sigmas: Sequence[float]) -> Transitions:
    states, count = path.states[0].float(), noise.window.size
    steps = transitions(noise, sigmas)[:count]

    def column(value: Callable[[int], float]) -> Tensor:
        return torch.tensor([value(i) for i in range(count)], dtype=torch.float32, device=states.device)

    return Transitions(
        state=states[:count],
        following=states[1 : count + 1],
        t=column(lambda i: sigmas[i]),
        length=column(lambda i: sigmas[i] - sigmas[i + 1]),
        of_x=column(lambda i: steps[i].x),
        of_v=column(lambda i: steps[i].v),
        std=column(lambda i: steps[i].std),
        advantage=torch.ones(count, device=states.device),
    )
