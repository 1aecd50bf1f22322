"""What a study of ranks found: measured once, kept with its run, and enough to draw its report again."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from solrl_tasks.analysis.estimates import Bounded, Figure, bounded_estimate
from solrl_tasks.analysis.ranks import fidelity
from solrl_tasks.analysis.saturation import Saturation, find_saturation
from solrl_tasks.config.base import Frozen
from solrl_tasks.reports.provenance import engine_kind, joined
from solrl_tasks.stages.explore import explore
from solrl_tasks.stages.iteration import Call, direct
from solrl_tasks.stages.jobs import PoolJob
from solrl_tasks.stages.scores import proxy_scores
from solrl_tasks.stages.session import Session
from solrl_tasks.store.atomic import read_sealed, write_sealed
from solrl_tasks.store.errors import DamagedError
from solrl_tasks.store.refs import Ref
from solrl_tasks.store.runs import RunView
from solrl_tasks.studies.rank_fidelity import Proxy, RankSettings, RankStudy

KIND: Final = "rank-fidelity"
RESULT: Final = "study.json"
"""The file in the folder of the study's run."""
SATURATING: Final = ("spearman", "contrast_share")
"""Measures whose saturation is looked for; more of them is better."""
Scores = NDArray[np.float64]


class Compared(Frozen):
    """A pool against one reference.

    Attributes:
        reference: its step count.
        same: whether the pool is the reference, so that every measure is perfect by identity.
        metrics: as in ``analysis.ranks.fidelity``, over prompts.
        values: the same, a number for each prompt.
    """

    reference: int
    same: bool
    metrics: dict[str, Bounded]
    values: dict[str, tuple[Figure, ...]]


class PoolFacts(Frozen):
    """A pool of the study.

    Attributes:
        kind: whether the engine computes in hardware what its name says.
        seconds: of a device, that its blocks took, whoever paid.
        record: the environment that it was computed in: hardware, device class, threads, libraries.
    """

    label: str
    series: str
    engine: str
    kind: str
    options: dict[str, JsonValue]
    steps: int
    sampler: str
    resolution: int
    pool: Ref
    seconds: float
    record: dict[str, JsonValue]
    against: tuple[Compared, ...]


class Saturated(Frozen):
    """Where one measure of one series saturates against one reference."""

    series: str
    reference: int
    metric: str
    found: Saturation


class RankFidelity(Frozen):
    """Every proxy against every reference, and every reference against those of more steps, on the same seeds.

    Attributes:
        rewards: name and weight of what is ranked by.
        policy: whose policy sampled, in words.
        command: that makes the study again; empty where it was not asked for by one.
    """

    settings: RankSettings
    command: str
    policy: str
    rewards: dict[str, float]
    prompts: tuple[str, ...]
    candidates: int
    keep: int
    references: tuple[PoolFacts, ...]
    proxies: tuple[PoolFacts, ...]
    saturation: tuple[Saturated, ...]


@dataclass(frozen=True)
class Measured:
    """A result, and what was computed for it now: blocks by the label of their pool."""

    result: RankFidelity
    computed: Mapping[str, int]


@dataclass(frozen=True)
class _Filled:
    job: PoolJob
    ref: Ref
    scores: Scores
    seconds: float
    record: dict[str, Any]
    computed: int


def measure_ranks(session: Session, study: RankStudy, call: Call = direct, command: str = "") -> Measured:
    """Fill the pools that are missing, compare, and keep the result with the session's run.

    Args:
        command: that asks for the same, for the report.
    """
    filled = {label: _fill(session, label, job, call) for label, job in study.jobs().items()}
    references = tuple(_reference(study, steps, filled) for steps in sorted(study.settings.references))
    proxies = tuple(_proxy(study, proxy, filled) for proxy in study.proxies())
    settings = study.settings
    result = RankFidelity(
        settings=settings,
        command=command,
        policy="the untrained model" if settings.policy_run is None else _policy(settings),
        rewards={reward.name: reward.weight for reward in study.base.rewards},
        prompts=study.base.prompts.texts,
        candidates=study.base.candidates,
        keep=study.keep,
        references=references,
        proxies=proxies,
        saturation=tuple(_saturations(settings, proxies)),
    )
    keep_result(session.run, result)
    return Measured(result, {label: found.computed for label, found in filled.items()})


def keep_result(view: RunView, result: RankFidelity) -> None:
    """Write the result into the folder of its run; the same one again changes nothing."""
    content = {"kind": KIND, "result": result.model_dump(mode="json")}
    path = view.path / RESULT
    try:
        if read_sealed(path) == content:
            return
    except (FileNotFoundError, DamagedError):
        pass
    write_sealed(path, content)


def read_result(view: RunView) -> RankFidelity | None:
    """The result that a run keeps; None where it keeps none of this kind.

    Raises:
        DamagedError: its file is damaged: the study run again writes it anew.
    """
    try:
        content = read_sealed(view.path / RESULT)
    except FileNotFoundError:
        return None
    except DamagedError as error:
        remedy = "the same study again writes it anew from its pools"
        raise DamagedError(view.path / RESULT, error.why, remedy) from error
    return RankFidelity.model_validate(content["result"]) if content.get("kind") == KIND else None


def _fill(session: Session, label: str, job: PoolJob, call: Call) -> _Filled:
    outcome = call(explore, session, job)
    assert outcome.ref is not None
    session.run.note_ref(0, label, outcome.ref)
    pool = job.open(session)
    return _Filled(
        job=job,
        ref=outcome.ref,
        scores=proxy_scores(job, pool, job.rewards),
        seconds=outcome.attributed_seconds,
        record=joined(pool.records().values()),
        computed=int(str(outcome.details["blocks_computed"])),
    )


def _reference(study: RankStudy, steps: int, filled: Mapping[str, _Filled]) -> PoolFacts:
    label = study.reference_label(steps)
    higher = [other for other in sorted(study.settings.references) if other > steps]
    sampler = study.reference.sampler
    proxy = Proxy(label, "references", study.reference.engine, steps, sampler, study.model_side)
    return _facts(study, proxy, filled, higher)


def _proxy(study: RankStudy, proxy: Proxy, filled: Mapping[str, _Filled]) -> PoolFacts:
    return _facts(study, proxy, filled, sorted(study.settings.references))


def _facts(study: RankStudy, proxy: Proxy, filled: Mapping[str, _Filled], references: list[int]) -> PoolFacts:
    own = filled[proxy.label]
    return PoolFacts(
        label=proxy.label,
        series=proxy.series,
        engine=proxy.engine.name,
        kind=engine_kind(proxy.engine.name, str(own.record.get("device_class", ""))),
        options=dict(proxy.engine.options),
        steps=proxy.steps,
        sampler=proxy.sampler,
        resolution=proxy.resolution,
        pool=own.ref,
        seconds=own.seconds,
        record=own.record,
        against=tuple(_compare(study, steps, own, filled[study.reference_label(steps)]) for steps in references),
    )


def _compare(study: RankStudy, steps: int, proxy: _Filled, truth: _Filled) -> Compared:
    asked = study.settings
    values = fidelity(proxy.scores, truth.scores, study.keep, asked.counts)
    return Compared(
        reference=steps,
        same=proxy.ref.key == truth.ref.key,
        metrics={
            name: bounded_estimate(each, asked.seed, asked.resamples, asked.level) for name, each in values.items()
        },
        values={name: tuple(map(float, each)) for name, each in values.items()},
    )


def _saturations(settings: RankSettings, proxies: tuple[PoolFacts, ...]) -> list[Saturated]:
    series = dict.fromkeys(proxy.series for proxy in proxies)
    return [
        Saturated(series=name, reference=steps, metric=metric, found=_saturation(settings, curve, steps, metric))
        for name, curve in ((name, [proxy for proxy in proxies if proxy.series == name]) for name in series)
        for steps in sorted(settings.references)
        for metric in SATURATING
    ]


def _saturation(settings: RankSettings, curve: list[PoolFacts], reference: int, metric: str) -> Saturation:
    # A proxy that is the reference is perfect by identity, and says nothing about the steps before it.
    points = [
        (proxy.steps, against.values[metric])
        for proxy in curve
        for against in proxy.against
        if against.reference == reference and not against.same
    ]
    if not points:
        return Saturation(step=None, left=None, reason="every proxy is the reference itself")
    values = np.array([each for _, each in points], dtype=np.float64)
    steps = [step for step, _ in points]
    return find_saturation(steps, values, settings.seed, settings.resamples, settings.level)


def _policy(settings: RankSettings) -> str:
    return f"{settings.policy_run}, iteration {settings.policy_step}, old"


def short(result: RankFidelity) -> dict[str, Any]:
    """The result as plain values without those of single prompts, for what has no room for them."""
    content = result.model_dump(mode="json")
    for pool in (*content["references"], *content["proxies"]):
        for compared in pool["against"]:
            del compared["values"]
    return content
