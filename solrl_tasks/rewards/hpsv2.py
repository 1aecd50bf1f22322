"""HPSv2.1: human preference by a tuned CLIP."""

from typing import Any, ClassVar, Final

from torch import Tensor

from solrl_tasks.rewards.architectures import CLIP
from solrl_tasks.rewards.checkpoints import Checkpoint, Rule, in_three, transposed
from solrl_tasks.rewards.clip_model import ClipReward, build_clip
from solrl_tasks.rewards.pixels import resize_and_pad

_BLOCK: Final = r"transformer\.resblocks\.(\d+)\."


def _tower(prefix: str, ours: str) -> tuple[Rule, ...]:
    block, layer = prefix + _BLOCK, ours + r"encoder.layers.\1."
    attention = tuple(layer + f"self_attn.{part}_proj." for part in "qkv")
    return (
        Rule(block + r"attn\.in_proj_(weight|bias)", tuple(f"{name}\\2" for name in attention), in_three),
        Rule(block + r"attn\.out_proj\.(weight|bias)", (layer + r"self_attn.out_proj.\2",)),
        Rule(block + r"ln_([12])\.(weight|bias)", (layer + r"layer_norm\2.\3",)),
        Rule(block + r"mlp\.c_fc\.(weight|bias)", (layer + r"mlp.fc1.\2",)),
        Rule(block + r"mlp\.c_proj\.(weight|bias)", (layer + r"mlp.fc2.\2",)),
    )


OPEN_CLIP: Final = (
    *_tower(r"visual\.", "vision_model."),
    *_tower("", "text_model."),
    Rule(r"visual\.class_embedding", ("vision_model.embeddings.class_embedding",)),
    Rule(r"visual\.positional_embedding", ("vision_model.embeddings.position_embedding.weight",)),
    Rule(r"visual\.conv1\.weight", ("vision_model.embeddings.patch_embedding.weight",)),
    Rule(r"visual\.ln_pre\.(weight|bias)", (r"vision_model.pre_layrnorm.\1",)),
    Rule(r"visual\.ln_post\.(weight|bias)", (r"vision_model.post_layernorm.\1",)),
    Rule(r"visual\.proj", ("visual_projection.weight",), transposed),
    Rule(r"token_embedding\.weight", ("text_model.embeddings.token_embedding.weight",)),
    Rule(r"positional_embedding", ("text_model.embeddings.position_embedding.weight",)),
    Rule(r"ln_final\.(weight|bias)", (r"text_model.final_layer_norm.\1",)),
    Rule(r"text_projection", ("text_projection.weight",), transposed),
    Rule(r"logit_scale", ("logit_scale",)),
    Rule(r"attn_mask", ()),
)
"""From OpenCLIP's names to transformers'. Not tried on the published file: it follows OpenCLIP's source, and the number
of parameters, 986,109,441 of two bytes, is that of the published 1.97 GB."""


class Hpsv2(ClipReward):
    """CLIP ViT-H/14 tuned on HPD v2 (arXiv:2306.09341), weights v2.1.

    Score: the cosine between image and prompt, unscaled; images of today's models lie between 0.2 and 0.4.
    Preprocessing: longer side to 224 by an antialiased bicubic filter in float32, black around, CLIP's mean and
    deviation; prompts cut to 77 tokens. (The authors compute in half precision on the GPU: scores differ from theirs in
    the fourth digit.)

    The weights are published as a pickle: ``solrl convert hpsv2`` turns them into the folder that ``source`` names. The
    key map is unverified: it was not tried on the published file.
    """

    name = "hpsv2"
    version = "2.1"
    range = (-1.0, 1.0)
    architectures: ClassVar = {"vit-h-14": CLIP["vit-h-14"], **CLIP}
    preprocess = resize_and_pad
    checkpoint: ClassVar = Checkpoint(
        "HPS_v2.1_compressed.pt of xswu/HPSv2 on the hub",
        OPEN_CLIP,
        CLIP["vit-h-14"],
        build_clip,
        sha256="c57a38fb4a2f7e7c15bf00da2ea377cdf165448b4dd1052a484c215a998c9837",
    )

    def scale(self, cosines: Tensor, module: Any) -> Tensor:
        """See ``ClipReward``."""
        del module
        return cosines


REWARD = Hpsv2
