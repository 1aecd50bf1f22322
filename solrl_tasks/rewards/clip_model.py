"""Image and text in one space: what rewards built on CLIP share."""

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from solrl_tasks.rewards import architectures
from solrl_tasks.rewards.loading import Build
from solrl_tasks.rewards.model_reward import WeightOptions
from solrl_tasks.rewards.pixels import resize_and_crop
from solrl_tasks.rewards.reading_reward import ReadingReward
from solrl_tasks.rewards.weights import Hub, Random

VIT_L: Final = Hub("openai/clip-vit-large-patch14", "32bd64288804d66eefd0ccbe215aa642df71cc41")
"""OpenAI's CLIP ViT-L/14 as it has been on the hub since 2023; all CLIPs here share its byte-pair vocabulary."""
_REMEMBERED: Final = 4096
"""Prompts whose embeddings are kept: a few kilobytes each."""


def build_clip(config: dict[str, Any]) -> nn.Module:
    """Both towers of CLIP."""
    from transformers import CLIPConfig, CLIPModel

    module: nn.Module = CLIPModel(CLIPConfig(**_sizes(config)))
    return module


def build_clip_vision(config: dict[str, Any]) -> nn.Module:
    """The image tower of CLIP with its projection."""
    from transformers import CLIPConfig, CLIPVisionModelWithProjection

    whole = CLIPConfig(**_sizes(config))
    whole.vision_config.projection_dim = whole.projection_dim
    module: nn.Module = CLIPVisionModelWithProjection(whole.vision_config)
    return module


def unit(embeddings: Tensor) -> Tensor:
    """Embeddings ``[B, D]`` scaled to length one."""
    scaled: Tensor = embeddings / embeddings.norm(p=2, dim=-1, keepdim=True)
    return scaled


class ClipReward(ReadingReward):
    """A reward that is a function of the cosine between an image and its prompt."""

    architectures = architectures.CLIP
    pinned_tokenizer = VIT_L
    preprocess = resize_and_crop

    def __init__(self, options: WeightOptions, device: torch.device) -> None:
        super().__init__(options, device)
        self._texts: OrderedDict[str, Tensor] = OrderedDict()

    def builder(self) -> tuple[Build, tuple[str, ...]]:
        """See ``ModelReward``."""
        return build_clip, ()

    def side(self, module: Any) -> int:
        """See ``ModelReward``."""
        return int(module.config.vision_config.image_size)

    def score(self, module: Any, pixels: Tensor, prompts: Sequence[str]) -> Tensor:
        """See ``ModelReward``."""
        images = unit(module.get_image_features(pixel_values=pixels).pooler_output)
        texts = torch.cat([self._text(module, prompt) for prompt in prompts])
        # Not as a matrix product of all pairs: only the pairs are asked for.
        return self.scale((images * texts).sum(dim=-1), module)

    @abstractmethod
    def scale(self, cosines: Tensor, module: Any) -> Tensor:
        """Scores of cosines, both ``[B]``."""

    def length(self, module: Any) -> int:
        """See ``ReadingReward``."""
        return int(module.config.text_config.max_position_embeddings)

    def _loaded(self) -> Any:
        module = super()._loaded()
        if self._tokens is not None and isinstance(type(self).place(self.options), Random):
            # The tower reads the embedding at the end token, whose id is the tokenizer's.
            module.text_model.eos_token_id = self._tokens.tokenizer.eos_token_id
        return module

    def _text(self, module: Any, prompt: str) -> Tensor:
        """The embedding ``[1, D]`` of a prompt, computed alone."""
        if prompt in self._texts:
            self._texts.move_to_end(prompt)
            return self._texts[prompt]
        # A causal tower does not see what follows the end token, so that there is nothing to mask.
        ids, _ = self.tokens(prompt)
        embedding = unit(module.get_text_features(input_ids=ids).pooler_output)
        self._texts[prompt] = embedding
        while len(self._texts) > _REMEMBERED:
            self._texts.popitem(last=False)
        return embedding

    def unload(self) -> None:
        """See ``ModelReward``."""
        self._texts.clear()
        super().unload()


def _sizes(config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in ("model_type", "architectures")}
