"""Who uses the pools of a store, and what each is thereby: explored, evaluated, or of a study."""

from dataclasses import dataclass
from typing import Final

from flows.home import special_kind
from solrl_tasks.store import places
from solrl_tasks.store.errors import StoreError
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import RunView

BEGUN: Final = "_begun"
"""Ends the names under which stages note what they have begun to fill."""
UNUSED: Final = "unused"
KINDS: Final = {"explore": "explore", "evaluate": "evaluate", "evaluate_pool": "evaluate"}
"""What a pool is to a run of training, by the name of the reference."""


@dataclass(frozen=True)
class PoolUse:
    """A step of a run that refers to a pool.

    Attributes:
        stage: the name of the reference, or of the stage that has begun to fill it.
        finished: whether that stage has finished with it.
    """

    run_id: str
    step: int
    stage: str
    finished: bool

    @property
    def kind(self) -> str:
        """``explore``, ``evaluate``, or ``study`` for all that studies compare."""
        special = special_kind(self.run_id)
        if special:
            return "evaluate" if special == "evaluation" else special
        return KINDS.get(self.stage, "study")

    def __str__(self) -> str:
        said = f"{self.run_id} step {self.step} {self.stage.removesuffix('_pool')}"
        return said if self.finished else f"{said} (begun)"


def pool_uses(store: Store) -> dict[str, list[PoolUse]]:
    """The uses of all pools by key, in order of run and step; a run whose references are damaged counts for none."""
    found: dict[str, list[PoolUse]] = {}
    for path in places.matching(store.runs, "*/iterations/*/refs.json"):
        run_id, step = path.parent.parent.parent.name, path.parent.name
        try:
            refs = RunView(store, run_id).refs(int(step))
        except (StoreError, ValueError):
            continue
        mine: dict[str, list[PoolUse]] = {}
        for name, ref in refs.items():
            if ref.kind == "pools":
                use = PoolUse(run_id, int(step), name.removesuffix(BEGUN), not name.endswith(BEGUN))
                mine.setdefault(ref.key, []).append(use)
        for key, uses in mine.items():
            # What was finished had to be begun.
            found.setdefault(key, []).extend([use for use in uses if use.finished] or uses)
    return found


def pool_kinds(uses: list[PoolUse]) -> list[str]:
    """What a pool is, in the order of the alphabet: several things at once where runs and studies share it."""
    return sorted({use.kind for use in uses}) or [UNUSED]
