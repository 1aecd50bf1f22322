"""The prompts that a recipe names."""

import re
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final

from solrl_tasks.config.recipe import HeldoutSplit, PromptSource, PromptsSpec
from solrl_tasks.prompts.datasets import HUB, dataset_files
from solrl_tasks.prompts.errors import PromptsError
from solrl_tasks.prompts.heldout import require_disjoint, split
from solrl_tasks.prompts.parquet import read_parquet
from solrl_tasks.prompts.rows import Row, to_prompts
from solrl_tasks.prompts.texts import read_csv, read_jsonl, read_txt
from solrl_tasks.sampling.prompts import Prompt, PromptSet

BUILT_IN: Final = ("scenes:train", "scenes:heldout")
Reader = Callable[[Path, PromptSource], Iterator[Row]]
READERS: Final[dict[str, Reader]] = {
    ".txt": read_txt,
    ".jsonl": read_jsonl,
    ".csv": read_csv,
    ".parquet": read_parquet,
}


def read_sets(spec: PromptsSpec, base: Path | None = None) -> tuple[PromptSet, PromptSet]:
    """Training and held-out prompts of a recipe; no text is in both.

    Args:
        base: folder that relative names start from; the current directory if None.

    Raises:
        PromptsError: a source cannot be used, or the two share prompts; the message names some.
    """
    train = read_prompts(spec.train, base)
    if isinstance(spec.heldout, HeldoutSplit):
        return split(train, spec.heldout)
    if spec.without is not None:
        train, _ = split(train, spec.without, "prompts.without")
    heldout = read_prompts(spec.heldout, base)
    require_disjoint(train, heldout)
    return train, heldout


def source_name(source: str | PromptSource | HeldoutSplit) -> str:
    """How messages call a source."""
    if isinstance(source, HeldoutSplit):
        return f"{source.fraction:g} of prompts.train"
    if isinstance(source, str):
        return source
    return source.source + (f", split {source.split}" if source.split else "")


def read_prompts(source: str | PromptSource, base: Path | None = None) -> PromptSet:
    """The prompts of one source, in its order; a prompt that comes twice is two prompts.

    Args:
        source: ``scenes:train`` or ``scenes:heldout``; a file that ends in .txt, .jsonl, .csv or .parquet; a folder of
            such files; or ``hf:OWNER/NAME``, a dataset of the hub.
        base: folder that a relative name starts from; the current directory if None.

    Raises:
        PromptsError: the source is unknown, absent, empty or malformed.
    """
    asked = PromptSource(source=source) if isinstance(source, str) else source
    if asked.source.startswith("scenes:"):
        return PromptSet(tuple(Prompt(text) for text in _scene_texts(asked)))
    files = _files(asked, base)
    prompts = to_prompts(chain.from_iterable(_reader(path)(path, asked) for path in files), asked)
    if not prompts:
        names = ", ".join(str(path) for path in files)
        raise PromptsError(f"prompts file {names} is empty: give at least one prompt")
    return PromptSet(prompts)


def _files(source: PromptSource, base: Path | None) -> list[Path]:
    if source.source.startswith(HUB):
        return dataset_files(source, None)
    path = (base or Path()) / Path(source.source).expanduser()
    if source.revision is not None:
        raise PromptsError(f"prompts {source.source!r}: `revision` is of a dataset of the hub, not of {path}: drop it")
    if path.is_dir() and path.suffix.lower() not in READERS:
        return dataset_files(source, path)
    for name in ("split", "subset"):
        if getattr(source, name) is not None:
            raise PromptsError(f"prompts file {path}: a file has no {name}, found {getattr(source, name)!r}: drop it")
    _reader(path)
    return [path]


def _reader(path: Path) -> Reader:
    try:
        return READERS[path.suffix.lower()]
    except KeyError:
        hub = f"; a dataset of the hub is named {HUB}{path}" if re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", str(path)) else ""
        raise PromptsError(
            f"prompts {str(path)!r}: there is no such folder, and file names end in .txt (a prompt a line), .jsonl (an "
            f"object a line), .csv or .parquet; the built-in sets are {' and '.join(BUILT_IN)}{hub}"
        ) from None


def _scene_texts(source: PromptSource) -> tuple[str, ...]:
    from solrl_tasks.scenes import grammar

    if source.source not in BUILT_IN:
        raise PromptsError(f"unknown prompts {source.source!r}: there is {' and '.join(BUILT_IN)}, or name a file")
    extra = source.model_fields_set - {"source"}
    if extra:
        raise PromptsError(f"prompts {source.source!r} are built in: they have no {', '.join(sorted(extra))}")
    return grammar.training_prompts() if source.source == "scenes:train" else grammar.heldout_prompts()
