"""The model's own diffusers pipeline, called as a user would call it: eager, one call a batch."""

from typing import Any

import numpy as np
import torch

from solrl_tasks.bench.arms import PIPELINE
from solrl_tasks.engines.attention import torch_order
from solrl_tasks.models.families.base import Conditioning, Family
from solrl_tasks.models.families.pipeline import PipelineFamily


class EagerPipeline:
    """The pipeline around the family's own network and autoencoder; prompts are encoded already.

    Args:
        conditioning: the prompt, one row.

    Raises:
        ValueError: the recipe's model is one that the plain call cannot be compared with.
    """

    def __init__(self, family: Family, conditioning: Conditioning) -> None:
        if not isinstance(family, PipelineFamily):
            raise ValueError(f"family {family.name!r} is no diffusers pipeline to be called: leave {PIPELINE} out")
        if family.spec.guidance_scale > 1:
            raise ValueError(
                f"model.guidance_scale is {family.spec.guidance_scale:g}: {PIPELINE} is measured without guidance "
                "alone; leave the arm out, or set the scale to 1"
            )
        self._family = family
        self._conditioning = conditioning
        self._pipeline = family.diffusers_pipeline()
        self._pipeline.set_progress_bar_config(disable=True)

    def images(self, count: int, steps: int) -> np.ndarray:
        """What the call ends in, as an array: uint8 [B, H, W, 3]."""
        return np.stack([np.asarray(image) for image in self._call(count, steps, "pil")])

    def latents(self, count: int, steps: int) -> torch.Tensor:
        """The same without decoding."""
        latents: torch.Tensor = self._call(count, steps, "latent")
        return latents

    def _call(self, count: int, steps: int, output: str) -> Any:
        side = self._family.spec.resolution
        # The pipelines repeat the embeddings that they make themselves, not all of them those that they are given.
        given = self._family.pipeline_arguments(self._conditioning.take([0] * count))
        with torch_order():
            return self._pipeline(
                height=side, width=side, num_inference_steps=steps, output_type=output, return_dict=False, **given
            )[0]
