"""Objects of any named class in pictures, found by OWLv2 (arXiv:2306.09683).

Why OWLv2 and not Grounding DINO: both are free (Apache-2.0), but OWLv2 takes each class as a text of its own, so that
what is found of one class does not depend on which others are asked for, and no label has to be cut out of a caption;
and it is plain transformer layers without custom kernels, which transformers might want to fetch.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor, nn

from solrl_tasks.rewards.base import Images
from solrl_tasks.rewards.composing import Detection
from solrl_tasks.rewards.loading import load_module, random_module
from solrl_tasks.rewards.pixels import CLIP_MEAN, CLIP_STD
from solrl_tasks.rewards.reading_reward import PromptTokens
from solrl_tasks.rewards.weights import Folder, Hub, Place, Random, fetch_tokenizer, fetch_weights

PUBLISHED: Final = Hub("google/owlv2-base-patch16-ensemble", "cfd3195ba4ea9592eec887ded089f4c08eff231d")
QUERY: Final = "a photo of a {}"
"""How a class is asked for."""


def _config(
    vision: tuple[int, int, int, int], text: tuple[int, int, int, int], image: int, patch: int
) -> dict[str, Any]:
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    return {
        "projection_dim": text[0],
        "vision_config": {**dict(zip(names, vision, strict=True)), "image_size": image, "patch_size": patch},
        "text_config": dict(zip(names, text, strict=True)),
    }


ARCHITECTURES: Final = {
    "owlv2-base": _config((768, 3072, 12, 12), (512, 2048, 12, 8), 960, 16),
    "tiny": _config((32, 64, 2, 4), (24, 48, 2, 4), 64, 16),
}
"""Configurations for random weights, by name; the first is the published one's."""


class OwlDetector:
    """Boxes of named classes, computed in float32 in blocks of one size, the last filled up: a picture's boxes do not
    depend on its company.

    Args:
        place: of the weights.
        tokenizer: of the byte-pair vocabulary.
        device: where it computes.
        batch: pictures computed together.
    """

    def __init__(self, place: Place, tokenizer: Hub | Folder, device: torch.device, batch: int) -> None:
        self.place, self.tokenizer, self.device, self.batch = place, tokenizer, device, batch
        if isinstance(place, Random):
            config = ARCHITECTURES[place.architecture or next(iter(ARCHITECTURES))]
            self.module: Any = random_module(build_owl, config, device).to(device)
        else:
            self.module = load_module(build_owl, fetch_weights(place), device).to(device)
        length = int(self.module.config.text_config.max_position_embeddings)
        self._tokens = PromptTokens(fetch_tokenizer(tokenizer), length)

    @torch.inference_mode()
    def detect(self, images: Images, names: Sequence[str], least: float) -> list[list[Detection]]:
        """All boxes of the named classes with at least this confidence, many for one object.

        Args:
            images: uint8 ``[B, H, W, 3]``.
            names: of classes, in words.
            least: the least confidence.

        Returns:
            Per picture, boxes in its pixels.
        """
        tokens = [self._tokens(QUERY.format(name)) for name in names]
        ids, mask = (torch.cat(parts).to(self.device) for parts in zip(*tokens, strict=True))
        if isinstance(self.place, Random):
            ids = self._renumbered(ids)
        found: list[list[Detection]] = []
        for start in range(0, len(images), self.batch):
            block = images[start : start + self.batch]
            missing = self.batch - len(block)
            filled = np.concatenate([block, block[-1:].repeat(missing, axis=0)])
            pixels = pad_and_stretch(filled, self.module.config.vision_config.image_size, self.device)
            output = self.module(
                input_ids=ids.repeat(self.batch, 1), attention_mask=mask.repeat(self.batch, 1), pixel_values=pixels
            )
            scores, boxes = output.logits.sigmoid().cpu().numpy(), output.pred_boxes.cpu().numpy()
            found += [_boxes(scores[row], boxes[row], block.shape[1:3], names, least) for row in range(len(block))]
        return found

    def _renumbered(self, ids: Tensor) -> Tensor:
        """Ids of another vocabulary as OWLv2 needs them: none begins with 0, which is padding, and the end is last."""
        last = int(self.module.config.text_config.vocab_size) - 1
        return torch.where(ids == self._tokens.tokenizer.eos_token_id, last, ids + 1)


def _boxes(
    scores: NDArray[np.float32], boxes: NDArray[np.float32], shape: tuple[int, ...], names: Sequence[str], least: float
) -> list[Detection]:
    """Boxes of one picture: scores [boxes, classes], boxes [boxes, 4] as centre and extent in parts of the square."""
    height, width = shape
    middle, extent = boxes[:, :2].astype(np.float64), boxes[:, 2:].astype(np.float64)
    corners = np.concatenate([middle - extent / 2, middle + extent / 2], axis=1) * max(height, width)
    corners = corners.clip(0, [width, height, width, height])
    return [
        Detection(name, float(scores[row, column]), (float(box[0]), float(box[1]), float(box[2]), float(box[3])))
        for column, name in enumerate(names)
        for row in np.flatnonzero(scores[:, column] >= least).tolist()
        for box in [corners[row]]
    ]


def build_owl(config: dict[str, Any]) -> nn.Module:
    """OWLv2 with its detection heads."""
    from transformers import Owlv2Config, Owlv2ForObjectDetection

    module: Any = Owlv2ForObjectDetection(Owlv2Config.from_dict(config))
    with torch.device("cpu"):
        # Not a weight, so that it is in no file: where the boxes of a patch are looked for.
        module.box_bias = module.compute_box_bias(module.num_patches_height, module.num_patches_width)
    built: nn.Module = module
    return built


def pad_and_stretch(images: Images, side: int, device: torch.device) -> Tensor:
    """Pictures as OWLv2 takes them: black below or to the right to a square, then stretched or shrunk to its side.

    As in transformers: linear, after a Gaussian where it shrinks; edges mirrored. Done as one matrix a side.

    Args:
        images: uint8 ``[B, H, W, 3]``.
        side: S, in pixels.
        device: where it is computed.

    Returns:
        float32 ``[B, 3, S, S]``, normalised, on the device.
    """
    height, width = images.shape[1:3]
    longer = max(height, width)
    pixels = torch.from_numpy(images).to(device).permute(0, 3, 1, 2).float().div(255)
    pixels = nn.functional.pad(pixels, (0, longer - width, 0, longer - height))
    stretch = torch.from_numpy(_stretching(longer, side)).to(device)
    mean, std = (torch.tensor(values, device=device).view(-1, 1, 1) for values in (CLIP_MEAN, CLIP_STD))
    return (stretch @ pixels @ stretch.T).sub(mean).div(std)


@lru_cache(maxsize=8)
def _stretching(length: int, side: int) -> NDArray[np.float32]:
    """The matrix [side, length] that resamples a row of pixels."""
    if length == side:
        return np.eye(side, dtype=np.float32)
    rows = np.eye(length)
    if length > side:
        rows = ndimage.gaussian_filter1d(rows, (length / side - 1) / 2, axis=0, mode="mirror")
    zoomed = ndimage.zoom(rows, (side / length, 1), order=1, mode="mirror", grid_mode=True)
    matrix: NDArray[np.float32] = zoomed.astype(np.float32)
    return matrix
