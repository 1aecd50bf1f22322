"""Which colour an object has, by CLIP without training, as GenEval tells colours (arXiv:2310.11513)."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from solrl_tasks.rewards import architectures
from solrl_tasks.rewards.asked import COLOURS
from solrl_tasks.rewards.base import Images
from solrl_tasks.rewards.clip_model import build_clip, unit
from solrl_tasks.rewards.composing import Box
from solrl_tasks.rewards.loading import load_module, random_module
from solrl_tasks.rewards.pixels import resize_and_crop
from solrl_tasks.rewards.reading_reward import PromptTokens
from solrl_tasks.rewards.weights import Folder, Hub, Place, Random, fetch_tokenizer, fetch_weights

TEMPLATES: Final = (
    "a photo of a {colour} {name}",
    "a photo of a {colour}-colored {name}",
    "a photo of a {colour} object",
)


class ClipColours:
    """Probabilities of the ten colours of an object in its box.

    The cosines of the box's pixels with each colour's texts (unit embeddings, averaged, unit again), scaled by CLIP's
    temperature, through a softmax. The box is taken as it is: there is no mask of the object in it.
    """

    def __init__(self, place: Place, tokenizer: Hub | Folder, device: torch.device, batch: int) -> None:
        self.device, self.batch = device, batch
        if isinstance(place, Random):
            config = architectures.CLIP[place.architecture or next(iter(architectures.CLIP))]
            self.module: Any = random_module(build_clip, config, device)
        else:
            self.module = load_module(build_clip, fetch_weights(place), device)
        self._tokens = PromptTokens(
            fetch_tokenizer(tokenizer), int(self.module.config.text_config.max_position_embeddings)
        )
        if isinstance(place, Random):
            self.module.text_model.eos_token_id = self._tokens.tokenizer.eos_token_id
        self._texts: dict[str, Tensor] = {}

    @torch.inference_mode()
    def read(self, image: Images, boxes: Sequence[Box], name: str) -> list[dict[str, float]]:
        """Probabilities by colour for each box of objects of one class in an image, uint8 ``[H, W, 3]``."""
        side = int(self.module.config.vision_config.image_size)
        cuts = [resize_and_crop(cut(image, box)[None], side) for box in boxes]
        found: list[dict[str, float]] = []
        for start in range(0, len(cuts), self.batch):
            block = cuts[start : start + self.batch]
            pixels = torch.cat([*block, *[block[-1]] * (self.batch - len(block))]).to(self.device)
            images = unit(self.module.get_image_features(pixel_values=pixels).pooler_output)
            logits = self.module.logit_scale.exp() * images @ self._text(name).T
            rows = logits.double().softmax(dim=-1)[: len(block)].tolist()
            found += [dict(zip(COLOURS, row, strict=True)) for row in rows]
        return found

    def _text(self, name: str) -> Tensor:
        """Unit embeddings ``[10, D]`` of the colours of a class."""
        if name not in self._texts:
            self._texts[name] = unit(torch.cat([self._colour(colour, name) for colour in COLOURS]))
        return self._texts[name]

    def _colour(self, colour: str, name: str) -> Tensor:
        ids = torch.cat([self._tokens(text.format(colour=colour, name=name))[0] for text in TEMPLATES])
        embeddings = unit(self.module.get_text_features(input_ids=ids.to(self.device)).pooler_output)
        return embeddings.mean(dim=0, keepdim=True)


def cut(image: Images, box: Box) -> Images:
    """The pixels that a box touches, at least one."""
    height, width = image.shape[:2]
    left, top = min(int(box[0]), width - 1), min(int(box[1]), height - 1)
    right, bottom = max(left + 1, int(np.ceil(box[2]))), max(top + 1, int(np.ceil(box[3])))
    return np.ascontiguousarray(image[top:bottom, left:right])
