"""The report of a study of ranks, from its result alone: no pool is read."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from solrl_tasks.analysis.estimates import Bounded
from solrl_tasks.analysis.plots import Look, Series, heat_map, looks, rank_curve
from solrl_tasks.config.words import counted
from solrl_tasks.reports.page import (
    Commands,
    Figure,
    Page,
    Provenance,
    Section,
    Settings,
    Table,
    Text,
    plain,
)
from solrl_tasks.reports.provenance import hardware_name, provenance
from solrl_tasks.studies.rank_results import SATURATING, Compared, PoolFacts, RankFidelity, Saturated

NAMES: Final = {
    "spearman": "Spearman",
    "kendall": "Kendall",
    "contrast_share": "contrast of the ideal",
    "regret": "regret",
    "regret_std": "regret in std",
    "rank_best": "true rank of the best",
    "rank_worst": "true rank of the worst",
}
"""Measures of one choice, in the order of their columns."""
DRAWN: Final = {
    "spearman": "rank correlation (Spearman)",
    "contrast_share": "contrast, of the ideal one",
    "regret_std": "regret, in standard deviations",
}
"""Measures that are drawn over steps."""
FEW: Final = 12
"""Prompts below which bootstrap intervals of 95 % held less than .91 of the time."""
ROUNDING: Final = 1e-12
CURVED: Final = ("spearman", "kendall", "contrast_share", "regret", "regret_std")
"""Measures that a tracker gets as curves, besides matches."""

RULE: Final = """\
The smallest step count that is within one paired {level} bootstrap interval, over prompts, of the best at higher
counts. The highest count measured has nothing above it and is never the answer. *Left to gain* is what the best
higher count has over the one named, or over the last but one where none is; its upper bound is a gain that so few
prompts cannot rule out. Of fewer than {few} prompts nothing of this is resolved: their intervals are too narrow.
"""
MEANING: Final = """\
* *Spearman*, *Kendall* (tau-b): of a prompt's {n} seeds; 0 by chance.
* *Contrast of the ideal*: mean true reward of the proxy's {best} best minus that of its {worst} worst, over the same
  where the reference chooses; 0 by chance.
* *Regret*: mean true reward of the {best} truly best minus that of the proxy's {best} best, in units of the reward, and
  in standard deviations of the prompt's true rewards; 0 is nothing given away.
* *True rank of the best*, *of the worst*: mean rank by the reference of what the proxy picks, 1 being the best;
  {perfect_best} and {perfect_worst} are perfect, {chance} is chance.
* *Match, lenient*: the mean share of a prompt's other seeds that the proxy's top k beat by the reference, or that its
  bottom k are beaten by. At best {matches}; 0.5 by chance. Published match rates do not say how they were computed;
  this is not claimed to be theirs.
* *Overlap, strict*: the share of the proxy's top (bottom) k that are among the reference's top (bottom) k. By chance
  {overlaps}.

Intervals are BCa bootstraps over prompts; those of few prompts are too narrow.
"""


def rank_page(result: RankFidelity, recipe: Mapping[str, Any]) -> Page:
    """The page.

    Args:
        recipe: of the study's run, plain values.
    """
    sections = [_drawn(result, steps) for steps in _references(result)]
    sections += [_tables(result, steps) for steps in _references(result)]
    sections += [*_agreement(result), _saturation(result), _meaning(result)]
    settings = {"study": result.settings.model_dump(mode="json"), "recipe": dict(recipe)}
    commands = (Commands((result.command,)),) if result.command else ()
    again = Section("Do it again", (*commands, Settings(settings)))
    return Page("Rank fidelity", _summary(result), (*sections, again))


def rank_metrics(result: RankFidelity) -> dict[str, float]:
    """Single figures for a tracker: saturation steps that were reached, and how far references agree."""
    found = {
        f"saturation_{one.metric}/{_slug(one.series)} vs {one.reference} steps": float(one.found.step)
        for one in result.saturation
        if one.found.step is not None
    }
    for pool in result.references:
        for against in pool.against:
            name = f"references_spearman/{pool.steps} vs {against.reference} steps"
            found |= _finite({name: against.metrics["spearman"].mean})
    return found


def rank_curves(result: RankFidelity) -> dict[str, list[tuple[int, float]]]:
    """Curves over explore steps for a tracker: ``<measure>/<series> vs <reference> steps``, and their bounds."""
    counts = [f"{end}_match_{k}" for end in ("top", "bottom") for k in result.settings.counts]
    curves: dict[str, list[tuple[int, float]]] = {}
    for pool in result.proxies:
        for against in pool.against:
            for metric in (*CURVED, *counts):
                one, of = against.metrics[metric], f"{_slug(pool.series)} vs {against.reference} steps"
                named = {f"{metric}/{of}": one.mean, f"{metric}_low/{of}": one.low, f"{metric}_high/{of}": one.high}
                for name, value in _finite(named).items():
                    curves.setdefault(name, []).append((pool.steps, value))
    return curves


def show_bounded(one: Bounded) -> str:
    """Mean, bounds and spread over prompts as a cell of a table."""
    if one.n == 0:
        return "none"
    # What the sum of equal numbers rounds to is no spread.
    spread = 0.0 if one.spread < ROUNDING * abs(one.mean) else one.spread
    return f"{one.mean:.3g} [{one.low:.3g}, {one.high:.3g}] ({spread:.2g})" if one.n > 1 else f"{one.mean:.3g}"


def caution(result: RankFidelity) -> str:
    """What so few prompts cannot say; empty where there are enough."""
    prompts = len(result.prompts)
    if prompts >= FEW:
        return ""
    return (
        f"{prompts} {'prompts are' if prompts > 1 else 'prompt is'} few: intervals over prompts are too narrow, "
        "and no order between close figures can be relied on."
    )


def is_settled(one: Saturated) -> bool:
    """Whether there are prompts enough to rely on what was found of a saturation; see ``FEW``."""
    return one.found.left is not None and one.found.left.n >= FEW


def saturation_words(result: RankFidelity, one: Saturated) -> str:
    """What was found of a saturation and how sure it is: the interval that the rule looks at, and of how many prompts.

    That no gain of more steps is resolved is not that there is none: the interval has what cannot be ruled out. The
    headline, the table and the command line all say this.
    """
    found, left = one.found, one.found.left
    if left is None or left.n < 2:
        return found.reason
    gain = f"{left.mean:.2g} [{left.low:.2g}, {left.high:.2g}] ({_level(result)}, {counted(left.n, 'prompt')})"
    if found.step is None:
        curve = [pool for pool in result.proxies if pool.series == one.series]
        last = max(pool.steps for pool in curve if not _against(pool, one.reference).same)
        told = f"not reached within {counted(last, 'step')}: more steps still gain {gain}"
    else:
        told = f"no gain beyond {counted(found.step, 'step')} is resolved: {gain}"
    return told if is_settled(one) else f"unresolved, {told}, which are too few to tell"


def _summary(result: RankFidelity) -> str:
    last = _references(result)[-1]
    engine = result.references[-1].engine
    lines = [
        f"{counted(len(result.prompts), 'held-out prompt')} x {counted(result.candidates, 'seed')} of "
        f"{plain(result.policy)}, ranked by "
        f"{plain(', '.join(result.rewards))}. Against {engine} at {last} steps:",
        "",
    ]
    for one in result.saturation:
        if one.metric == SATURATING[0] and one.reference == last:
            lines.append(f"* {plain(one.series)}: {_sentence(result, one)}")
    said = caution(result)
    return "\n".join([*lines, "", said] if said else lines)


def _sentence(result: RankFidelity, one: Saturated) -> str:
    curve = [pool for pool in result.proxies if pool.series == one.series]
    chosen = next((pool for pool in curve if pool.steps == one.found.step), curve[-1])
    against = _against(chosen, one.reference)
    if against.same:
        return f"saturation is not known: {saturation_words(result, one)}"
    rho, share = against.metrics["spearman"], against.metrics["contrast_share"]
    at = (
        f"at {counted(chosen.steps, 'step')} rank correlation {_interval(rho)}, contrast {_interval(share)} of the "
        "ideal one"
    )
    return f"saturation: {saturation_words(result, one)}; {at}"


def _drawn(result: RankFidelity, reference: int) -> Section:
    pools = [pool for pool in result.proxies if not _against(pool, reference).same]
    title = f"Against {_reference_name(result, reference)}"
    if not pools:
        return Section(title, (Text("Every proxy is the reference itself."),))
    note = "" if len(pools) == len(result.proxies) else " A proxy that is the reference itself is left out."
    heat = Figure(
        f"Rank correlation (Spearman) with {reference} steps, mean over prompts.{note}",
        _heat(result, pools, reference),
        f"Heat map of rank correlation against {reference} steps: a row for each engine, a column for each step count",
        _provenance(result),
    )
    # One that is the reference itself is in some plots and not in others.
    known = looks(pool.series for pool in result.proxies)
    curves = [
        Figure(
            f"{words[0].upper()}{words[1:]}, against {reference} steps; bars are {_level(result)} bootstrap intervals.",
            rank_curve(_series(pools, reference, metric, known), words),
            f"Curves of {words} over explore steps, one for each engine, against {reference} steps",
            _provenance(result),
        )
        for metric, words in DRAWN.items()
    ]
    return Section(title, (heat, *curves))


def _heat(result: RankFidelity, pools: Sequence[PoolFacts], reference: int) -> bytes:
    rows = list(dict.fromkeys(pool.series for pool in pools))
    columns = sorted(set(result.settings.steps))
    values = np.full((len(rows), len(columns)), np.nan)
    for pool in pools:
        rho = _against(pool, reference).metrics["spearman"].mean
        values[rows.index(pool.series), columns.index(pool.steps)] = rho
    names = {pool.series: _shown_series(pool) for pool in pools}
    return heat_map(values, [names[row] for row in rows], [str(steps) for steps in columns], ("explore steps", "", ""))


def _series(pools: Sequence[PoolFacts], reference: int, metric: str, known: Mapping[str, Look]) -> list[Series]:
    lines = []
    for name in dict.fromkeys(pool.series for pool in pools):
        curve = [pool for pool in pools if pool.series == name]
        found = [_against(pool, reference).metrics[metric] for pool in curve]
        bounds = [one.low for one in found], [one.high for one in found]
        steps, means = [pool.steps for pool in curve], [one.mean for one in found]
        lines.append(Series(_shown_series(curve[0]), steps, means, bounds=bounds, look=known[name]))
    return lines


def _tables(result: RankFidelity, reference: int) -> Section:
    title = f"Every measure, against {_reference_name(result, reference)}"
    note = f"mean over prompts [{_level(result)} bootstrap interval] (standard deviation over prompts)"
    counts = result.settings.counts
    pairs = [(end, k) for k in counts for end in ("top", "bottom")]
    choice = _table(result, reference, f"Correlation, and the choice of {result.keep}", NAMES, note)
    lenient = {f"{end}_match_{k}": f"{end} {k}" for end, k in pairs}
    strict = {f"{end}_overlap_{k}": f"{end} {k}" for end, k in pairs}
    return Section(
        title,
        (
            choice,
            _table(result, reference, "Match of the best and the worst, lenient", lenient, note),
            _table(result, reference, "Overlap of the best and the worst, strict", strict, note),
        ),
    )


def _table(result: RankFidelity, reference: int, caption: str, metrics: Mapping[str, str], note: str) -> Table:
    caption = f"{caption}, against {reference} steps"
    rows = []
    for pool in result.proxies:
        against = _against(pool, reference)
        label = f"{_shown_series(pool)}{' (the reference)' if against.same else ''}"
        cells = [show_bounded(against.metrics[name]) for name in metrics]
        rows.append((label, str(pool.steps), *cells, f"{pool.seconds:.3g}"))
    columns = ("proxy", "steps", *metrics.values(), "device seconds")
    return Table(caption, columns, tuple(rows), _provenance(result), note)


def _agreement(result: RankFidelity) -> list[Section]:
    rows = [
        (str(pool.steps), str(against.reference), *(show_bounded(against.metrics[name]) for name in NAMES))
        for pool in result.references
        for against in pool.against
    ]
    if not rows:
        return []
    about = "A gap here says that the reference of fewer steps is not converged itself."
    table = Table("References as proxies of longer ones", ("steps", "against", *NAMES.values()), tuple(rows))
    return [Section("Do the references agree?", (Text(about), table))]


def _saturation(result: RankFidelity) -> Section:
    rows = []
    for one in result.saturation:
        left = one.found.left
        rows.append(
            (
                one.series,
                str(one.reference),
                NAMES[one.metric],
                _step(one),
                "none" if left is None or left.n < 2 else f"{left.mean:.3g} [{left.low:.3g}, {left.high:.3g}]",
                saturation_words(result, one),
            )
        )
    columns = ("series", "reference steps", "measure", "saturates at", "left to gain", "in words")
    rule = RULE.format(level=_level(result), few=FEW)
    return Section("Where more steps stop paying", (Text(rule), Table("Saturation", columns, tuple(rows))))


def _step(one: Saturated) -> str:
    step = "none" if one.found.step is None else str(one.found.step)
    return step if is_settled(one) or one.found.left is None else f"{step} (unresolved)"


def _meaning(result: RankFidelity) -> Section:
    best, worst, n = result.keep - result.keep // 2, result.keep // 2, result.candidates
    counts = result.settings.counts
    words = MEANING.format(
        n=n,
        best=best,
        worst=worst,
        perfect_best=f"{(best + 1) / 2:g}",
        perfect_worst=f"{n - (worst - 1) / 2:g}",
        chance=f"{(n + 1) / 2:g}",
        matches=", ".join(f"{1 - (k - 1) / (2 * (n - 1)):.3f} at k = {k}" for k in counts),
        overlaps=", ".join(f"{k / n:.3f} at k = {k}" for k in counts),
    )
    return Section("What the measures mean", (Text(words),))


def _provenance(result: RankFidelity) -> Provenance:
    pools = (*result.references, *result.proxies)
    hardware = ", ".join(dict.fromkeys(name for pool in pools if (name := hardware_name(pool.record))))
    engines = dict.fromkeys(f"{pool.engine} ({pool.kind})" for pool in pools)
    notes = dict.fromkeys(note for pool in pools if (note := provenance(pool.record, pool.engine).note))
    return Provenance(hardware, "", None, "measured", "; ".join([f"engines {', '.join(engines)}", *notes]))


def _references(result: RankFidelity) -> list[int]:
    return [pool.steps for pool in result.references]


def _reference_name(result: RankFidelity, steps: int) -> str:
    pool = next(pool for pool in result.references if pool.steps == steps)
    return f"{pool.engine}, {counted(steps, 'step')}, {pool.sampler}"


def _against(pool: PoolFacts, reference: int) -> Compared:
    return next(against for against in pool.against if against.reference == reference)


def _shown_series(pool: PoolFacts) -> str:
    stands_in = pool.kind == "emulated" and "emulated" not in pool.engine
    return f"{pool.series} (emulated)" if stands_in else pool.series


def _interval(one: Bounded) -> str:
    return f"{one.mean:.2f} [{one.low:.2f}, {one.high:.2f}]" if one.n > 1 else f"{one.mean:.2f}"


def _level(result: RankFidelity) -> str:
    return f"{100 * result.settings.level:g} %"


def _slug(series: str) -> str:
    return series.replace(", ", " ")


def _finite(named: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in named.items() if np.isfinite(value)}
