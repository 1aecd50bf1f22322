"""PickScore v1: which of two images people would pick."""

from typing import Any, ClassVar, Final

from torch import Tensor

from solrl_tasks.rewards.architectures import CLIP
from solrl_tasks.rewards.clip_model import ClipReward
from solrl_tasks.rewards.weights import Hub

PUBLISHED: Final = Hub("yuvalkirstain/PickScore_v1", "a4e4367c6dfa7288a00c550414478f865b875800")
DIVISOR: Final = 26.0


class PickScore(ClipReward):
    """CLIP ViT-H/14 tuned on Pick-a-Pic (arXiv:2305.01569), in the scale of Flow-GRPO, DiffusionNFT and Sol-RL.

    Score: exp(logit scale) * cosine / 26. Its range follows from CLIP's clamp of the scale at 100; images of today's
    models lie between 0.7 and 1. Preprocessing: shorter side to 224 by PIL's bicubic filter, middle square, CLIP's mean
    and deviation; prompts cut to 77 tokens.
    """

    name = "pickscore"
    version = "1"
    range = (-100 / DIVISOR, 100 / DIVISOR)
    pinned = PUBLISHED
    architectures: ClassVar = {"vit-h-14": CLIP["vit-h-14"], **CLIP}

    def scale(self, cosines: Tensor, module: Any) -> Tensor:
        """See ``ClipReward``."""
        scaled: Tensor = module.logit_scale.exp() * cosines / DIVISOR
        return scaled


REWARD = PickScore
