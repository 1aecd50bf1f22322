"""Tasks in several processes, each with one thread, spread over the GPUs that are visible."""

import multiprocessing
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, Final, Generic, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")
TICK_SECONDS: Final = 5.0
IDLE_SECONDS: Final = 0.5
END_SECONDS: Final = 10.0
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


class ProcessDiedError(RuntimeError):
    """A process ended without an answer: it was killed, or ran out of memory."""


def in_processes(
    work: Callable[[Task], Result],
    tasks: Sequence[Task],
    parallel: int,
    tick: Callable[[], None] = lambda: None,
) -> Iterator[tuple[Task, Result | ProcessDiedError]]:
    """Do every task, so many at a time; each answer as it comes.

    Processes are spawned, do one task after another with one torch thread, and end with the last. One that dies is an
    error of its task alone: another takes its place. Leaving the loop early ends them all at once. Where several GPUs
    are visible each process sees one of them, in turn.

    Args:
        work: of a module that a new process can import; it should catch what it raises, for else its process dies.
        tick: called now and then while nothing comes.
    """
    todo: queue.SimpleQueue[Task] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[Task, Result | ProcessDiedError]] = queue.SimpleQueue()
    for task in tasks:
        todo.put(task)
    devices: list[str | None] = [*visible_devices()] or [None]
    slots = [_Slot(work, todo, done, devices[n % len(devices)]) for n in range(min(parallel, len(tasks)))]
    try:
        for _ in tasks:
            yield _next(done, tick)
    finally:
        for slot in slots:
            slot.end()


def visible_devices() -> list[str]:
    """The GPUs that processes may be spread over, as ``CUDA_VISIBLE_DEVICES`` names them; none without a GPU."""
    import torch

    count = torch.cuda.device_count()
    named = os.environ.get(VISIBLE)
    return [name.strip() for name in named.split(",")][:count] if named else [str(n) for n in range(count)]


def sharing(processes: int) -> int:
    """How many of so many processes share a device, at the most."""
    return -(-processes // max(1, len(visible_devices())))


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread for as long as the block lasts, as in the processes of ``in_processes``.

    Blocks of a pool that were computed with other numbers of threads are not mixed.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def orphaned() -> bool:
    """Whether this process was spawned by one that is gone."""
    parent = multiprocessing.parent_process()
    return parent is not None and not parent.is_alive()


class _Slot(Generic[Task, Result]):
    """One process at a time, and the thread that hands it tasks."""

    def __init__(
        self,
        work: Callable[[Task], Result],
        todo: "queue.SimpleQueue[Task]",
        done: "queue.SimpleQueue[tuple[Task, Result | ProcessDiedError]]",
        device: str | None,
    ) -> None:
        self._work, self._todo, self._done, self._device = work, todo, done, device
        self._ended = threading.Event()
        self._process: Any = None
        self._pipe: Connection | None = None
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the process, whatever it is doing; it is gone afterwards."""
        self._ended.set()
        # A thread with nothing left to hand out ends by itself, and its process with the pipe.
        self._thread.join(IDLE_SECONDS)
        if self._thread.is_alive() and self._process is not None:
            self._process.terminate()
        self._thread.join(END_SECONDS)
        if self._process is not None:
            self._process.join(END_SECONDS)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()

    def _loop(self) -> None:
        while not self._ended.is_set():
            try:
                task = self._todo.get_nowait()
            except queue.Empty:
                break
            self._done.put((task, self._do(task)))
        if self._pipe is not None:
            self._pipe.close()

    def _do(self, task: Task) -> "Result | ProcessDiedError":
        if self._pipe is None:
            self._start()
        assert self._pipe is not None
        try:
            self._pipe.send(task)
            answer: Result = self._pipe.recv()
            return answer
        except (EOFError, OSError):
            self._process.join()
            self._pipe.close()
            self._pipe = None
            return ProcessDiedError(
                f"its process died with exit code {self._process.exitcode}: killed, or out of memory"
            )

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(self._work, other, self._device))
        self._process.start()
        other.close()


def _next(
    done: "queue.SimpleQueue[tuple[Task, Result | ProcessDiedError]]", tick: Callable[[], None]
) -> tuple[Task, Result | ProcessDiedError]:
    while True:
        try:
            return done.get(timeout=TICK_SECONDS)
        except queue.Empty:
            tick()


def _serve(work: Callable[[Any], Any], pipe: Connection, device: str | None) -> None:
    if device is not None:
        # Before anything of this process touches CUDA.
        os.environ[VISIBLE] = device
    with one_thread():
        while True:
            try:
                task = pipe.recv()
            except EOFError:
                return
            pipe.send(work(task))
