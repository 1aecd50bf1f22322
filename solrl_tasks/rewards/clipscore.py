"""CLIPScore: how well an image fits its prompt."""

from typing import Any, Final

from torch import Tensor

from solrl_tasks.rewards.clip_model import VIT_L, ClipReward

DIVISOR: Final = 100.0


class ClipScore(ClipReward):
    """OpenAI's CLIP ViT-L/14 (arXiv:2103.00020), in the scale of Flow-GRPO, DiffusionNFT and Sol-RL.

    Score: exp(logit scale) * cosine / 100, which is the cosine as the trained scale is 100; good images have about 0.3.
    Preprocessing: shorter side to 224 by PIL's bicubic filter, middle square, CLIP's mean and deviation, as OpenAI
    publishes it; prompts cut to 77 tokens. (Sol-RL resizes with torchvision's bilinear filter instead.)
    """

    name = "clipscore"
    version = "1"
    range = (-1.0, 1.0)
    pinned = VIT_L

    def scale(self, cosines: Tensor, module: Any) -> Tensor:
        """See ``ClipReward``."""
        scaled: Tensor = module.logit_scale.exp() * cosines / DIVISOR
        return scaled


REWARD = ClipScore
