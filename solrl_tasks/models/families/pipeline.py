"""What the families of diffusers pipelines have in common."""

import copy
import re
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from pydantic import JsonValue
from torch import Tensor, nn

from solrl_tasks.config.recipe import ModelSpec
from solrl_tasks.models import dtypes
from solrl_tasks.models.autoencoder import Decoder, decode_execution
from solrl_tasks.models.families.base import Conditioning, Decoded, FamilyError
from solrl_tasks.models.grids import scheduler_grid
from solrl_tasks.models.guidance import guided, with_negative
from solrl_tasks.models.pipelines import fetch_class, load_pipeline, text_encoder_names
from solrl_tasks.models.scope import LayerScope
from solrl_tasks.models.sources import fetch, read_config, text_digest
from solrl_tasks.models.text import TextEncoders
from solrl_tasks.sampling import sigmas

_LIBRARIES = ("torch", "transformers", "diffusers")
_OPTIONS: dict[str, Any] = {"t5": True, "complex_human_instruction": False}
"""Fields of the model section that not every family has, and what they are where nothing is asked."""


class PipelineFamily:
    """A family whose source is a pipeline of one diffusers class; see ``Family``.

    A subclass names the class and the rules, and says how to encode one text, predict a velocity, and find the shape
    of a latent.
    """

    name: ClassVar[str]
    version: ClassVar[str]
    pipeline_class: ClassVar[str]
    scope: LayerScope
    convolutions: ClassVar[str] = ""
    lora_presets: ClassVar[dict[str, str]]
    """Preset to a regular expression over the paths that ``scope`` covers."""
    options: ClassVar[frozenset[str]] = frozenset()
    """Those of ``_OPTIONS`` that the family has."""
    max_text_tokens: ClassVar[int]
    gives_levels: ClassVar[bool]
    """Whether the pipeline hands its scheduler the levels to shift; see ``scheduler_grid``."""

    def __init__(self, spec: ModelSpec, device: torch.device, pipeline: Any, chosen: dtypes.ComputeDtypes) -> None:
        """
        Args:
            pipeline: without text encoders; its networks are frozen and on ``device``.
        """
        self._guide(spec)
        self.device = device
        self.compute_dtype = chosen.transformer
        self.transformer: nn.Module = pipeline.transformer
        self._pipeline = pipeline
        self._measure(spec)
        self._text = TextEncoders(pipeline, self._text_encoders(spec), spec, chosen.text, device)

    @classmethod
    def load(cls, spec: ModelSpec, device: torch.device) -> Self:
        """See ``Family.load``."""
        cls._check(spec)
        cls.latent_shape_of(spec)
        cls.grid_of(spec, 1)
        chosen = dtypes.choose(spec, dtypes.device_class(device))
        return cls(spec, device, load_pipeline(cls.pipeline_class, spec, chosen, device), chosen)

    @classmethod
    def _check(cls, spec: ModelSpec) -> None:
        if spec.max_sequence_length > cls.max_text_tokens:
            raise FamilyError(
                f"model.max_sequence_length {spec.max_sequence_length}: {cls.name} takes at most {cls.max_text_tokens}"
            )
        for option, unset in _OPTIONS.items():
            value = getattr(spec, option)
            if option not in cls.options and value != unset:
                raise FamilyError(f"model.{option} is {value}, which the {cls.name} family does not have: drop it")

    @classmethod
    def numerics(cls, spec: ModelSpec, device_class: str) -> dict[str, str]:
        """See ``Family.numerics``."""
        return {**dtypes.choose(spec, device_class).describe(), "decode": decode_execution(spec, device_class)}

    @classmethod
    def latent_shape_of(cls, spec: ModelSpec) -> tuple[int, ...]:
        """See ``Family.latent_shape_of``."""
        folder = fetch_class(cls.pipeline_class, spec)
        vae, transformer = read_config(folder, "vae"), read_config(folder, "transformer")
        cell = cls._cell(vae) * cls._patch(transformer)
        if spec.resolution % cell:
            raise FamilyError(f"model.resolution is {spec.resolution}: {spec.source!r} needs a multiple of {cell}")
        side = spec.resolution // cls._cell(vae)
        cls._check_side(spec, side, transformer)
        return (cls._channels(transformer), side, side)

    @classmethod
    def _cell(cls, vae: dict[str, Any]) -> int:
        """Pixels along each side of a latent cell."""
        return int(2 ** (len(vae["block_out_channels"]) - 1))

    @classmethod
    def _patch(cls, transformer: dict[str, Any]) -> int:
        """Latent cells along each side of an image token."""
        return int(transformer["patch_size"])

    @classmethod
    def _channels(cls, transformer: dict[str, Any]) -> int:
        """Channels of a latent."""
        return int(transformer["in_channels"])

    @classmethod
    def _check_side(cls, spec: ModelSpec, side: int, transformer: dict[str, Any]) -> None:
        """Refuse a latent that is larger than the transformer has positions for."""

    @classmethod
    def grid_of(cls, spec: ModelSpec, steps: int) -> list[float]:
        """The pipeline's own grid, or that of ``model.shift``; see ``Family.grid_of``."""
        if spec.shift is not None:
            return sigmas.shifted(steps, spec.shift)
        folder = fetch(spec)
        _, height, width = cls.latent_shape_of(spec)
        tokens = height * width // cls._patch(read_config(folder, "transformer")) ** 2
        scheduler = read_config(folder, "scheduler", "scheduler_config.json")
        return scheduler_grid(scheduler, tokens, given_levels=cls.gives_levels)(steps)

    def sigmas(self, steps: int) -> list[float]:
        """See ``Family.sigmas``."""
        if steps not in self._grids:
            self._grids[steps] = self.grid_of(self.spec, steps)
        return list(self._grids[steps])

    @classmethod
    def _text_encoders(cls, spec: ModelSpec) -> tuple[str, ...]:
        """Names of the text encoders that are used."""
        return text_encoder_names(fetch(spec))

    @classmethod
    def text_key(cls, spec: ModelSpec, device_class: str, cache_dir: Path | None = None) -> dict[str, JsonValue]:
        """See ``Family.text_key``."""
        return {
            "family": f"{cls.name}@{cls.version}",
            "files": text_digest(spec, cache_dir),
            "device": device_class,
            "dtype": dtypes.dtype_name(dtypes.choose(spec, device_class).text),
            "max_sequence_length": spec.max_sequence_length,
            "libraries": {name: version(name) for name in _LIBRARIES},
            **{option: getattr(spec, option) for option in sorted(cls.options)},
        }

    @cached_property
    def _adaptable(self) -> tuple[str, ...]:
        return self.scope.resolve(self.transformer).replaced

    def lora_targets(self, preset: str) -> tuple[str, ...]:
        """Every layer that can be quantised (``all``), attention projections, or what the paper adapts (``paper``)."""
        presets = {"all": ".*", **self.lora_presets}
        if preset not in presets:
            raise FamilyError(f"unknown LoRA targets {preset!r} for {self.name}: there is {' and '.join(presets)}")
        return tuple(path for path in self._adaptable if re.fullmatch(presets[preset], path))

    def encode(self, prompts: Sequence[str]) -> Conditioning:
        """See ``Family``; what the tensors are is said at the family's ``encode_text``."""
        conditioning = Conditioning.concatenate([self.encode_text(text) for text in prompts])
        if self.negative_prompt is None:
            return conditioning
        return with_negative(conditioning, self.encode_text(self.negative_prompt, negative=True))

    @torch.no_grad()
    def encode_text(self, text: str, negative: bool = False) -> Conditioning:
        """See ``Family``."""
        self._text.prepare()
        return self._encode(text, negative).to(dtype=torch.float32)

    def release_text(self) -> None:
        """See ``Family``."""
        self._text.release()

    def velocity(self, module: nn.Module, x: Tensor, sigma: float | Tensor, conditioning: Conditioning) -> Tensor:
        """See ``Family``. In bfloat16 the network itself rounds sigma, as in diffusers' pipeline."""
        # Copying a number to a GPU would wait for all that it was given; writing it there does not.
        levels = sigma.expand(len(x)) if isinstance(sigma, Tensor) else torch.full((len(x),), sigma, device=x.device)
        predict: Callable[[Tensor, Tensor, Conditioning], Tensor] = partial(self._predict, module)
        return guided(predict, x, levels, conditioning, self.spec.guidance_scale)

    def with_guidance(self, guidance: float, guidance_scale: float) -> Self:
        """See ``Family``. Nothing is copied."""
        other = copy.copy(self)
        other._guide(self.spec.model_copy(update={"guidance": guidance, "guidance_scale": guidance_scale}))
        return other

    def at_resolution(self, resolution: int) -> Self:
        """See ``Family``. Nothing is copied but, where bfloat16 overflows, the autoencoder."""
        other = copy.copy(self)
        other.spec = self.spec.model_copy(update={"resolution": resolution})
        other._measure(other.spec)
        return other

    def _measure(self, spec: ModelSpec) -> None:
        """Whatever follows from the size of an image."""
        self.latent_shape = self.latent_shape_of(spec)
        execution = decode_execution(spec, dtypes.device_class(self.device))
        self._decoder = Decoder(self._pipeline.vae, spec.resolution, execution)
        self._grids: dict[int, list[float]] = {}

    def _guide(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.negative_prompt = None if spec.guidance_scale == 1.0 else spec.negative_prompt

    def decode(self, x0: Tensor) -> Decoded:
        """See ``Family.decode``."""
        return self._decoder.decode(x0)

    def pixels(self, x0: Tensor) -> Tensor:
        """See ``Family.pixels``."""
        return self._decoder.pixels(x0)

    def diffusers_pipeline(self) -> Any:
        """diffusers' own pipeline around the same networks, without text encoders: to compare with, not to sample."""
        parts = self._pipeline.components
        return type(self._pipeline)(**{n: None if n.startswith("text_encoder") else part for n, part in parts.items()})

    def pipeline_arguments(self, conditioning: Conditioning) -> dict[str, Any]:
        """What ``diffusers_pipeline`` is called with for one image a row of ``conditioning``, without guidance."""
        raise NotImplementedError

    def _computed(self, conditioning: Conditioning, name: str) -> Tensor:
        return conditioning.tensors[name].to(self.compute_dtype)

    def memory(self) -> dict[str, int]:
        """See ``Family.memory``."""
        parts = {"transformer": [self.transformer], "vae": self._decoder.networks(), "text": self._text.networks()}
        return {part: sum(_bytes_on(self.device, network) for network in networks) for part, networks in parts.items()}

    def _encode(self, text: str, negative: bool) -> Conditioning:
        """One row; the text encoders are on the device."""
        raise NotImplementedError

    def _predict(self, module: nn.Module, x: Tensor, sigma: Tensor, conditioning: Conditioning) -> Tensor:
        """float32 [B, C, H, W] from sigma [B], without guidance."""
        raise NotImplementedError


def _bytes_on(device: torch.device, network: nn.Module) -> int:
    tensors = {id(t): t for t in [*network.parameters(), *network.buffers()] if t.device.type == device.type}
    return sum(t.numel() * t.element_size() for t in tensors.values())
