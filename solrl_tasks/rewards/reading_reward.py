"""What rewards with weights that read the prompt share: its tokens."""

from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Final

import torch
from pydantic import JsonValue
from torch import Tensor

import solrl_tasks
from solrl_tasks.rewards.base import RewardError
from solrl_tasks.rewards.model_reward import ModelReward, WeightOptions
from solrl_tasks.rewards.weights import (
    Folder,
    Hub,
    Random,
    fetch_tokenizer,
    find_place,
    has_tokenizer,
    identify,
    require_unchanged,
)

EMBEDDED_TOKENIZER: Final = Path(solrl_tasks.__file__).parent / "models" / "embedded" / "tokenizer"
"""Random models read prompts with the one that is always there."""


class ReadingOptions(WeightOptions):
    """``tokenizer`` is a hub id or a folder; None is the one among the weights, else the published one."""

    tokenizer: str | None = None


class PromptTokens:
    """Token ids of single prompts, always of one length.

    Args:
        folder: of a tokenizer that transformers reads.
        length: to which prompts are cut or filled up.

    Raises:
        RewardError: it cannot be read, or its files have changed since a reward's version was taken from them.
    """

    def __init__(self, folder: Path, length: int) -> None:
        from transformers import AutoTokenizer

        self.length = length
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        except (OSError, ValueError) as error:
            raise RewardError(f"the tokenizer in {folder} cannot be read: {error}") from error
        require_unchanged(folder)

    def __call__(self, prompt: str) -> tuple[Tensor, Tensor]:
        """Ids and mask int64 ``[1, length]`` of a prompt; what is beyond the length is cut off before the end token."""
        encoded = self.tokenizer(
            [prompt], padding="max_length", truncation=True, max_length=self.length, return_tensors="pt"
        )
        return encoded["input_ids"], encoded["attention_mask"]


class ReadingReward(ModelReward):
    """A reward that reads prompts with a tokenizer of its own."""

    Options: ClassVar[type[WeightOptions]] = ReadingOptions
    pinned_tokenizer: ClassVar[Hub]
    """The published one, for weights that have none beside them."""

    def __init__(self, options: WeightOptions, device: torch.device) -> None:
        super().__init__(options, device)
        self._tokens: PromptTokens | None = None

    @classmethod
    def identity(cls, options: WeightOptions) -> dict[str, JsonValue]:
        """See ``ModelReward``; a tokenizer asked for decides scores too."""
        asked = cls._asked(options)
        tokenizer = None if asked is None else identify(asked, cls.pinned_tokenizer)
        return super().identity(options) | ({} if tokenizer is None else {"tokenizer": tokenizer})

    @classmethod
    def tokenizer_place(cls, options: WeightOptions) -> Hub | Folder:
        """Where the tokenizer is: as asked, else among the weights, else the published one."""
        asked = cls._asked(options)
        if asked is not None:
            return asked
        place = cls.place(options)
        if isinstance(place, Random):
            return Folder(EMBEDDED_TOKENIZER)
        bare = isinstance(place, Folder) and not has_tokenizer(place.path)
        return cls.pinned_tokenizer if bare else place

    @abstractmethod
    def length(self, module: Any) -> int:
        """How many tokens a prompt is cut or filled up to."""

    def tokens(self, prompt: str) -> tuple[Tensor, Tensor]:
        """Ids and mask int64 ``[1, length]`` of a prompt, on the device."""
        assert self._tokens is not None
        ids, mask = self._tokens(prompt)
        return ids.to(self.device), mask.to(self.device)

    def _loaded(self) -> Any:
        module = super()._loaded()
        folder = fetch_tokenizer(type(self).tokenizer_place(self.options))
        self._tokens = PromptTokens(folder, self.length(module))
        return module

    @classmethod
    def _asked(cls, options: WeightOptions) -> Hub | Folder | None:
        assert isinstance(options, ReadingOptions)
        if options.tokenizer is None:
            return None
        place = find_place(options.tokenizer, None, cls.pinned_tokenizer, "tokenizer")
        if isinstance(place, Random):
            raise RewardError("tokenizer cannot be random: give a hub id or a folder, or leave it out")
        return place
