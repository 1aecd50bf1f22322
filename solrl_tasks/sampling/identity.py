"""Seeds and noise as pure functions of what they belong to.

A candidate is named by (exploration seed, prompt key, index), never by its place in a batch. Noise is drawn
on the CPU in float32 by one counter-based generator a candidate, so it does not depend on batch size, device,
rank, order, or any global generator.
"""

import hashlib
import json
from collections.abc import Sequence

import numpy as np
import torch

from solrl_tasks.config.words import counted

SEED_SCHEME = "sha256-philox-v1"
"""Names everything below that decides bits; it is part of a pool's key."""


def _digest(parts: Sequence[str | int]) -> bytes:
    text = json.dumps([SEED_SCHEME, *parts], ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).digest()


def _seed64(*parts: str | int) -> int:
    return int.from_bytes(_digest(parts)[:8], "big")


def share(*parts: str | int) -> float:
    """A number from 0 to below 1 that belongs to the parts, evenly spread over them."""
    return (_seed64(*parts) >> 11) / 2**53


def stream(*parts: str | int) -> np.random.Generator:
    """A random generator of its own for whatever the parts name.

    Different parts give independent streams; 1 and "1" are different parts.
    """
    return np.random.Generator(np.random.Philox(key=int.from_bytes(_digest(parts)[:16], "big")))


def exploration_seed(run_seed: int, iteration: int) -> int:
    """The 64-bit seed of a training iteration: a prompt that comes back gets fresh noise."""
    return _seed64("exploration", run_seed, iteration)


def candidate_seed(exploration_seed: int, prompt_key: str, index: int) -> int:
    """The 64-bit seed of one candidate.

    Args:
        exploration_seed: of the iteration, or the one that a study or an evaluation names.
        prompt_key: from ``PromptSet.keys``.
        index: of the candidate within its prompt, from 0.
    """
    return _seed64("candidate", exploration_seed, prompt_key, index)


def initial_noise(seeds: Sequence[int], shape: tuple[int, ...]) -> torch.Tensor:
    """Standard normal noise, one row a seed: float32 on the CPU, [len(seeds), *shape]."""
    noise = np.empty((len(seeds), *shape), dtype=np.float32)
    for row, seed in zip(noise, seeds, strict=True):
        generator = np.random.Generator(np.random.Philox(key=int(seed)))
        generator.standard_normal(dtype=np.float32, out=row)
    return torch.from_numpy(noise)


POOLING = "mean-v1"
"""Names what ``pool_noise`` does; it is part of the key of a pool that was explored at a lower resolution."""


def pool_noise(noise: torch.Tensor, factor: int) -> torch.Tensor:
    """The noise of a smaller latent out of that of a larger one: what both have in common at the coarser scale.

    Each value is the mean of factor x factor cells of one channel, times ``factor``: the mean of so many independent
    standard normal numbers has a standard deviation of 1 / factor. So the result is standard normal noise again, and
    its values are independent of each other.

    Args:
        noise: float32 [..., H, W].
        factor: cells along each side; divides H and W. 1 changes nothing.

    Returns:
        float32 [..., H / factor, W / factor].

    Raises:
        ValueError: the factor does not divide the sides.
    """
    height, width = noise.shape[-2:]
    if factor < 1 or height % factor or width % factor:
        raise ValueError(
            f"noise of {height} x {counted(width, 'cell')} cannot be pooled {factor} by {factor}: it must divide both"
        )
    if factor == 1:
        return noise
    # Added up in a stated order, so that the bits follow from the definition and not from how a library sums.
    total = torch.zeros((*noise.shape[:-2], height // factor, width // factor), dtype=torch.float64)
    for row in range(factor):
        for column in range(factor):
            total += noise[..., row::factor, column::factor]
    return (total / factor).float()


def training_noise(
    run_seed: int,
    iteration: int,
    optimizer_step: int,
    prompt_key: str,
    candidate_index: int,
    shape: tuple[int, ...],
) -> torch.Tensor:
    """The noise for one sample in one optimizer step: float32 on the CPU, [*shape]."""
    generator = stream("training-noise", run_seed, iteration, optimizer_step, prompt_key, candidate_index)
    return torch.from_numpy(generator.standard_normal(shape, dtype=np.float32))


def draw_prompts(total: int, count: int, run_seed: int, iteration: int) -> list[int]:
    """The rows of a prompt set that an iteration trains on.

    The set is walked in random order, anew every epoch: slice ``iteration`` of the endless sequence of epoch
    permutations. Every prompt appears once an epoch, and a slice that spans two epochs holds no row twice:
    rows that it already has are moved behind it in the second epoch's order.

    Args:
        total: prompts in the set.
        count: prompts an iteration.
        iteration: from 0.

    Raises:
        ValueError: ``count`` is more than ``total``, or not positive.
    """
    if not 1 <= count <= total:
        raise ValueError(f"{counted(count, 'prompt')} an iteration asked for, but there are {total}: give more prompts")
    epoch, start = divmod(iteration * count, total)
    head = _epoch_order(total, count, run_seed, epoch)[start : start + count]
    if len(head) == count:
        return head
    return head + _epoch_order(total, count, run_seed, epoch + 1)[: count - len(head)]


def _permutation(total: int, run_seed: int, epoch: int) -> list[int]:
    return [int(i) for i in stream("prompts", run_seed, epoch).permutation(total)]


def _epoch_order(total: int, count: int, run_seed: int, epoch: int) -> list[int]:
    """An epoch's order; an iteration that began in the epoch before finds none of its rows again."""
    aligned = next(e for e in range(epoch, -1, -1) if e * total % count == 0)
    order = _permutation(total, run_seed, aligned)
    for later in range(aligned + 1, epoch + 1):
        carried = later * total % count
        order = _mend(_permutation(total, run_seed, later), set(order[-carried:]), count - carried)
    return order


def _mend(order: list[int], taken: set[int], needed: int) -> list[int]:
    fresh = [row for row in order if row not in taken]
    late = [row for row in order if row in taken]
    return fresh[:needed] + late + fresh[needed:]
