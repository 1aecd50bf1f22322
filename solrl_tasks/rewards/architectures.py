"""Sizes of the models behind rewards, as published, and tiny ones of the same kinds for tests.

Sources: the configurations of openai/clip-vit-large-patch14 and laion/CLIP-ViT-H-14-laion2B-s32B-b79K on the hub, and
of BLIP ViT-L with a BERT-base text encoder (arXiv:2201.12086, arXiv:2304.05977).
"""

from typing import Any, Final

Config = dict[str, Any]


def _clip(
    vision: tuple[int, int, int, int], text: tuple[int, int, int, int], projection: int, activation: str, image: int
) -> Config:
    def tower(width: int, inner: int, layers: int, heads: int) -> Config:
        return {
            "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers,
            "num_attention_heads": heads, "hidden_act": activation, "projection_dim": projection,
        }  # fmt: skip

    return {
        "model_type": "clip",
        "projection_dim": projection,
        "vision_config": {**tower(*vision), "image_size": image, "patch_size": 14},
        "text_config": {**tower(*text), "vocab_size": 49408, "max_position_embeddings": 77},
    }


def _blip(vision: tuple[int, int, int, int], text: tuple[int, int, int, int], image: int, patch: int) -> Config:
    def tower(width: int, inner: int, layers: int, heads: int) -> Config:
        return {
            "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers,
            "num_attention_heads": heads, "hidden_act": "gelu",
        }  # fmt: skip

    return {
        "model_type": "blip",
        "vision_config": {**tower(*vision), "image_size": image, "patch_size": patch, "layer_norm_eps": 1e-6},
        "text_config": {
            **tower(*text), "encoder_hidden_size": vision[0], "vocab_size": 30524, "max_position_embeddings": 512,
            "layer_norm_eps": 1e-12,
        },
    }  # fmt: skip


CLIP: Final[dict[str, Config]] = {
    "vit-l-14": _clip((1024, 4096, 24, 16), (768, 3072, 12, 12), 768, "quick_gelu", 224),
    "vit-h-14": _clip((1280, 5120, 32, 16), (1024, 4096, 24, 16), 1024, "gelu", 224),
    "tiny": _clip((32, 64, 2, 4), (24, 48, 2, 4), 16, "quick_gelu", 28),
    "tiny-gelu": _clip((32, 64, 2, 4), (24, 48, 2, 4), 16, "gelu", 28),
}
"""CLIPModel configurations by name; widths are (hidden, MLP, layers, heads)."""

IMAGE_REWARD: Final[dict[str, Config]] = {
    "blip-l": _blip((1024, 4096, 24, 16), (768, 3072, 12, 12), 224, 16),
    "tiny": _blip((32, 64, 2, 4), (24, 48, 2, 4), 32, 16),
}
"""Configurations of ``ImageRewardModel`` by name."""

AESTHETIC: Final[dict[str, Config]] = {
    "linear": {"model_type": "linear-head", "width": 768},
    "tiny": {"model_type": "linear-head", "width": 16},
}
"""Configurations of ``LinearHead`` by name; width is that of the embeddings."""
