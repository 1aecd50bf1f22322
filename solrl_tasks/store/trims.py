"""Marks of runs whose objects were let go on purpose: what is gone is not damage, and not made again."""

from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from solrl_tasks.store import atomic
from solrl_tasks.store.errors import DamagedError, StoreError
from solrl_tasks.store.object_path import Place
from solrl_tasks.store.refs import Ref
from solrl_tasks.store.runs import RunView

MARK: Final = "trimmed.json"
_MARK_AGAIN: Final = (
    "put it back from a copy; without it the run computes again what was trimmed, or stops where it cannot"
)
PARENT: Final = "parent"
"""What an iteration began from: its own record names it, and it lets it go when the iteration that made it does."""
Key = tuple[str, str]


class TrimmedError(StoreError):
    """Something of an iteration was asked for that was let go on purpose; the message names what was kept."""


@dataclass(frozen=True)
class Trim:
    """What a run let go of.

    Attributes:
        steps: references by name, by iteration.
        notes: for each trimming when it was (ISO 8601) and by which rule, in words.
    """

    steps: dict[int, dict[str, Ref]] = field(default_factory=dict)
    notes: tuple[dict[str, str], ...] = ()

    @property
    def objects(self) -> set[Key]:
        """Kind and key of everything."""
        return {(ref.kind, ref.key) for refs in self.steps.values() for ref in refs.values()}

    def concerns(self, step: int) -> bool:
        """Whether a step, or the policy that it began from, was let go: it cannot be made again."""
        return step in self.steps or step - 1 in self.steps

    def holds(self, step: int, name: str, key: Key) -> bool:
        """Whether a reference in the record of a step still keeps its object."""
        return key not in self.objects or (step not in self.steps and name != PARENT)


def read_trim(run: RunView) -> Trim:
    """The mark of a run; one that was never trimmed has an empty one. Raises as ``read_mark``."""
    return read_mark(run.path / MARK)


def read_mark(path: Place) -> Trim:
    """A mark by its place.

    Raises:
        DamagedError: nobody knows what was let go on purpose.
    """
    try:
        content = atomic.read_sealed(path)
    except FileNotFoundError:
        return Trim()
    except DamagedError as error:
        raise DamagedError(path, error.why, _MARK_AGAIN) from error
    try:
        steps = {int(step): _refs(refs) for step, refs in content["steps"].items()}
        return Trim(steps, tuple(dict(note) for note in content["notes"]))
    except (ValidationError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedError(path, f"it does not say what was trimmed ({error})", _MARK_AGAIN) from error


def write_trim(run: RunView, trim: Trim) -> None:
    """Replace the mark of a run, whole."""
    steps = {
        str(step): {name: ref.model_dump(mode="json") for name, ref in refs.items()}
        for step, refs in sorted(trim.steps.items())
    }
    atomic.write_sealed(run.path / MARK, {"steps": steps, "notes": list(trim.notes)})


def require_untrimmed(run: RunView, step: int) -> None:
    """Say what was kept where the policy of a step was let go.

    Raises:
        TrimmedError: it was.
    """
    trim = read_trim(run)
    if not any(ref.kind == "policies" for ref in trim.steps.get(step, {}).values()):
        return
    kept = sorted(set(run.summaries()) - set(trim.steps))
    when, rule = (trim.notes[-1]["at"][:10], trim.notes[-1]["rule"]) if trim.notes else ("", "")
    raise TrimmedError(
        f"iteration {step} of run {run.run_id} was trimmed ({rule}; {when}): its policy is gone, its metrics and "
        f"pictures are there. Policies are kept of {_ranges(kept)}"
    )


def _refs(content: dict[str, Any]) -> dict[str, Ref]:
    return {name: Ref.model_validate(ref) for name, ref in content.items()}


def _ranges(steps: list[int]) -> str:
    """``0, 5 to 8`` for [0, 5, 6, 7, 8]."""
    groups: list[list[int]] = []
    for step in steps:
        if groups and step == groups[-1][-1] + 1:
            groups[-1].append(step)
        else:
            groups.append([step])
    shown = (str(group[0]) if len(group) == 1 else f"{group[0]} to {group[-1]}" for group in groups)
    return f"iterations {', '.join(shown)}" if steps else "none"
