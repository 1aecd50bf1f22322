"""ImageReward v1.0: human preference by a text encoder that looks at the image."""

from collections.abc import Sequence
from typing import Any, ClassVar, Final

import torch
from torch import Tensor, nn

from solrl_tasks.rewards.architectures import IMAGE_REWARD
from solrl_tasks.rewards.checkpoints import Checkpoint, Rule
from solrl_tasks.rewards.linear_head import LinearHead
from solrl_tasks.rewards.loading import Build
from solrl_tasks.rewards.pixels import resize_and_crop
from solrl_tasks.rewards.reading_reward import ReadingReward
from solrl_tasks.rewards.weights import Hub

BERT: Final = Hub("google-bert/bert-base-uncased", "86b5e0934494bd15c9632b12f734a8a67f723594")
MEAN: Final = 0.16717362830052426
DEVIATION: Final = 1.0333394966054072
"""Of the head's raw output, published with the model."""
TOKENS: Final = 35

_BLOCK: Final = r"blip\.visual_encoder\.blocks\.(\d+)\."
_LAYER: Final = r"vision.encoder.layers.\1."
KEY_MAP: Final = (
    Rule(r"blip\.visual_encoder\.cls_token", ("vision.embeddings.class_embedding",)),
    Rule(r"blip\.visual_encoder\.pos_embed", ("vision.embeddings.position_embedding",)),
    Rule(r"blip\.visual_encoder\.patch_embed\.proj\.(weight|bias)", (r"vision.embeddings.patch_embedding.\1",)),
    Rule(_BLOCK + r"norm([12])\.(weight|bias)", (_LAYER + r"layer_norm\2.\3",)),
    Rule(_BLOCK + r"attn\.qkv\.(weight|bias)", (_LAYER + r"self_attn.qkv.\2",)),
    Rule(_BLOCK + r"attn\.proj\.(weight|bias)", (_LAYER + r"self_attn.projection.\2",)),
    Rule(_BLOCK + r"mlp\.fc([12])\.(weight|bias)", (_LAYER + r"mlp.fc\2.\3",)),
    Rule(r"blip\.visual_encoder\.norm\.(weight|bias)", (r"vision.post_layernorm.\1",)),
    Rule(r"blip\.text_encoder\.embeddings\.position_ids", ()),
    Rule(r"blip\.text_encoder\.(.+)", (r"text.\1",)),
    Rule(r"blip\.(vision|text)_proj\.(weight|bias)", ()),
    Rule(r"mlp\.(layers\..+)", (r"head.\1",)),
)
"""From the published names to ours. Not tried on the published file: it follows the source of ImageReward and BLIP."""


class ImageRewardModel(nn.Module):
    """BLIP's ViT-L and its BERT with cross attention, and a linear head on the first token.

    Args:
        config: with ``vision_config`` and ``text_config`` as BLIP's classes in transformers take them.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        from transformers import BlipTextConfig, BlipTextModel, BlipVisionConfig, BlipVisionModel

        super().__init__()
        text = BlipTextConfig(**config["text_config"])
        self.vision = BlipVisionModel(BlipVisionConfig(**config["vision_config"]))
        self.text = BlipTextModel(text, add_pooling_layer=False)
        self.head = LinearHead(int(text.hidden_size))

    def forward(self, pixels: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        """Raw scores ``[B]`` of pixels ``[B, 3, S, S]``, each with its own token ids and mask ``[B, T]``."""
        seen = self.vision(pixel_values=pixels).last_hidden_state
        read = self.text(input_ids=ids, attention_mask=mask, encoder_hidden_states=seen).last_hidden_state
        raw: Tensor = self.head(read[:, 0])
        return raw


class ImageReward(ReadingReward):
    """BLIP tuned on ranked images (arXiv:2304.05977), weights v1.0.

    Score: (raw - 0.16717) / 1.03334, which has mean 0 and deviation 1 on the authors' images; unbounded, mostly between
    -2 and 2. Preprocessing: shorter side to 224 by PIL's bicubic filter, middle square, CLIP's mean and deviation;
    prompts cut to 35 tokens. A pair of image and prompt is one forward pass.

    The weights are published as a pickle: ``solrl convert imagereward`` turns them into the folder that ``source``
    names. The key map is unverified: it was not tried on the published file.
    """

    name = "imagereward"
    version = "1.0"
    range = (-float("inf"), float("inf"))
    pinned_tokenizer = BERT
    architectures = IMAGE_REWARD
    preprocess = resize_and_crop
    checkpoint: ClassVar = Checkpoint(
        "ImageReward.pt of THUDM/ImageReward on the hub", KEY_MAP, IMAGE_REWARD["blip-l"], ImageRewardModel
    )

    def builder(self) -> tuple[Build, tuple[str, ...]]:
        """See ``ModelReward``."""
        return ImageRewardModel, ()

    def side(self, module: Any) -> int:
        """See ``ModelReward``."""
        return int(module.vision.config.image_size)

    def score(self, module: Any, pixels: Tensor, prompts: Sequence[str]) -> Tensor:
        """See ``ModelReward``."""
        ids, masks = zip(*map(self.tokens, prompts), strict=True)
        raw: Tensor = module(pixels, torch.cat(ids), torch.cat(masks))
        return (raw - MEAN) / DEVIATION

    def length(self, module: Any) -> int:
        """See ``ReadingReward``."""
        del module
        return TOKENS


REWARD = ImageReward
