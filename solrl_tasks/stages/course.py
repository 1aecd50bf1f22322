"""What one iteration has gone through so far."""

from dataclasses import dataclass, field

from solrl_tasks.stages.jobs import PoolJob, SamplesJob
from solrl_tasks.stages.outcome import StageOutcome
from solrl_tasks.store.refs import Ref


@dataclass
class Course:
    """The jobs and outcomes of an iteration that is under way.

    Attributes:
        parent: the policy that explores.
        policy: the policy that the iteration ends with.
        outcomes: by stage name, in order.
    """

    step: int
    parent: Ref
    policy: Ref
    pool: PoolJob | None = None
    samples: SamplesJob | None = None
    audit: SamplesJob | None = None
    evaluation: PoolJob | None = None
    outcomes: dict[str, StageOutcome] = field(default_factory=dict)
