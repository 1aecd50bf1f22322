"""Selection over all prompts of an iteration."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.selection.base import SelectionRule

Reason = Literal["few_finite", "no_spread"]


class NoValidCandidateError(ValueError):
    """Not one candidate of any prompt has a finite score."""


@dataclass(frozen=True)
class GroupSelection:
    """What is kept of P prompts with N candidates each.

    Attributes:
        indices: ``[P, K]`` candidate indices, best first; a left-out group's row is -1.
        kept: ``[P]`` false where the group is left out.
        reasons: why, by row, for each group left out.
        invalid: ``[P]`` candidates without a finite score.
    """

    indices: NDArray[np.int64]
    kept: NDArray[np.bool_]
    reasons: Mapping[int, Reason]
    invalid: NDArray[np.int64]

    @property
    def counts(self) -> dict[str, int]:
        """Groups kept, groups left out by reason, and invalid candidates, for metrics."""
        left_out = Counter(self.reasons.values())
        return {
            "kept": int(self.kept.sum()),
            "few_finite": left_out["few_finite"],
            "no_spread": left_out["no_spread"],
            "invalid": int(self.invalid.sum()),
        }


def select_groups(
    scores: NDArray[np.float64], seeds: NDArray[np.uint64], keep: int, rule: SelectionRule
) -> GroupSelection:
    """Apply a rule to every prompt.

    A group with fewer than ``keep`` finite scores, or whose finite scores are all equal, cannot say which
    seed is better: it is left out of the update, with the reason.

    Args:
        scores: ``[P, N]``, higher is better, non-finite where the candidate is invalid.
        seeds: ``[P, N]`` candidate seeds.
        keep: seeds kept per prompt, K.

    Raises:
        NoValidCandidateError: no score at all is finite.
        ValueError: the shapes differ, or ``keep`` does not fit them.
    """
    _check(scores, seeds, keep)
    finite = np.isfinite(scores)
    indices = np.full((len(scores), keep), -1, dtype=np.int64)
    reasons: dict[int, Reason] = {}
    for row in range(len(scores)):
        reason = _why_left_out(scores[row][finite[row]], keep)
        if reason is None:
            indices[row] = rule.select(scores[row], keep, seeds[row])
        else:
            reasons[row] = reason
    kept = np.array([row not in reasons for row in range(len(scores))], dtype=np.bool_)
    return GroupSelection(indices, kept, reasons, (~finite).sum(axis=1))


def _why_left_out(finite_scores: NDArray[np.float64], keep: int) -> Reason | None:
    if len(finite_scores) < keep:
        return "few_finite"
    if finite_scores.min() == finite_scores.max():
        return "no_spread"
    return None


def _check(scores: NDArray[np.float64], seeds: NDArray[np.uint64], keep: int) -> None:
    if scores.ndim != 2 or scores.shape != seeds.shape:
        raise ValueError(f"scores {scores.shape} and seeds {seeds.shape} must both be [prompts, candidates]")
    prompts, candidates = scores.shape
    if not 1 <= keep <= candidates:
        raise ValueError(f"keep is {keep}, but must be 1 to {candidates}, the candidates of each prompt")
    if not np.isfinite(scores).any():
        raise NoValidCandidateError(
            f"none of {scores.size} candidates ({prompts} prompts x {candidates}) has a finite score, "
            "so nothing can be selected: the stage that scored them noted why. Scores are kept by name and version: a "
            "reward whose own code did not change needs another version to be asked again"
        )
