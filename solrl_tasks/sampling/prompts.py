"""Sets of prompts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from solrl_tasks.config.words import counted
from solrl_tasks.store import keys


@dataclass(frozen=True)
class Prompt:
    """A text to draw, and whatever a reward wants to know about it."""

    text: str
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True)
class PromptSet:
    """Prompts in order, each with a key that names it wherever it goes.

    Attributes:
        prompts: may hold the same prompt more than once.
        keys: digest of text and metadata, a dash, and how often that content came before in the full set. A
            subset keeps the keys of the set it was taken from.
    """

    prompts: tuple[Prompt, ...]
    keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.keys:
            object.__setattr__(self, "keys", _number(self.prompts))
        if len(self.keys) != len(self.prompts):
            raise ValueError(
                f"{counted(len(self.keys), 'key')} for {counted(len(self.prompts), 'prompt')}: each has one"
            )

    @property
    def digest(self) -> str:
        """sha256 (hex) of the keys in order."""
        return keys.digest(list(self.keys))

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts in order."""
        return tuple(prompt.text for prompt in self.prompts)

    def subset(self, rows: Sequence[int]) -> "PromptSet":
        """The prompts at ``rows``, with the keys they have here."""
        return PromptSet(tuple(self.prompts[row] for row in rows), tuple(self.keys[row] for row in rows))

    def __len__(self) -> int:
        return len(self.prompts)

    def __getitem__(self, row: int) -> Prompt:
        return self.prompts[row]


def _number(prompts: Sequence[Prompt]) -> tuple[str, ...]:
    seen: Counter[str] = Counter()
    numbered = []
    for prompt in prompts:
        content = keys.key({"text": prompt.text, "metadata": dict(prompt.metadata)})
        numbered.append(f"{content}-{seen[content]}")
        seen[content] += 1
    return tuple(numbered)
