"""What theory promises of exploring more candidates, what pools say, and how many are worth it at measured prices."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.analysis.contrast_bound import (
    Deviation,
    Shape,
    asymptotic_range,
    first_positive,
    pooled_sigma,
    sigma_of,
)
from solrl_tasks.analysis.estimates import Estimate, mean_estimate
from solrl_tasks.analysis.gain import (
    MEASURES,
    GainCurve,
    Measure,
    Prices,
    Stop,
    best_ratio,
    find_stop,
    gain_curve,
    gaussian_stop,
    last_above,
)
from solrl_tasks.analysis.order_statistics import gaussian_contrast
from solrl_tasks.analysis.ranks import spearman
from solrl_tasks.config.words import counted
from solrl_tasks.stages.recorded import StudyError
from solrl_tasks.studies.evidence import Evidence

Floats = NDArray[np.float64]

PAIR: Final = 2
"""One best and one worst: what the bound is about."""
PRICE_RATIOS: Final = (1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32)
"""Prices of a candidate over those of a kept one, for which the Gaussian answer is shown besides the measured one."""


@dataclass(frozen=True)
class Lines:
    """Contrast over n for one number of kept candidates: measured, exact, and promised; all means over prompts.

    Attributes:
        measured: chosen by the proxy; exact over all subsets of the pools.
        ideal: chosen by the true rewards themselves, likewise.
        gaussian: of a Gaussian with each prompt's sigma, chosen by the true rewards, [G].
        proxied: the same chosen by a proxy of each prompt's correlation, jointly Gaussian.
        asymptote: 2 sigma sqrt(2 ln n).
        bound: the asymptote less 4 Delta, Delta being each prompt's ``Deviation.centred``.
        certain: ideal less 4 Delta, which no proxy that errs by at most Delta falls below.
    """

    measured: GainCurve
    ideal: GainCurve
    gaussian: Floats
    proxied: Floats
    asymptote: Floats
    bound: Floats
    certain: Floats

    @property
    def keep(self) -> int:
        """Kept candidates."""
        return self.measured.keep

    @property
    def candidates(self) -> NDArray[np.int64]:
        """The n of all lines, [G]."""
        return self.measured.candidates

    def promised_too_much(self, line: Floats, against: Floats) -> tuple[int, int] | None:
        """The first and the last n at which ``line`` is above ``against``; None where it nowhere is."""
        above = self.candidates[line > against]
        return (int(above[0]), int(above[-1])) if len(above) else None


@dataclass(frozen=True)
class Answer:
    """Where each rule stops, by what it measures gain by.

    Attributes:
        ratio: best gain for its cost; ``marginal``: last n with the stated elasticity.
        gaussian_ratio, gaussian_marginal: the same for Gaussian rewards, at any number of candidates.
    """

    measure: Measure
    ratio: Stop
    marginal: Stop
    gaussian_ratio: int
    gaussian_marginal: int


@dataclass(frozen=True)
class Theory:
    """Everything that the page shows.

    Attributes:
        evidence: the groups that everything here is of: those without an invalid candidate.
        left_out: groups with one, of which no gain is known at small numbers of candidates.
        sigma: per-prompt spread of true rewards, mean over prompts; ``sigma_pooled`` the root of the mean variance.
        deviation: how far the proxy is from the true reward, by prompt.
        rho, rank: Pearson's and Spearman's correlation within prompts, means over prompts.
        rho_spread: root of the mean squared Pearson correlation, prompts weighed by variance: what the spread goes by.
        shape: how far true rewards are from Gaussian.
        kept: lines of the K kept; ``pair`` those of one best and one worst.
        spread, spread_ideal: standard deviation of the true rewards of the kept, over n.
        prices: at the measured seconds; ``priced`` is whether that of the update is among them.
        answers: by measure.
        threshold: elasticity of the marginal rule.
    """

    evidence: Evidence
    left_out: int
    sigma: Estimate
    sigma_pooled: float
    deviation: Deviation
    rho: Estimate
    rank: Estimate
    rho_spread: float
    shape: Shape
    kept: Lines
    pair: Lines
    spread: GainCurve
    spread_ideal: GainCurve
    prices: Prices
    priced: bool
    answers: Mapping[Measure, Answer]
    threshold: float

    @property
    def delta(self) -> Estimate:
        """Mean over prompts of the Delta that the bounds use."""
        return mean_estimate(self.deviation.centred)

    @property
    def vacuous_below(self) -> float:
        """The N below which the asymptotic bound is negative, at the mean sigma and the mean Delta."""
        return first_positive(self.sigma.mean, self.delta.mean)

    def metrics(self) -> dict[str, float]:
        """Flat figures for a tracker; what is not known is left out."""
        last = {
            "contrast_measured": self.kept.measured.mean[-1],
            "contrast_ideal": self.kept.ideal.mean[-1],
            "contrast_gaussian": self.kept.gaussian[-1],
            "contrast_gaussian_proxy": self.kept.proxied[-1],
            "contrast_bound": self.kept.bound[-1],
            "spread_measured": self.spread.mean[-1],
        }
        plain = {"sigma": self.sigma.mean, "delta": self.delta.mean, "rho": self.rho.mean, "price": self.prices.ratio}
        plain |= {"skew": self.shape.skew.mean, "kurtosis": self.shape.kurtosis.mean, "tied": self.shape.tied.mean}
        stops: dict[str, float | None] = {}
        for measure, answer in self.answers.items():
            for rule, stop in (("ratio", answer.ratio), ("marginal", answer.marginal)):
                named = {"": stop.candidates, "_low": stop.low, "_high": stop.high}
                stops |= {f"stop_{measure}_{rule}{end}": value for end, value in named.items()}
            stops[f"stop_{measure}_gaussian"] = answer.gaussian_ratio
        every = {**last, **plain, **stops}
        return {f"theory/{name}": float(v) for name, v in every.items() if v is not None and math.isfinite(v)}

    def curves(self) -> dict[str, list[tuple[int, float]]]:
        """The lines of the kept for a tracker, over the number of candidates."""
        lines = {
            "measured": self.kept.measured.mean,
            "ideal": self.kept.ideal.mean,
            "gaussian": self.kept.gaussian,
            "gaussian_proxy": self.kept.proxied,
            "bound": self.kept.bound,
            "spread": self.spread.mean,
        }
        steps = self.kept.candidates
        return {f"theory_contrast/{name}": points_of(steps, line) for name, line in lines.items()}

    def as_json(self) -> dict[str, Any]:
        """The figures as plain values, and what they are of."""
        return {
            "origin": self.evidence.origin,
            "reward": self.evidence.reward,
            "pools": list(self.evidence.pools),
            "computed": self.evidence.computed,
            "left_out": self.left_out,
            "keep": self.kept.keep,
            "candidates": int(self.kept.candidates[-1]),
            "metrics": self.metrics(),
            "curves": self.curves(),
        }


def study_theory(evidence: Evidence, threshold: float) -> Theory:
    """Everything that can be said of some groups. Computes on the CPU, and samples nothing.

    Args:
        threshold: elasticity of the marginal rule, above 0.

    Raises:
        StudyError: K does not fit the groups, no group is usable, or ``threshold`` is not above 0.
    """
    _check(evidence, threshold)
    # Of the same groups everything: means over others could not be compared.
    whole = _whole(evidence)
    evidence = replace(evidence, proxy=evidence.proxy[whole], true=evidence.true[whole])
    proxy, true = evidence.proxy, evidence.true
    prices = Prices(evidence.explored.seconds, evidence.reference.seconds, evidence.update or 0.0, evidence.keep)
    kept, rho = _lines(evidence, evidence.keep), _rho_spread(proxy, true)
    spread = gain_curve(proxy, true, evidence.keep, "spread")
    curves: dict[Measure, GainCurve] = {"contrast": kept.measured, "spread": spread}
    return Theory(
        evidence=evidence,
        left_out=int((~whole).sum()),
        sigma=mean_estimate(sigma_of(true)),
        sigma_pooled=pooled_sigma(true),
        deviation=Deviation.of(proxy, true),
        rho=mean_estimate(correlations(proxy, true)),
        rank=mean_estimate(spearman(proxy, true)),
        rho_spread=rho,
        shape=Shape.of(true),
        kept=kept,
        pair=_lines(evidence, PAIR),
        spread=spread,
        spread_ideal=gain_curve(true, true, evidence.keep, "spread"),
        prices=prices,
        priced=evidence.update is not None,
        answers={measure: _answer(measure, curves[measure], prices, threshold, rho) for measure in MEASURES},
        threshold=threshold,
    )


def stops_by_price(theory: Theory) -> list[tuple[float, dict[Measure, tuple[int, int]]]]:
    """For the measured price of a candidate and for others: where Gaussian rewards stop, by ratio and by elasticity.

    Returns:
        Ratios of a candidate's price to a kept one's, falling, with the stops of each measure.
    """
    ratios = sorted({*PRICE_RATIOS, theory.prices.ratio}, reverse=True)
    return [(ratio, {measure: _gaussian_pair(theory, ratio, measure) for measure in MEASURES}) for ratio in ratios]


def _gaussian_pair(theory: Theory, ratio: float, measure: Measure) -> tuple[int, int]:
    prices = Prices(ratio, 1.0, 0.0, theory.kept.keep)
    rho = theory.rho_spread
    return gaussian_stop(prices, measure, rho=rho), gaussian_stop(prices, measure, theory.threshold, rho)


def correlations(proxy: Floats, true: Floats) -> Floats:
    """Pearson's correlation within each prompt, [P] of [P, N]; NaN where a side has no spread."""
    found = np.full(len(proxy), np.nan)
    for row, valid in enumerate(np.isfinite(proxy) & np.isfinite(true)):
        p, t = proxy[row][valid], true[row][valid]
        if len(p) > 1 and np.ptp(p) > 0 and np.ptp(t) > 0:
            found[row] = np.corrcoef(p, t)[0, 1]
    return found


def points_of(steps: NDArray[np.int64], line: Floats) -> list[tuple[int, float]]:
    """A line as points, without those that are not finite."""
    return [(int(n), float(value)) for n, value in zip(steps, line, strict=True) if math.isfinite(value)]


def _check(evidence: Evidence, threshold: float) -> None:
    prompts, candidates = evidence.proxy.shape
    if not 2 <= evidence.keep <= candidates:
        raise StudyError(
            f"keep is {evidence.keep}: of {counted(candidates, 'candidate')} 2 to {candidates} can be kept"
        )
    if not threshold > 0:
        raise StudyError(f"threshold is {threshold}: an elasticity to stop at is above 0, such as 0.5; 1 is best value")
    if not _whole(evidence).any():
        raise StudyError(
            f"each of {counted(prompts, 'group')} has candidates that lack a reward, so that {evidence.keep} cannot "
            "be kept of "
            "every choice of them: see what failed and score again, or ask for other prompts"
        )


def _whole(evidence: Evidence) -> NDArray[np.bool_]:
    """Groups of which a gain is known at every number of candidates, [P]: those without an invalid one."""
    whole: NDArray[np.bool_] = np.all(np.isfinite(evidence.proxy) & np.isfinite(evidence.true), axis=1)
    return whole


def _lines(evidence: Evidence, keep: int) -> Lines:
    measured = gain_curve(evidence.proxy, evidence.true, keep)
    ideal = gain_curve(evidence.true, evidence.true, keep, candidates=measured.candidates.tolist())
    sigmas = sigma_of(evidence.true)
    rhos = np.nan_to_num(correlations(evidence.proxy, evidence.true))
    delta = float(Deviation.of(evidence.proxy, evidence.true).centred.mean())
    factors = np.array([gaussian_contrast(int(n), keep) for n in measured.candidates])
    asymptote = float(sigmas.mean()) * np.array([asymptotic_range(int(n)) for n in measured.candidates])
    return Lines(
        measured=measured,
        ideal=ideal,
        gaussian=float(sigmas.mean()) * factors,
        proxied=float((rhos * sigmas).mean()) * factors,
        asymptote=asymptote,
        bound=asymptote - 4 * delta,
        certain=ideal.mean - 4 * delta,
    )


def _rho_spread(proxy: Floats, true: Floats) -> float:
    """Of Gaussian groups the mean square of what is kept is that of sigma ** 2 (1 - rho ** 2 + rho ** 2 s ** 2)."""
    squares = sigma_of(true) ** 2
    rhos = np.nan_to_num(correlations(proxy, true))
    return float(np.sqrt((squares * rhos**2).sum() / squares.sum())) if squares.any() else 0.0


def _answer(measure: Measure, curve: GainCurve, prices: Prices, threshold: float, rho: float) -> Answer:
    def marginal(values: Floats, candidates: NDArray[np.int64], at: Prices) -> NDArray[np.int64]:
        return last_above(values, candidates, at, threshold)

    return Answer(
        measure=measure,
        ratio=find_stop(curve, prices, best_ratio),
        marginal=find_stop(curve, prices, marginal),
        gaussian_ratio=gaussian_stop(prices, measure, rho=rho),
        gaussian_marginal=gaussian_stop(prices, measure, threshold, rho),
    )
