"""Where a pipeline's files are, and what they are."""

import hashlib
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from solrl_tasks.config.recipe import ModelSpec
from solrl_tasks.models import random_weights
from solrl_tasks.store import atomic, keys
from solrl_tasks.store.errors import DamagedError

EMBEDDED = Path(__file__).parent / "embedded"
ARCHITECTURES = Path(__file__).parent / "architectures"
"""Folders of pipelines that have configurations and no weights."""
RANDOM = "random:"
"""Sources that start so name an architecture whose weights are drawn."""
INDEX = "model_index.json"
TEXT_PARTS = ("text_encoder", "tokenizer")
"""How the names of a pipeline's parts begin that encode prompts."""
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_VOCABULARIES = frozenset({"tokenizer.json", "vocab.json", "vocab.txt", "spiece.model", "tokenizer.model"})
_CONTENT = frozenset({".json", ".safetensors", ".txt", ".model"})


class SourceError(ValueError):
    """A model source that cannot be used; the message names it, what is wrong, and what to do."""


def resolve_source(spec: ModelSpec) -> Path | str:
    """The folder that ``spec.source`` means, or the hub id if it is one. Nothing is fetched.

    A folder wins over a hub id of the same name. ``~`` is the home folder, and relative names start from the
    current directory.

    Raises:
        SourceError: it is neither, or the folder holds no pipeline.
    """
    if spec.source == "embedded":
        return _checked(EMBEDDED, spec)
    if is_random(spec):
        return _checked(_architecture(spec.source), spec)
    folder = Path(spec.source).expanduser()
    if folder.is_dir():
        return _checked(folder, spec)
    if _HUB_ID.fullmatch(spec.source):
        return spec.source
    raise SourceError(
        f"model.source {spec.source!r}: there is no folder {folder.resolve()}, and it is not a hub id like "
        "owner/name: give the folder of a diffusers pipeline, a hub id, random:NAME, or embedded"
    )


def is_random(spec: ModelSpec) -> bool:
    """Whether the weights are drawn instead of read."""
    return spec.source.startswith(RANDOM)


def _architecture(source: str) -> Path:
    known = sorted(path.name for path in ARCHITECTURES.iterdir() if path.is_dir())
    name = source.removeprefix(RANDOM)
    if name not in known:
        raise SourceError(f"model.source {source!r}: there is no such architecture; known are {', '.join(known)}")
    return ARCHITECTURES / name


def _checked(folder: Path, spec: ModelSpec) -> Path:
    if not (folder / INDEX).is_file():
        raise SourceError(
            f"model.source {spec.source!r}: {folder.resolve()} has no {INDEX}: give the top folder of a "
            "diffusers pipeline, as save_pretrained writes it"
        )
    if spec.revision is not None:
        raise SourceError(f"model.revision is {spec.revision!r}, but model.source {spec.source!r} is a folder: drop it")
    return folder


def fetch(spec: ModelSpec) -> Path:
    """The local folder of a pipeline; a hub id is downloaded unless it is in the local cache.

    Only safetensors weights are accepted. With ``HF_HUB_OFFLINE`` set, or for a folder, the network is not
    touched.

    Raises:
        SourceError: the source is wrong, not reachable, or not allowed to this user.
    """
    source = resolve_source(spec)
    if isinstance(source, Path):
        return source
    try:
        return _download(source, spec.revision)
    except Exception as error:
        raise SourceError(_explain(source, spec, error)) from error


@cache
def _download(hub_id: str, revision: str | None) -> Path:
    """Once a process, so that a branch which moves meanwhile does not mix two versions."""
    from diffusers import DiffusionPipeline

    return Path(DiffusionPipeline.download(hub_id, revision=revision, use_safetensors=True))


def _explain(hub_id: str, spec: ModelSpec, error: Exception) -> str:
    from huggingface_hub import errors

    causes = list(_causes(error))
    what = f"model.source {hub_id!r} (a hub id, as there is no such folder here)"

    def caused_by(*kinds: type[Exception]) -> bool:
        return any(isinstance(cause, kinds) for cause in causes)

    if caused_by(errors.GatedRepoError):
        return (
            f"{what} is gated: accept its terms at https://huggingface.co/{hub_id}, then log in with "
            "`hf auth login` or set HF_TOKEN"
        )
    if caused_by(errors.RevisionNotFoundError):
        return f"{what} has no revision {spec.revision!r}: correct model.revision"
    if caused_by(errors.RepositoryNotFoundError):
        return f"{what} does not exist, or is private: correct it, or log in with `hf auth login`"
    offline = caused_by(errors.OfflineModeIsEnabled)
    why = "HF_HUB_OFFLINE is set" if offline else f"the hub cannot be reached or read ({causes[-1]})"
    return (
        f"{what} is not in the local cache, and {why}: on a machine with network run "
        f"`hf download {hub_id}`, or give the folder of a copy as model.source"
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def read_config(folder: Path, component: str, name: str = "config.json") -> dict[str, Any]:
    """One component's JSON configuration; ``component`` "" is the pipeline itself.

    Raises:
        SourceError: it is absent or not a JSON object.
    """
    path = folder / component / name
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SourceError(f"{path} cannot be read: {error}: the pipeline is incomplete, copy it again") from error
    if not isinstance(config, dict):
        raise SourceError(f"{path} holds no JSON object: the pipeline is damaged, copy it again")
    return config


def base_digest(spec: ModelSpec, cache_dir: Path) -> str:
    """sha256 (hex) of what decides the pipeline's results: names and contents of the files of its components.

    It does not depend on where the folder lies, and not on readmes or files outside the components. The
    digest of each file is kept in ``cache_dir`` and used again while its path, size and modification time
    stay. Random weights follow from the configuration and the way they are drawn.

    Raises:
        SourceError: the source cannot be used.
    """
    return keys.digest(_digests(spec, fetch(spec).resolve(), cache_dir))


def text_digest(spec: ModelSpec, cache_dir: Path | None) -> str:
    """sha256 (hex) of the files of text encoders and tokenizers alone; otherwise as ``base_digest``.

    Args:
        cache_dir: None remembers the files' digests for this process only.
    """
    folder = fetch(spec).resolve()
    names = tuple(f"{name}/" for name in components(folder) if name.startswith(TEXT_PARTS))
    digests = _digests(spec, folder, cache_dir)
    return keys.digest({name: value for name, value in digests.items() if name.startswith(names) or name == RANDOM})


def _digests(spec: ModelSpec, folder: Path, cache_dir: Path | None) -> dict[str, str]:
    """sha256 by name of file; of random pipelines also what their weights and tokenizers are made by."""
    digests = {name: str(digest) for name, (digest, *_) in _file_digests(folder, cache_dir).items()}
    if is_random(spec):
        words = _file_digests(EMBEDDED, cache_dir)
        tokenizers = {name: str(digest) for name, (digest, *_) in words.items() if name.startswith("tokenizer")}
        digests[RANDOM] = keys.digest({"weights": random_weights.VERSION, **tokenizers})
    return digests


_in_memory: dict[Path, dict[str, list[str | int]]] = {}


def _file_digests(folder: Path, cache_dir: Path | None) -> dict[str, list[str | int]]:
    """By name: sha256, and the stamp of the file that it was taken of."""
    memory = None if cache_dir is None else cache_dir / "base-digests" / f"{keys.key(str(folder))}.json"
    known = {**_remembered(memory), **_in_memory.get(folder, {})}
    digests: dict[str, list[str | int]] = {}
    for name in _content_files(folder):
        status = (folder / name).stat()
        # The time of the last change of the inode cannot be set back, as copies with old times do with the other.
        stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
        remembered = known.get(name)
        same = remembered is not None and remembered[1:] == stamp
        digests[name] = remembered if remembered and same else [_sha256(folder / name), *stamp]
    _in_memory[folder] = digests
    if memory is not None and digests != _remembered(memory):
        atomic.write_sealed(memory, digests)
    return digests


def require_components(folder: Path) -> None:
    """Refuse a pipeline that lacks a part: the libraries make an empty tokenizer where there is no file for one.

    Raises:
        SourceError: a component named in the index has no folder, or a tokenizer has no vocabulary.
    """
    for name in components(folder):
        found = {path.name for path in (folder / name).glob("*")}
        if not found:
            raise SourceError(
                f"{folder} lacks {name}/, which its {INDEX} names: the pipeline is incomplete, copy it again"
            )
        if "tokenizer" in name and not found & _VOCABULARIES:
            wanted = ", ".join(sorted(_VOCABULARIES))
            raise SourceError(f"{folder / name} holds no vocabulary (one of {wanted}): copy the pipeline again")


def components(folder: Path) -> list[str]:
    """Names of the parts that the pipeline in a folder has."""
    index = read_config(folder, "", INDEX)
    return [name for name, value in index.items() if isinstance(value, list) and value[0] is not None]


def _content_files(folder: Path) -> list[str]:
    files = [path for name in components(folder) for path in (folder / name).rglob("*") if path.suffix in _CONTENT]
    return sorted(path.relative_to(folder).as_posix() for path in [folder / INDEX, *files])


def _remembered(memory: Path | None) -> dict[str, list[str | int]]:
    if memory is None:
        return {}
    try:
        known: dict[str, list[str | int]] = atomic.read_sealed(memory)
    except (FileNotFoundError, DamagedError):
        return {}
    return known


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
