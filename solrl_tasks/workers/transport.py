"""Jobs and results as plain arrays: what is carried between processes shares no memory with what they compute."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from solrl_tasks.models.lora import LoraState
from solrl_tasks.models.threads import threaded
from solrl_tasks.workers.jobs import Paths, TrainJob, Work, WorkResult
from solrl_tasks.workers.state import PolicyState

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class PackedLora:
    """A ``LoraState`` as arrays."""

    rank: int
    alpha: float
    weights: Arrays


@dataclass(frozen=True)
class PackedState:
    """A ``PolicyState`` as arrays, or a share of it.

    Attributes:
        arrays: by the names of ``PolicyState.tensors``.
        count: of the whole state's arrays.
    """

    rank: int
    alpha: float
    arrays: Arrays
    count: int
    iteration: int
    optimizer_step: int


@dataclass(frozen=True)
class PackedJob:
    """A ``TrainJob`` whose tensors stand beside it."""

    job: TrainJob
    x0: NDArray[np.float32]
    states: NDArray[np.float32] | None


@dataclass(frozen=True)
class PackedResult:
    """A ``WorkResult`` without its work, which the asker has."""

    latents: NDArray[np.float32] | None
    images: NDArray[np.uint8]
    rewards: dict[str, NDArray[np.float32]]
    failures: tuple[str, ...]
    seconds: float
    features: dict[str, NDArray[np.float32]]
    paths: NDArray[np.float32] | None


def pack_lora(lora: LoraState) -> PackedLora:
    """Its arrays are the tensors' own memory."""
    return PackedLora(lora.rank, lora.alpha, _arrays(lora.weights))


def unpack_lora(packed: PackedLora) -> LoraState:
    """A copy."""
    return LoraState(packed.rank, packed.alpha, _owned(packed.weights))


def pack_state(state: PolicyState, share: int = 0, shares: int = 1) -> PackedState:
    """Its arrays are the tensors' own memory.

    Args:
        share, shares: which share of it, of how many of about the same size.
    """
    tensors = state.tensors()
    names = sorted(tensors)[share::shares]
    arrays = _arrays({name: tensors[name] for name in names})
    rank, alpha = state.current.rank, state.current.alpha
    return PackedState(rank, alpha, arrays, len(tensors), state.iteration, state.optimizer_step)


def unpack_state(*shares: PackedState) -> PolicyState:
    """A copy, from all shares.

    Raises:
        ValueError: they are not all of it.
    """
    arrays = {name: value for share in shares for name, value in share.arrays.items()}
    first = shares[0]
    if len(arrays) != first.count:
        raise ValueError(f"a policy of {first.count} tensors came with {len(arrays)} of them")
    return PolicyState.of_tensors(first.rank, first.alpha, _owned(arrays), first.iteration, first.optimizer_step)


def pack_job(job: TrainJob) -> PackedJob:
    """Its arrays are the tensors' own memory."""
    states = None if job.paths is None else job.paths.states.numpy()
    hollow = None if job.paths is None else replace(job.paths, states=torch.empty(0))
    return PackedJob(replace(job, x0=torch.empty(0), paths=hollow), job.x0.numpy(), states)


def unpack_job(packed: PackedJob) -> TrainJob:
    """Its tensors are the arrays' own memory, to be read alone: paths are gigabytes."""
    job, paths = packed.job, None
    if job.paths is not None and packed.states is not None:
        paths = Paths(job.paths.noise, borrowed(packed.states), job.paths.starts)
    return replace(job, x0=borrowed(packed.x0), paths=paths)


def pack_work(work: Work, number: int) -> tuple[Work, NDArray[np.float32] | None]:
    """The work under a number instead of its token, and the latents that it brings."""
    latents = None if work.latents is None else work.latents.numpy()
    return replace(work, token=number, latents=None), latents


def unpack_work(work: Work, latents: NDArray[np.float32] | None) -> Work:
    """With its latents again."""
    return work if latents is None else replace(work, latents=own(latents))


def pack_result(result: WorkResult) -> PackedResult:
    """Without the work."""
    latents = None if result.latents is None else result.latents.numpy()
    paths = None if result.paths is None else result.paths.numpy()
    return PackedResult(latents, result.images, result.rewards, result.failures, result.seconds, result.features, paths)


def unpack_result(packed: PackedResult, work: Work, actor: str) -> WorkResult:
    """The result of the work as it was asked for; arrays are copies, and the carrier's memory is free."""
    return WorkResult(
        work=work,
        # Latents that were brought are the asker's own.
        latents=work.latents if packed.latents is None or work.latents is not None else own(packed.latents),
        images=packed.images.copy() if work.images is None else work.images,
        rewards={name: value.copy() for name, value in packed.rewards.items()},
        failures=packed.failures,
        seconds=packed.seconds,
        features={name: value.copy() for name, value in packed.features.items()},
        paths=None if packed.paths is None else own(packed.paths),
        actor=actor,
    )


def own(values: NDArray[Any]) -> torch.Tensor:
    """A tensor with memory of its own."""
    return torch.from_numpy(np.array(values, copy=True))


def borrowed(values: NDArray[Any]) -> torch.Tensor:
    """A tensor on memory that is only lent; nothing may be written to it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(values)


def _owned(arrays: Arrays) -> dict[str, torch.Tensor]:
    values = list(arrays.values())
    copies = threaded(own, values, sum(value.nbytes for value in values))
    return dict(zip(arrays, copies, strict=True))


def _arrays(tensors: Mapping[str, torch.Tensor]) -> Arrays:
    return {name: tensor.detach().numpy() for name, tensor in tensors.items()}
