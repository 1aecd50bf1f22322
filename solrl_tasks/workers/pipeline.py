"""Blocks one after the other, or the end of each beside the beginning of the next."""

import time
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Final, Protocol

import torch
from torch import Tensor

from solrl_tasks.workers.jobs import Shown, Work, WorkResult

Results = Generator[WorkResult, None, None]
Blocks = Iterable[Work | None]
"""In their order. Where they come as their results are taken, None says that the next one is not there yet: whoever
asks gets it after a moment, and not at once, since he may ask again."""


class Stages(Protocol):
    """What happens to a block, in this order."""

    def prepare(self, work: Work) -> None:
        """Load what the block needs, in the caller's thread: no block is charged for it."""
        ...

    def draw(self, work: Work) -> Tensor | None:
        """Noise in host memory; touches nothing on the device. None where nothing is to be sampled."""
        ...

    def sample(self, work: Work, noise: Tensor | None) -> Tensor | None:
        """Clean latents on the device, queued there and not waited for."""
        ...

    def show(self, work: Work, latents: Tensor | None) -> Shown:
        """Images of the latents, when everything of the block is in host memory. In the caller's thread: decoding
        queues hundreds of kernels, which a second thread would queue in competition with the next block's."""
        ...

    def finish(self, shown: Shown) -> WorkResult:
        """What can be said of the images: scores and features."""
        ...


class Lane(Protocol):
    """Where blocks are finished while the next one is sampled."""

    def enter(self) -> None:
        """Begin a thread that finishes blocks."""
        ...

    def within(self) -> AbstractContextManager[None]:
        """Within it, device work of this thread does not queue behind that of the caller's."""
        ...

    def settle(self) -> None:
        """Wait until nothing that the caller's thread queued is left to do."""
        ...


class SideStream:
    """A CUDA stream of its own beside the caller's current one."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def enter(self) -> None:
        """Threads begin on the first device, whichever the caller is on."""
        torch.cuda.set_device(self._stream.device)

    @contextmanager
    def within(self) -> Iterator[None]:
        """The side stream becomes this thread's."""
        with torch.cuda.stream(self._stream):
            yield

    def settle(self) -> None:
        """Synchronise the caller's stream."""
        torch.cuda.current_stream(self._device).synchronize()


def in_hand(device: torch.device) -> int:
    """How many blocks, given and not yet taken, keep a device busy.

    Where blocks overlap one is finished, one is sampled, and the noise of one is drawn; elsewhere one is done, and one
    is there when it is.
    """
    return 3 if device.type == "cuda" else 2


def in_turn(stages: Stages, blocks: Blocks) -> Results:
    """Each block from beginning to end before the next is looked at."""
    for work in blocks:
        if work is None:
            continue
        stages.prepare(work)
        started = time.perf_counter()
        result = stages.finish(stages.show(work, stages.sample(work, stages.draw(work))))
        yield replace(result, seconds=time.perf_counter() - started)


def overlapped(stages: Stages, blocks: Blocks, lane: Lane) -> Results:
    """A block is scored in a thread beside the sampling of the next one; results come in the order of blocks.

    Values are those of ``in_turn``. So is the order of events as the caller sees it: an error of a block, or of asking
    for the next one, is raised after the results of all blocks before it. When the generator ends, however it ends,
    nothing of it is left running, neither in its thread nor on the device.

    Blocks are asked for ahead: the next one while a block is sampled, and the one after it before the result of the
    first is handed out. Whoever gives blocks as he takes results keeps the device busy with ``in_hand`` of them; with
    fewer the results come as well, for None instead of a block lets those that are done be handed out.

    A result's seconds run from the end of the block before, or from its own beginning if that was later: their sum is
    the time in which the device had something to do.
    """
    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="solrl-finish", initializer=lane.enter)
    try:
        yield from _in_order(_launched(stages, blocks, lane, pool))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        lane.settle()


_END: Final = object()
_NOT_YET: Final = object()


@dataclass(frozen=True)
class _Upcoming:
    """A block to be launched, and its noise."""

    work: Work
    noise: Future[Tensor | None]


class _Finished:
    """A block's result, and when it began and ended on the clock."""

    def __init__(self, result: WorkResult, began: float) -> None:
        self.result = result
        self.began = began
        self.ended = time.perf_counter()


def _in_order(launched: Iterator[Future[_Finished] | None]) -> Results:
    """Results, each while the block behind it is on the device, or when that one is not there yet."""
    pending: Future[_Finished] | None = None
    ended = float("-inf")
    more = True
    while more:
        failure: Exception | None = None
        following: Future[_Finished] | None = None
        try:
            following = next(launched)
        except StopIteration:
            more = False
        except Exception as error:
            failure = error
        if pending is not None:
            done = pending.result()
            yield replace(done.result, seconds=done.ended - max(done.began, ended))
            ended = done.ended
        if failure is not None:
            raise failure
        pending = following


def _launched(
    stages: Stages, blocks: Blocks, lane: Lane, pool: ThreadPoolExecutor
) -> Iterator[Future[_Finished] | None]:
    """Each block, once it is queued on the device and handed to the thread; None when all that were given are done."""
    waiting = iter(blocks)
    finishing: Future[_Finished] | None = None
    alone = True

    def following() -> _Upcoming | object:
        work = next(waiting, _END)
        # While there is something to do, the next block is worth waiting for: its noise is to be drawn beside that.
        while work is None and finishing is not None and not finishing.done():
            work = next(waiting, _END)
        if not isinstance(work, Work):
            return work or _NOT_YET
        stages.prepare(work)
        return _Upcoming(work, pool.submit(stages.draw, work))

    def finish(shown: Shown, began: float) -> _Finished:
        with lane.within():
            return _Finished(stages.finish(shown), began)

    upcoming = following()
    while upcoming is not _END:
        if not isinstance(upcoming, _Upcoming):
            yield None
            upcoming = following()
            continue
        work = upcoming.work
        if alone and work.needs_sampling:
            # The first one compiles, and may capture graphs: nothing else may use the device meanwhile.
            wait([finishing] if finishing else [])
            alone = False
        began = time.perf_counter()
        latents = stages.sample(work, upcoming.noise.result())
        # The next block's noise goes before this block's end: the thread is free for it now, and not for long.
        failure: Exception | None = None
        try:
            upcoming = following()
        except Exception as error:
            failure = error
        shown = stages.show(work, latents)
        del latents
        finishing = pool.submit(finish, shown, began)
        yield finishing
        if failure is not None:
            raise failure
