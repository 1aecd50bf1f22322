"""What a device did so far."""

from dataclasses import dataclass


@dataclass
class Counters:
    """Sums since the device was made; tests and cost reports read them.

    Attributes:
        loads: times base weights were loaded.
        syncs: times an engine received new weights.
        forwards: transformer evaluations while sampling, counted per image that was asked for.
        padded: the same for rows that only fill a block up.
        decoded: images decoded.
        scored: images scored, counted per reward.
        updates: optimizer steps.
    """

    loads: int = 0
    syncs: int = 0
    forwards: int = 0
    padded: int = 0
    decoded: int = 0
    scored: int = 0
    updates: int = 0
