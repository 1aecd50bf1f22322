"""The smooth scene reward: how nearly a picture of coloured shapes shows what its prompt says."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.scenes.checker import score_scenes
from solrl_tasks.scenes.grammar import parse


class SceneReward:
    """Partial credit for objects, colours, shapes, relation and background; meant for training."""

    name: ClassVar[str] = "scene"
    version: ClassVar[str] = "1"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    strict: ClassVar[bool] = False
    """Whether anything but the whole is worth nothing."""

    @classmethod
    def check_prompt(cls, prompt: str, metadata: Mapping[str, Any], options: None) -> None:  # noqa: ARG003
        """Raises ValueError for a prompt outside the scene grammar."""
        parse(prompt)

    def __call__(
        self,
        images: NDArray[np.uint8],
        prompts: Sequence[str],
        metadata: Sequence[Mapping[str, Any]],  # noqa: ARG002 (the interface's)
    ) -> NDArray[np.float32]:
        """Scores, float32 [B], of uint8 images [B, H, W, 3].

        Raises ValueError for another array, for lengths that differ, or for a prompt outside the scene grammar.
        """
        partial, whole = score_scenes(images, prompts)
        return whole if self.strict else partial


REWARD = SceneReward
