"""Sets of prompts, and where they are read from."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from solrl_tasks.store import keys

BUILT_IN = ("scenes:train", "scenes:heldout")


class PromptsError(ValueError):
    """A prompt source that cannot be used; the message names file, line, what was found and what to do."""


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
            raise ValueError(f"{len(self.prompts)} prompts have {len(self.keys)} keys")

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


def read_prompts(source: str, base: Path | None = None) -> PromptSet:
    """The prompts that a recipe names.

    Args:
        source: ``scenes:train`` or ``scenes:heldout``, or a file: ``.txt`` with one prompt a line, or
            ``.jsonl`` with an object a line, whose ``prompt`` is the text and whose other keys (or the keys
            of its ``metadata``) go to the rewards. UTF-8; blank lines are skipped; a prompt that comes twice
            is two prompts.
        base: folder that a relative file name starts from; the current directory if None.

    Raises:
        PromptsError: the source is unknown, absent, empty or malformed.
    """
    if source.startswith("scenes:"):
        return PromptSet(tuple(Prompt(text) for text in _scene_texts(source)))
    path = (base or Path()) / Path(source).expanduser()
    parse = _parser(path)
    lines = _read_lines(path)
    prompts = tuple(parse(line, f"{path}:{number}") for number, line in lines if line.strip())
    if not prompts:
        raise PromptsError(f"prompts file {path} is empty: give at least one prompt, one a line")
    return PromptSet(prompts)


def _scene_texts(source: str) -> tuple[str, ...]:
    from solrl_tasks.scenes import grammar

    if source not in BUILT_IN:
        raise PromptsError(f"unknown prompts {source!r}: there is {' and '.join(BUILT_IN)}, or name a file")
    return grammar.training_prompts() if source == "scenes:train" else grammar.heldout_prompts()


def _parser(path: Path) -> Callable[[str, str], Prompt]:
    parsers = {".txt": _plain, ".jsonl": _json}
    if path.suffix.lower() not in parsers:
        raise PromptsError(
            f"prompts {str(path)!r}: file names end in .txt (a prompt a line) or .jsonl (an object a line), "
            f"and the built-in sets are {' and '.join(BUILT_IN)}"
        )
    return parsers[path.suffix.lower()]


def _read_lines(path: Path) -> list[tuple[int, str]]:
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise PromptsError(f"prompts file {path} does not exist (looked in {path.parent.resolve()})") from error
    except OSError as error:
        raise PromptsError(f"prompts file {path} cannot be read: {error.strerror}") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise PromptsError(
            f"prompts file {path}:{line}: byte {error.start} (0x{data[error.start]:02x}) is not UTF-8: "
            "save the file as UTF-8"
        ) from error
    if "\0" in text:
        raise PromptsError(f"prompts file {path} holds zero bytes, so it is no UTF-8 text: save the file as UTF-8")
    # Not splitlines(): that also breaks lines at characters which may stand inside a prompt.
    return list(enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), start=1))


def _plain(line: str, _where: str) -> Prompt:
    return Prompt(line.strip())


def _json(line: str, where: str) -> Prompt:
    record = _json_object(line, where)
    text = record.pop("prompt", None)
    if not isinstance(text, str) or not text.strip():
        found = "no such key" if text is None else repr(text)
        raise PromptsError(f'{where}: "prompt" must be a text that is not blank, found {found}')
    metadata = record.pop("metadata", {})
    if not isinstance(metadata, dict):
        raise PromptsError(f'{where}: "metadata" must be an object, found {type(metadata).__name__}')
    twice = sorted(metadata.keys() & record.keys())
    if twice:
        raise PromptsError(f'{where}: {", ".join(twice)} stands both beside and inside "metadata": keep one')
    return Prompt(text.strip(), {**record, **metadata})


def _json_object(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
        # Finds what json.loads lets through: NaN, infinities, halves of surrogate pairs.
        keys.canonical_json(record)
        json.dumps(record, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        raise PromptsError(f"{where}: not valid JSON ({error.msg} at column {error.colno})") from error
    except ValueError as error:
        raise PromptsError(f"{where}: {error}: use null or leave the key out") from error
    if not isinstance(record, dict):
        raise PromptsError(f'{where}: must be an object like {{"prompt": "..."}}, found {type(record).__name__}')
    return record
