"""What new weights cost an engine, and whether its compiled graphs outlive them."""

import statistics
import traceback
from collections.abc import Callable, Sequence

import torch

from solrl_tasks.bench.environment import describe_environment
from solrl_tasks.bench.reports.sync import EngineSync, SyncBenchReport
from solrl_tasks.bench.subject import Subject
from solrl_tasks.sampling.identity import initial_noise


def bench_sync(
    subject: Subject, engines: Sequence[str], swaps: int, rows: int, note: Callable[[str], None]
) -> SyncBenchReport:
    """Sync every engine to the base, then to one adapter after another, with a forward after each.

    Args:
        swaps: adapters after the first sync.
        rows: images of a forward.
    """
    environment = describe_environment(subject.device.device)
    found: list[EngineSync] = []
    failed: dict[str, str] = {}
    for name in engines:
        note(f"{name} …")
        try:
            found.append(_measure(subject, name, swaps, rows))
        except Exception as error:  # one engine that fails must not take the others with it
            failed[name] = traceback.format_exc()
            note(f"{name} failed: {type(error).__name__}: {error}\n{failed[name]}")
    return SyncBenchReport(
        environment=environment, model=subject.facts(), lora=subject.lora_name, engines=tuple(found), failed=failed
    )


def _measure(subject: Subject, name: str, swaps: int, rows: int) -> EngineSync:
    device, clock, spec = subject.device, subject.clock, subject.engine_spec(name)
    engine = subject.engine(name)
    first, report = clock.wall(lambda: device.sync(spec, None))
    before = graphs()
    # The forward that compiles uses an adapter already: layers that only adapters touch are put in by the first one.
    device.sync(spec, subject.lora(1))
    _forward(subject, name, rows)
    compiled = graphs()
    seconds, hashes, tensors = [], [], 0
    for turn in range(swaps):
        lora = subject.lora(2 + turn)
        hashes.append(clock.wall(lambda lora=lora: lora.digest)[0])  # type: ignore[misc]
        taken, later = clock.wall(lambda lora=lora: device.sync(spec, lora))  # type: ignore[misc]
        _forward(subject, name, rows)
        seconds.append(taken)
        tensors = later.synced
    record = engine.record()
    return EngineSync(
        engine=name,
        kind=record.kind,
        execution=record.execution,
        first_seconds=first,
        first_tensors=report.synced,
        seconds=tuple(seconds),
        hash_seconds=statistics.median(hashes),
        tensors=tensors,
        replaced=report.replaced,
        graphs=compiled - before,
        new_graphs=graphs() - compiled,
        bytes=sum(engine.memory().values()),
    )


@torch.no_grad()
def _forward(subject: Subject, name: str, rows: int) -> None:
    family = subject.device.family
    noise = initial_noise(range(rows), family.latent_shape).to(family.device)
    family.velocity(subject.engine(name).module, noise, 0.5, subject.conditioning.take([0] * rows))
    subject.clock.wait()


def graphs() -> int:
    """Graphs that torch has compiled in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])
