"""LAION's improved aesthetic predictor: how beautiful people would find an image, whatever the prompt."""

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from pydantic import JsonValue
from torch import Tensor, nn

from solrl_tasks.rewards.architectures import AESTHETIC, CLIP
from solrl_tasks.rewards.checkpoints import Checkpoint, Rule
from solrl_tasks.rewards.clip_model import VIT_L, build_clip_vision, unit
from solrl_tasks.rewards.linear_head import build_head
from solrl_tasks.rewards.loading import Build, load_module, random_module
from solrl_tasks.rewards.model_reward import ModelReward, WeightOptions, random_config
from solrl_tasks.rewards.pixels import resize_and_crop
from solrl_tasks.rewards.weights import Place, Random, fetch_weights, find_place, identify

KEY_MAP: Final = (Rule(r"(layers\.\d+\.(?:weight|bias))", (r"\1",)),)
"""The published names are ours. Not tried on the published file: it follows the authors' source."""
_NOT_FOR_IMAGES: Final = (r"text_model\..+", r"text_projection\.weight", "logit_scale")


class AestheticOptions(WeightOptions):
    """``source`` is that of the head; ``backbone`` is a CLIP ViT-L/14 by hub id or folder, or ``random``."""

    backbone: str = VIT_L.hub_id


class AestheticModel(nn.Module):
    """A CLIP image tower and a head on its embeddings."""

    def __init__(self, tower: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.tower, self.head = tower, head

    def forward(self, pixels: Tensor) -> Tensor:
        """Scores ``[B]`` of pixels ``[B, 3, S, S]``."""
        scores: Tensor = self.head(unit(self.tower(pixel_values=pixels).image_embeds))
        return scores


class Aesthetic(ModelReward):
    """A linear head on CLIP ViT-L/14 embeddings of length one, trained on SAC, Logos and AVA (version 1, linear, MSE).

    Score: the head's output, about the mean rating from 1 to 10 that people would give; unbounded. Preprocessing:
    shorter side to 224 by PIL's bicubic filter, middle square, CLIP's mean and deviation. The prompt is not looked at.

    The head is published as a pickle: ``solrl convert aesthetic`` turns it into the folder that ``source`` names. The
    key map is unverified: it was not tried on the published file.
    """

    name = "aesthetic"
    version = "1"
    range = (-float("inf"), float("inf"))
    Options: ClassVar[type[WeightOptions]] = AestheticOptions
    architectures = AESTHETIC
    preprocess = resize_and_crop
    checkpoint: ClassVar = Checkpoint(
        "sac+logos+ava1-l14-linearMSE.pth of github.com/christophschuhmann/improved-aesthetic-predictor",
        KEY_MAP, AESTHETIC["linear"], build_head,
    )  # fmt: skip

    @classmethod
    def identity(cls, options: WeightOptions) -> dict[str, JsonValue]:
        """See ``ModelReward``; the backbone decides scores too."""
        backbone = identify(cls.backbone(options), VIT_L)
        return super().identity(options) | ({} if backbone is None else {"backbone": backbone})

    @classmethod
    def backbone(cls, options: WeightOptions) -> Place:
        """Where the weights of the image tower are."""
        assert isinstance(options, AestheticOptions)
        return find_place(options.backbone, None, VIT_L, "backbone")

    def builder(self) -> tuple[Build, tuple[str, ...]]:
        """See ``ModelReward``."""
        return build_head, ()

    def side(self, module: Any) -> int:
        """See ``ModelReward``."""
        return int(module.tower.config.image_size)

    def score(self, module: Any, pixels: Tensor, prompts: Sequence[str]) -> Tensor:
        """See ``ModelReward``."""
        del prompts
        scores: Tensor = module(pixels)
        return scores

    def _loaded(self) -> Any:
        head = super()._loaded()
        place = type(self).backbone(self.options)
        if isinstance(place, Random):
            config = random_config(place, CLIP, "its backbone")
            tower = random_module(build_clip_vision, config, self.device)
        else:
            tower = load_module(build_clip_vision, fetch_weights(place), self.device, _NOT_FOR_IMAGES)
        return AestheticModel(tower, head)


REWARD = Aesthetic
