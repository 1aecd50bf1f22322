"""What a stage that samples has spent and met so far."""

from dataclasses import dataclass, field

from solrl_tasks.workers.jobs import WorkResult


@dataclass
class Filled:
    """Sums over the blocks that a call of a stage computed.

    Attributes:
        seconds: device-seconds.
        sampled: blocks that were sampled, and not only scored.
        failures: what went wrong with single images, in words.
        actors: device-seconds by the name of each actor; one without a name where there is one device.
    """

    seconds: float = 0.0
    sampled: int = 0
    failures: list[str] = field(default_factory=list)
    actors: dict[str, float] = field(default_factory=dict)

    def add(self, result: WorkResult) -> None:
        """A block, once it is in the store."""
        self.seconds += result.seconds
        self.sampled += int(result.work.images is None)
        self.failures += result.failures
        self.actors[result.actor] = self.actors.get(result.actor, 0.0) + result.seconds
