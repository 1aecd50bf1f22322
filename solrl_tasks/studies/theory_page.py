"""The study of theory as a page: the answer, the gain curve, the bound, what enters it, and other prices."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.analysis.contrast_bound import QUANTILE
from solrl_tasks.analysis.estimates import Estimate, mean_estimate
from solrl_tasks.analysis.gain import MEASURES, Measure, elasticity
from solrl_tasks.reports.page import Block, Commands, Figure, Page, Provenance, Section, Settings, Table, Text, plain
from solrl_tasks.reports.provenance import provenance
from solrl_tasks.studies.evidence import Side
from solrl_tasks.studies.theory import Lines, Theory, stops_by_price
from solrl_tasks.studies.theory_figures import ASYMPTOTE, BOUND, gain_figure, pair_figure, value_figure

Floats = NDArray[np.float64]

TITLE: Final = "How many candidates should be explored?"
MULTIPLES: Final = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0)
"""Numbers of candidates in tables, in units of K; the last n of the pools comes behind them."""
MEASURE_NAMES: Final[Mapping[Measure, str]] = {
    "contrast": "contrast (best kept less worst kept)",
    "spread": "spread (standard deviation of the kept)",
}
ASSUMED: Final = """\
* Every curve is exact over all subsets of the explored pools: no resampling of seeds. The prompts are a sample, and
  intervals are 95 % of 2000 resamples of them.
* What is learnt in an iteration is taken to go with the gain. The *contrast* is what is quoted most; an update whose
  advantages are divided by the spread of all rewards goes with the *spread*, which never falls below that of a choice
  by lot, because the kept are scored again. Where a proxy is poor the two answers differ, and the second is the one to
  trust.
* *Best value* is the number with the most gain for its cost: if progress adds up over iterations, it reaches a goal for
  the least. The *marginal* rule goes on while 1 % more cost gains at least the stated share of a per cent, which is
  right where iterations are limited by something else.
* Prices are medians of recorded device seconds, unless they were given, and taken for known."""


def theory_page(theory: Theory, commands: Sequence[str], settings: Mapping[str, Any]) -> Page:
    """The whole page.

    Args:
        commands: that make it again.
        settings: what was asked.
    """
    sections = (
        Section("The answer", (_answers(theory), Text(ASSUMED), _by_price(theory))),
        Section("The gain curve", tuple(_gain(theory))),
        Section("The asymptotic bound", tuple(_bound(theory))),
        Section("What enters", tuple(_inputs(theory))),
        Section("To make this again", (Commands(tuple(commands)), Settings(settings))),
    )
    return Page(TITLE, answer_sentence(theory), sections)


def answer_sentence(theory: Theory) -> str:
    """The answer in a few sentences of markdown."""
    stop = theory.answers["contrast"].ratio
    evidence = theory.evidence
    head = (
        f"**{stop!s}** candidates for {theory.kept.keep} kept have the best contrast for their cost, at "
        f"{theory.prices.ratio:.3g} of a kept one's price for each"
        if stop.candidates is not None
        else "**No number of candidates** gains anything: the proxy does not rank"
    )
    spread = theory.answers["spread"].ratio
    price = "" if theory.priced else " The price of the update is not known and counts as nothing, so that this is low."
    return (
        f"{head}; by the spread of the kept it is {spread!s}, and for Gaussian rewards "
        f"{theory.answers['contrast'].gaussian_ratio}.{price}{_emulated(evidence.explored)}\n\n"
        f"{plain(evidence.origin)}; reward {plain(evidence.reward)}; {plain(str(evidence.explored))} against "
        f"{plain(str(evidence.reference))}."
    )


def _answers(theory: Theory) -> Table:
    rows = []
    for measure in MEASURES:
        answer = theory.answers[measure]
        rows.append((MEASURE_NAMES[measure], "best value", str(answer.ratio), str(answer.gaussian_ratio)))
        marginal = f"marginal, elasticity {theory.threshold:g}"
        rows.append((MEASURE_NAMES[measure], marginal, str(answer.marginal), str(answer.gaussian_marginal)))
    columns = "gain by", "rule", "candidates (95 %)", "Gaussian rewards"
    keep, last = theory.kept.keep, int(theory.kept.candidates[-1])
    note = (
        f"{keep} are kept; pools hold {last} candidates, so that an answer of {last} is a least number. The Gaussian "
        "answer looks beyond them."
    )
    return Table("Where more candidates stop paying", columns, tuple(rows), _source(theory), note)


def _by_price(theory: Theory) -> Table:
    rows = [
        (
            f"{ratio:.3g}" + (" (here)" if ratio == theory.prices.ratio else ""),
            *(str(stop) for measure in MEASURES for stop in stops[measure]),
        )
        for ratio, stops in stops_by_price(theory)
    ]
    marginal = f"elasticity {theory.threshold:g}"
    columns = ("price of a candidate", *(f"{m}, {rule}" for m in MEASURES for rule in ("best value", marginal)))
    proxy = f"Gaussian rewards; spread by a Gaussian proxy of correlation {theory.rho_spread:.2f}"
    modelled = Provenance("", "", None, "modelled", proxy)
    note = "A candidate's price over that of regenerating and training on a kept one."
    return Table("At other prices", columns, tuple(rows), modelled, note)


def _gain(theory: Theory) -> list[Block]:
    lines, prices, source = theory.kept, theory.prices, _source(theory)
    slopes = elasticity(lines.measured.mean, lines.candidates, prices)
    rows = []
    for n in _shown(lines):
        at = int(np.flatnonzero(lines.candidates == n)[0])
        rows.append(
            (
                str(n),
                _estimate(lines.measured.at(n)),
                _estimate(lines.ideal.at(n)),
                _number(lines.gaussian[at]),
                _number(lines.proxied[at]),
                _number(lines.bound[at]),
                _estimate(theory.spread.at(n)),
                _estimate(theory.spread_ideal.at(n)),
                f"{float(prices.cost(np.array([n]))[0]):.3g} s",
                f"{slopes[at - 1]:.2f}" if at and math.isfinite(slopes[at - 1]) else "",
            )
        )
    columns = (
        "candidates",
        "measured",
        "chosen by the truth",
        "Gaussian",
        "Gaussian, proxy",
        "bound",
        "spread, measured",
        "spread, by the truth",
        "cost",
        "elasticity",
    )
    about = f"Contrast of {lines.keep} kept of n candidates, in units of the reward; ± one standard error over prompts"
    blocks: list[Block] = [
        Figure(about, gain_figure(theory), _words(lines, about), source),
        Table(about, columns, tuple(rows), source),
    ]
    value = value_figure(theory)
    if value is None:
        return blocks
    return [
        *blocks,
        Figure("Gain for its cost", value, "Gain over cost by number of candidates, with its tops", source),
    ]


def _bound(theory: Theory) -> list[Block]:
    pair, source = theory.pair, _source(theory)
    rows = []
    for n in _shown(pair):
        at = int(np.flatnonzero(pair.candidates == n)[0])
        values = pair.gaussian[at], pair.asymptote[at], pair.bound[at], pair.certain[at]
        rows.append((str(n), _estimate(pair.measured.at(n)), _estimate(pair.ideal.at(n)), *map(_number, values)))
    columns = "candidates", "measured", "range", "Gaussian range", ASYMPTOTE, BOUND, "range - 4 Delta"
    about = "One best and one worst of n candidates, in units of the reward; ± one standard error over prompts"
    return [
        Text(_verdict(theory)),
        Figure(about, pair_figure(theory), _words(pair, about), source),
        Table(about, columns, tuple(rows), source),
    ]


def _verdict(theory: Theory) -> str:
    pair, kept = theory.pair, theory.kept
    last, below = int(pair.candidates[-1]), theory.vacuous_below
    lines = [
        _too_much(f"{ASYMPTOTE} promises more than the exact range of a Gaussian", pair, pair.asymptote, pair.gaussian),
        _too_much("... and more than the range of these rewards", pair, pair.asymptote, pair.ideal.mean),
        _too_much(f"{BOUND} promises more than what was measured of one pair", pair, pair.bound, pair.measured.mean),
        _too_much(f"... and more than was measured of {kept.keep} kept", kept, kept.bound, kept.measured.mean),
    ]
    empty = (
        "It promises something from 2 candidates on."
        if below <= 2
        else f"It is negative, and says nothing, below {_large(below)} candidates; here are {last}."
    )
    certain = pair.certain[-1]
    return (
        "\n".join(f"* {line}" for line in [*lines, empty])
        + f"\n* What is certain of any proxy within Delta, the range less 4 Delta, is {_number(certain)} at {last}: "
        + ("less than nothing." if certain < 0 else "that much holds whatever the distribution.")
    )


def _inputs(theory: Theory) -> list[Block]:
    source, sigma = _source(theory), theory.sigma
    at_most = theory.deviation.pooled()
    deltas = [
        ("raw: largest |proxy - true|", theory.deviation.raw, at_most["raw"]),
        ("centred: after the best constant of the prompt", theory.deviation.centred, at_most["centred"]),
        (f"of the middle {QUANTILE:.0%}", theory.deviation.quantile, at_most["quantile"]),
    ]
    rows = [
        (name, _estimate(mean_estimate(each)), _number(top), _number(top / sigma.mean if sigma.mean else math.nan))
        for name, each, top in deltas
    ]
    columns = "Delta", "mean over prompts", "largest", "largest, in sigma"
    shape, prices, evidence = theory.shape, theory.prices, theory.evidence
    facts = [
        ("sigma, mean over prompts", _estimate(sigma)),
        ("sigma, pooled", _number(theory.sigma_pooled)),
        ("correlation of proxy and truth within prompts", _estimate(theory.rho)),
        ("rank correlation", _estimate(theory.rank)),
        ("skew", _estimate(shape.skew)),
        ("excess kurtosis", _estimate(shape.kurtosis)),
        ("share of candidates whose reward is shared", _estimate(shape.tied)),
        ("different rewards of a prompt", _estimate(shape.distinct)),
        ("prompts whose rewards are all one", str(shape.flat)),
        ("rewards are 0 or 1", "yes" if shape.binary else "no"),
        ("these rewards' contrast over a Gaussian's, at the last n", _ratio(theory.kept)),
        ("device seconds of a candidate", f"{prices.explore:.3g} ({evidence.explored.price_origin})"),
        ("device seconds of regenerating a kept one", f"{prices.regenerate:.3g} ({evidence.reference.price_origin})"),
        ("device seconds of a kept one's update", f"{prices.update:.3g} ({evidence.update_origin})"),
        ("groups left out, for an invalid candidate", str(theory.left_out)),
        ("blocks sampled for this study", str(evidence.computed)),
    ]
    note = "Bounds use the centred Delta: a constant added to every proxy of a prompt changes no choice."
    return [
        Table("Deviation of the proxy", columns, tuple(rows), source, note),
        Table("Spread, shape and prices", ("what", "value"), tuple(facts), source),
    ]


def _shown(lines: Lines) -> list[int]:
    last = int(lines.candidates[-1])
    wanted = {round(lines.keep * multiple) for multiple in MULTIPLES} | {last}
    there = set(lines.candidates.tolist())
    return sorted(n for n in wanted if n in there)


def _too_much(what: str, lines: Lines, line: Floats, against: Floats) -> str:
    found = lines.promised_too_much(line, against)
    return f"{what}: {'at no number of candidates' if found is None else f'from {found[0]} to {found[1]} candidates'}."


def _words(lines: Lines, about: str) -> str:
    first, last = int(lines.candidates[0]), int(lines.candidates[-1])
    values = lines.measured.mean
    return f"{about}: measured {_number(values[0])} at {first} and {_number(values[-1])} at {last} candidates."


def _source(theory: Theory) -> Provenance:
    evidence = theory.evidence
    return provenance(evidence.explored.record, evidence.explored.engine, f"{evidence.origin}; {evidence.reward}")


def _emulated(side: Side) -> str:
    if provenance(side.record, side.engine).real:
        return ""
    return (
        f" {plain(side.engine)} is emulated here: its seconds say nothing of the hardware it stands for; other prices "
        "stand below."
    )


def _ratio(lines: Lines) -> str:
    return f"{lines.ideal.mean[-1] / lines.gaussian[-1]:.3f}" if lines.gaussian[-1] > 0 else "no spread"


def _estimate(value: Estimate) -> str:
    if not math.isfinite(value.mean):
        return "not known"
    return f"{value.mean:.3f} ± {value.stderr:.3f}" if math.isfinite(value.stderr) else f"{value.mean:.3f}"


def _number(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "not known"


def _large(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "any number of"
