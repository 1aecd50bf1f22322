"""Where noise is put into a sampling path: asked for by an objective, obeyed by whoever samples."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from solrl_tasks.config.base import Frozen
from solrl_tasks.config.words import counted

Index = Annotated[int, Field(ge=0, le=200)]


class Window(Frozen):
    """Some consecutive steps of a path that have noise; all others follow the velocity.

    Attributes:
        size: how many.
        start: first step that may have noise, from 0, the one that begins at pure noise.
        stop: the step behind the last one that may; None is the last step of all, which never has noise.
        every: None draws the place of the window for each candidate by its own seed, evenly between ``start`` and
            ``stop``; a number moves one window, the same for all, a step on after so many iterations, and back to
            ``start`` from the end.
    """

    size: Annotated[int, Field(ge=1, le=200)]
    start: Index = 0
    stop: Index | None = None
    every: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.stop is not None and self.start + self.size > self.stop:
            raise ValueError(
                f"a window of {counted(self.size, 'step')} does not fit between start {self.start} and {self.stop}"
            )
        return self

    def settle(self, steps: int, iteration: int) -> "Window":
        """The window of an iteration, with every bound a number.

        Args:
            steps: of the whole path.
            iteration: from 1.

        Raises:
            ValueError: the path is too short.
        """
        stop = steps - 1 if self.stop is None else self.stop
        if stop > steps - 1 or self.start + self.size > stop:
            raise ValueError(
                f"a window of {counted(self.size, 'step')} from step {self.start} to {stop} does not fit into "
                f"{counted(steps, 'step')}, the "
                "last of which has no noise: raise regenerate.steps or change the window"
            )
        if self.every is None:
            return Window(size=self.size, start=self.start, stop=stop)
        place = self.start + (iteration - 1) // self.every % (stop - self.start - self.size + 1)
        return Window(size=self.size, start=place, stop=place + self.size)


class Stochastic(Frozen):
    """How paths of one iteration are sampled.

    Attributes:
        step: kind of the noisy steps, by name.
        eta: how much noise, in the units of that kind.
        window: settled; the place of its ``size`` noisy steps is the candidate's own where it is not fixed.
    """

    step: str
    eta: Annotated[float, Field(ge=0, le=10)]
    window: Window

    @property
    def states(self) -> int:
        """States that a kept path has: before the first noisy step, and after each."""
        return self.window.size + 1
