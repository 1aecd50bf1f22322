"""What a study has and what it lacks, told before anything is computed: blocks, transformer evaluations, device time.

Time is estimated from what blocks of like pools took on this hardware: the same model, engine, sampler, resolution,
guidance and numerics, scored by the same rewards. Where nothing like it was ever measured there is no estimate.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from scipy.optimize import nnls

from solrl_tasks.config.recipe import WorkersSpec
from solrl_tasks.config.words import are, counted
from solrl_tasks.engines.base import hardware_name, report_engines
from solrl_tasks.stages.jobs import PoolJob
from solrl_tasks.stages.session import Session
from solrl_tasks.store.blocks import Block
from solrl_tasks.store.costs import CostBook, PoolCost
from solrl_tasks.store.errors import DamagedError
from solrl_tasks.store.keys import canonical_json, key
from solrl_tasks.store.pool import Pool
from solrl_tasks.store.root import Store
from solrl_tasks.workers.site import work_elsewhere

UNLIKE: Final = frozenset({"algo_version", "policy", "prompts", "exploration_seed", "seed_scheme", "steps", "chunk"})
"""Fields of a pool's spec that two pools may differ in and still cost the same for an image and a step."""
MINUTE: Final = 60.0
HOUR: Final = 3600.0


@dataclass(frozen=True)
class Timing:
    """What an image takes.

    Attributes:
        seconds: of a device, for one image of the pool that was asked about.
        basis: what that was measured on, for people.
    """

    seconds: float
    basis: str


@dataclass(frozen=True)
class PlannedPool:
    """One pool of a study.

    Attributes:
        label: what it is in the study; several labels where several parts of a study are the same pool.
        key: of the pool.
        blocks: one prompt times one chunk each.
        missing: blocks that lack something.
        forwards: transformer evaluations still to do: images times steps.
        images: to be sampled.
        seconds: estimated device time of what is missing; None where nothing like it was ever measured.
        basis: what the estimate rests on, or why there is none.
    """

    label: str
    key: str
    blocks: int
    missing: int
    forwards: int
    images: int
    seconds: float | None
    basis: str


@dataclass(frozen=True)
class StudyPlan:
    """All pools of a study, each once.

    Attributes:
        note: what else to know of the figures, for people: see ``other_devices``; and pools that are damaged.
    """

    pools: tuple[PlannedPool, ...]
    note: str = ""

    @property
    def blocks(self) -> int:
        """Of all pools."""
        return sum(pool.blocks for pool in self.pools)

    @property
    def missing(self) -> int:
        """Blocks that lack something."""
        return sum(pool.missing for pool in self.pools)

    @property
    def forwards(self) -> int:
        """Transformer evaluations still to do, as ``Counters.forwards`` counts them."""
        return sum(pool.forwards for pool in self.pools)

    @property
    def images(self) -> int:
        """To be sampled."""
        return sum(pool.images for pool in self.pools)

    @property
    def seconds(self) -> float:
        """Estimated device time of the pools that have an estimate; see ``unmeasured``."""
        return sum(pool.seconds or 0.0 for pool in self.pools)

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """Labels of pools whose time is not known and not in ``seconds``."""
        return tuple(pool.label for pool in self.pools if pool.seconds is None)

    def with_note(self, first: str) -> "StudyPlan":
        """The same with something else to know first; an empty text changes nothing."""
        return replace(self, note=f"{first} {self.note}".strip())

    def as_json(self) -> dict[str, Any]:
        """Pools and totals as plain values."""
        totals = {name: getattr(self, name) for name in ("blocks", "missing", "forwards", "images", "seconds")}
        return {
            "pools": [vars(pool) for pool in self.pools],
            **totals,
            "unmeasured": list(self.unmeasured),
            "note": self.note,
        }


def plan_pools(session: Session, jobs: Mapping[str, PoolJob]) -> StudyPlan:
    """What is there of some pools and what is missing. Makes no pool, loads no weights, computes nothing.

    Args:
        session: open, or from ``planning_session``.
        jobs: by label. Those that are one pool in the store are planned as one, with all their labels.
    """
    together: dict[str, list[str]] = {}
    for label, job in jobs.items():
        together.setdefault(key(job.spec(session)), []).append(label)
    book, faults = CostBook(session.store), dict[str, str]()
    pools = tuple(
        _plan(session, " = ".join(labels), found, [jobs[label] for label in labels], book, faults)
        for found, labels in together.items()
    )
    engines = [job.sampling.engine.name for job in jobs.values()]
    others = {key: f"{why}; no estimate rests on it" for key, why in book.unreadable.items()}
    told = [f"{sentence}." for sentence in (others | faults).values()]
    return StudyPlan(
        pools, " ".join(filter(None, [other_devices(session.recipe.workers, session.device, engines), *told]))
    )


def other_devices(workers: WorkersSpec, planned: torch.device, engines: Iterable[str]) -> str:
    """That a plan was made for a device of this process, where others may do the work; empty where they cannot.

    Nothing short of its actors knows the devices of a cluster that is there already, and a plan starts none.

    Args:
        engines: that the work needs; those that this device cannot run are named.
    """
    address = work_elsewhere(workers)
    if address is None:
        return ""
    known = report_engines(planned)
    lacking = [
        f"{name} does not run here ({known[name].reason}), and whether it does there is not known before a run begins."
        for name in dict.fromkeys(engines)
        if name in known and not known[name].ok
    ]
    return " ".join(
        (
            f"This is for {hardware_name(planned)}, which is here. workers.kind is ray: should the cluster at "
            f"{address} have other devices, what they computed is not counted as there, and what they take is not "
            "known here.",
            *lacking,
        )
    )


def estimate_seconds(session: Session, job: PoolJob, book: CostBook | None = None) -> Timing | None:
    """What an image of a pool takes on this device, from recorded blocks of like pools; None where there are none.

    Blocks of as many steps count alone where there are any; else those of other step counts, see ``time_image``.

    Args:
        book: to read the store's costs once for many pools.
    """
    wanted = _likeness(job.spec(session))
    here = _hardware(session.worker.site.environment())
    found = (book or CostBook(session.store)).find(
        lambda spec: _likeness(spec) == wanted, job.reward_ids(), lambda record: _hardware(record) == here
    )
    return time_image(job.sampling.steps, found)


def time_image(steps: int, costs: Sequence[PoolCost]) -> Timing | None:
    """Seconds of one image of ``steps`` steps, from what images of any step counts took.

    One step count is scaled in proportion; of several, the line a + b * steps of least squares with a, b >= 0 is
    taken, a being what decoding and scoring take.
    """
    seconds, images = dict[int, float](), dict[int, int]()
    for cost in costs:
        at = int(cost.spec["steps"])
        seconds[at], images[at] = seconds.get(at, 0.0) + cost.seconds, images.get(at, 0) + cost.images
    if not images:
        return None
    if steps in images:
        return Timing(seconds[steps] / images[steps], f"{counted(images[steps], 'image')} of {counted(steps, 'step')}")
    known = sorted(images)
    count = sum(images.values())
    if len(known) == 1:
        only = known[0]
        return Timing(
            seconds[only] / images[only] * steps / only,
            f"{counted(count, 'image')} of {counted(only, 'step')}, in proportion to the steps",
        )
    means = np.array([seconds[at] / images[at] for at in known])
    weights = np.sqrt([images[at] for at in known])
    design = np.stack([np.ones(len(known)), np.array(known, dtype=np.float64)], axis=1)
    (fixed, each), _ = nnls(design * weights[:, None], means * weights)
    listed = ", ".join(map(str, known))
    return Timing(float(fixed + each * steps), f"{counted(count, 'image')} of {listed} steps, along a line")


def plan_rows(plan: StudyPlan) -> list[dict[str, str]]:
    """A row of text for each pool."""
    return [
        {
            "pool": pool.label,
            "key": pool.key[:12],
            "blocks": str(pool.blocks),
            "missing": str(pool.missing),
            "forward passes": str(pool.forwards),
            "device time": "not measured" if pool.seconds is None else show_seconds(pool.seconds),
            "estimated from": pool.basis,
        }
        for pool in plan.pools
    ]


def plan_summary(plan: StudyPlan) -> str:
    """The plan in a sentence or two, and its note."""
    return f"{_counted(plan)} {plan.note}".strip()


def _counted(plan: StudyPlan) -> str:
    cached, pools = plan.blocks - plan.missing, counted(len(plan.pools), "pool")
    if not plan.missing:
        every = "The only block" if plan.blocks == 1 else f"All {plan.blocks} blocks"
        return f"{every} of {pools} {are(plan.blocks)} there: nothing is to be computed."
    first = (
        f"{cached} of {counted(plan.blocks, 'block')} of {pools} {are(cached)} there, {plan.missing} "
        f"{are(plan.missing)} missing: {counted(plan.images, 'image')}, "
        f"{counted(plan.forwards, 'forward pass', 'forward passes')}"
    )
    unmeasured = len(plan.unmeasured)
    if unmeasured == sum(pool.missing > 0 for pool in plan.pools):
        return f"{first}. What they take on this device was never measured, so there is no estimate of the time."
    estimate = f"{first}, about {show_seconds(plan.seconds)} of device time"
    if not unmeasured:
        return f"{estimate}."
    return f"{estimate}, not counting {unmeasured} of the pools: nothing like that was ever measured."


def show_seconds(seconds: float) -> str:
    """A span in words."""
    if seconds < MINUTE:
        return f"{seconds:.1f} s"
    return f"{seconds / MINUTE:.1f} min" if seconds < HOUR else f"{seconds / HOUR:.1f} h"


def _plan(
    session: Session, label: str, found: str, jobs: Sequence[PoolJob], book: CostBook, faults: dict[str, str]
) -> PlannedPool:
    first = jobs[0]
    blocks = _missing(session, found, jobs, faults)
    sampled = sum(block.needs_sampling for block in blocks)
    images = sampled * first.chunk
    timing = estimate_seconds(session, first, book) if sampled else None
    if not blocks:
        seconds, basis = 0.0, "all is there"
    elif sampled < len(blocks):
        # Blocks that are only scored again take what their reward takes, which nobody records by itself.
        seconds, basis = (
            None,
            _lacking_scores(len(blocks) - sampled),
        )
    elif timing is None:
        seconds, basis = None, "nothing like it was measured on this device"
    else:
        seconds, basis = timing.seconds * images, timing.basis
    return PlannedPool(
        label=label,
        key=found,
        blocks=max(job.count_blocks() for job in jobs),
        missing=len(blocks),
        forwards=images * first.sampling.steps,
        images=images,
        seconds=seconds,
        basis=basis,
    )


def _lacking_scores(blocks: int) -> str:
    return (
        f"{counted(blocks, 'block')} only {'lacks' if blocks == 1 else 'lack'} a score, whose time is not known apart"
    )


def _missing(session: Session, found: str, jobs: Sequence[PoolJob], faults: dict[str, str]) -> list[Block]:
    pool = _readable(session.store, found, faults)
    if pool is None:
        largest = max(jobs, key=PoolJob.count_blocks)
        return [
            Block(row=row, index=index, start=index * largest.chunk, stop=(index + 1) * largest.chunk)
            for row in range(len(largest.prompts))
            for index in range(largest.count_blocks() // len(largest.prompts))
        ]
    union: dict[tuple[int, int], Block] = {}
    for block in (block for job in jobs for block in job.lacking(pool)):
        place = block.row, block.index
        if place not in union or block.needs_sampling:
            union[place] = block
    return list(union.values())


def _readable(store: Store, found: str, faults: dict[str, str]) -> Pool | None:
    """The pool of a key; None where there is none, or one whose spec is damaged: it would be made anew.

    Args:
        faults: gets what is wrong with the pool, by its key.
    """
    if not (store.folder("pools") / found / "spec.json").exists():
        return None
    try:
        pool = Pool.load(store, found)
    except DamagedError as error:
        faults[found] = f"{error}; the pool will be set aside, and all its blocks are counted as missing"
        return None
    if fault := pool.prompts_fault():
        faults[found] = fault
    return pool


def _likeness(spec: Mapping[str, Any]) -> str:
    return canonical_json({name: value for name, value in spec.items() if name not in UNLIKE})


def _hardware(record: Mapping[str, Any]) -> tuple[Any, ...]:
    # A GPU's work does not depend on the threads of its host; that of a CPU does.
    threads = record.get("threads") if record.get("device_class") == "cpu" else None
    return record.get("hardware"), record.get("device_class"), threads
