"""Whether what was measured here says the same as what was published."""

import math
from typing import Final, Literal

from solrl_tasks.analysis.estimates import Estimate, Figure, confidence_interval
from solrl_tasks.config.base import Frozen

Agreement = Literal["agrees in direction", "agrees", "not resolved", "disagrees"]
PARITY_MARGIN: Final = 0.1
"""Of the gain over the untrained model: arms that differ by less are taken for equal."""


class Claim(Frozen):
    """One sentence of the publication beside ours.

    Attributes:
        says: what is claimed, in words.
        published: its figures.
        ours: what was measured here, with its error over training seeds unless ``unit`` says otherwise.
        low, high: 95 % of ours; NaN where there is no error.
        unit: of ours.
        agreement: not resolved where the interval does not tell.
    """

    says: str
    published: str
    ours: Figure
    low: Figure
    high: Figure
    n: int
    unit: str
    agreement: Agreement

    @property
    def line(self) -> str:
        """The sentence."""
        between = (
            f" ({self.low:.3g} to {self.high:.3g}, n = {self.n})" if math.isfinite(self.low) else f" (n = {self.n})"
        )
        ours = f"{self.ours:.3g}{between}" if math.isfinite(self.ours) else "nothing to compare"
        return f"{self.says}: published {self.published}; here {ours}, {self.unit}: **{self.agreement}**."


def direction(says: str, published: float, ours: Estimate, unit: str, shown: str = "") -> Claim:
    """A published difference against ours, by sign: agreement takes an interval that leaves 0 on the published side.

    Args:
        shown: the published figures in words; the difference alone by default.
    """
    low, high = confidence_interval(ours)
    same, other = (low > 0, high < 0) if published > 0 else (high < 0, low > 0)
    agreement: Agreement = "agrees in direction" if same else "disagrees" if other else "not resolved"
    return _claim(says, shown or f"{published:+.4f}", ours, unit, agreement)


def parity(says: str, published: str, ours: Estimate, margin: float, unit: str) -> Claim:
    """A published equality: ours agrees where the whole interval lies within the margin, and disagrees where it does
    not and leaves 0 out."""
    low, high = confidence_interval(ours)
    within, apart = -margin <= low and high <= margin, low > 0 or high < 0
    agreement: Agreement = "agrees" if within else "disagrees" if apart else "not resolved"
    return _claim(says, published, ours, unit, agreement)


def at_least(says: str, published: float, ours: Estimate, unit: str) -> Claim:
    """A published level against ours: agreement takes an interval that does not begin below it."""
    low, high = confidence_interval(ours)
    agreement: Agreement = "agrees" if low >= published else "disagrees" if high < published else "not resolved"
    return _claim(says, f"{published:g}", ours, unit, agreement)


def faster(says: str, published: str, ratio: float, low: float, high: float, n: int, resolved: bool) -> Claim:
    """A published speed-up against ours, by whether the interval of the ratio leaves 1 out.

    Args:
        resolved: whether the noise of the curves lets the ratio be known at all.
    """
    agreement: Agreement = "not resolved"
    if resolved and low > 1:
        agreement = "agrees in direction"
    elif resolved and high < 1:
        agreement = "disagrees"
    return Claim(says=says, published=published, ours=ratio, low=low, high=high, n=n, unit="times", agreement=agreement)


def _claim(says: str, published: str, ours: Estimate, unit: str, agreement: Agreement) -> Claim:
    low, high = confidence_interval(ours)
    return Claim(
        says=says,
        published=published,
        ours=ours.mean,
        low=low,
        high=high,
        n=ours.n,
        unit=unit,
        agreement=agreement,
    )
