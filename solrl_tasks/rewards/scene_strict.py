"""The strict scene reward: 1 for a picture that shows exactly what its prompt says, 0 for any other."""

from typing import ClassVar

from solrl_tasks.rewards.scene import SceneReward


class SceneStrictReward(SceneReward):
    """All or nothing, as a benchmark counts; meant for evaluation."""

    name: ClassVar[str] = "scene-strict"
    version: ClassVar[str] = "1"
    strict: ClassVar[bool] = True


REWARD = SceneStrictReward
