"""Where the weights of a reward come from: a hub id, a folder, or a random generator."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from solrl_tasks.rewards.base import RewardError
from solrl_tasks.store import keys

CONFIG: Final = "config.json"
VOCABULARIES: Final = ("tokenizer.json", "vocab.json", "vocab.txt")
"""One of these makes a folder one that a tokenizer can be read from."""
TOKENIZER_FILES: Final = (
    *VOCABULARIES, "merges.txt", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
)  # fmt: skip
_WEIGHTS: Final = ("*.safetensors", "*.safetensors.index.json")
_HUB_ID: Final = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_RANDOM: Final = re.compile(r"random(?::([a-z0-9.-]+))?")


@dataclass(frozen=True)
class Hub:
    """Files of a repository of the Hugging Face hub; revision None is its main branch."""

    hub_id: str
    revision: str | None


@dataclass(frozen=True)
class Folder:
    """Files of a folder."""

    path: Path


@dataclass(frozen=True)
class Random:
    """Seeded random weights of a named architecture; None is the reward's own."""

    architecture: str | None


Place = Hub | Folder | Random


def find_place(source: str, revision: str | None, pinned: Hub | None, option: str = "source") -> Place:
    """What an option of a reward means. Nothing is fetched.

    A folder wins over a hub id of the same name; ``~`` is the home folder and relative names start from the current
    one. The hub id of ``pinned`` without a revision means its pinned one.

    Raises:
        RewardError: it is none of what is allowed, or a revision stands with what has none.
    """
    random = _RANDOM.fullmatch(source)
    folder = Path(source).expanduser()
    if not random and not folder.is_dir():
        if not _HUB_ID.fullmatch(source):
            raise RewardError(
                f"{option} {source!r}: there is no folder {folder.resolve()}, and it is not a hub id like owner/name: "
                "give a folder with config.json and safetensors, a hub id, or random"
            )
        implied = pinned.revision if pinned is not None and pinned.hub_id == source else None
        return Hub(source, revision or implied)
    if revision is not None:
        raise RewardError(f"revision {revision!r} is for a hub id, but {option} is {source!r}: drop it")
    return Random(random[1]) if random else Folder(folder)


def identify(place: Place, pinned: Hub | None) -> JsonValue:
    """What of a place decides scores; None for the pinned files of the hub.

    A folder is known by the contents of its files, wherever it lies: they are read once a process.

    Raises:
        RewardError: the folder holds nothing that could be loaded.
    """
    if place == pinned:
        return None
    if isinstance(place, Hub):
        return {"hub": place.hub_id, "revision": place.revision}
    if isinstance(place, Random):
        return {"random": place.architecture, "scheme": "normal-v1"}
    found = _content_digest(place.path)
    _identified.setdefault(place.path.resolve(), set()).add(found)
    return {"files": found}


_identified: Final[dict[Path, set[str]]] = {}
"""What versions of rewards in this process say of folders."""


def require_unchanged(folder: Path) -> None:
    """Refuse what was just loaded from a folder whose files are not those that a version was taken from.

    Called after loading, so that no change in between is missed. Files that look untouched are not read again.

    Raises:
        RewardError: they have changed since.
    """
    known = _identified.get(folder.resolve())
    if known is not None and known != {_content_digest(folder)}:
        raise RewardError(
            f"the files in {folder} have changed since this process took the version of a reward from them, and scores "
            "would count as those of the old ones: put the old files back, or start the command again (a run that "
            "began with the old files needs them, or another run id)"
        )


def fetch(place: Hub | Folder, patterns: Iterable[str], what: str) -> Path:
    """The local folder with the files that match; those of a hub id are downloaded unless they are cached.

    With ``HF_HUB_OFFLINE`` set the network is not touched.

    Args:
        patterns: file names, ``*`` standing for anything.
        what: what is missing if nothing is found, such as ``weights``.

    Raises:
        RewardError: the files are neither there nor to be had.
    """
    wanted = tuple(patterns)
    folder = place.path if isinstance(place, Folder) else _download(place.hub_id, place.revision, wanted, what)
    if not any(True for pattern in wanted for _ in folder.glob(pattern)):
        raise RewardError(f"{folder} holds no {what} ({', '.join(wanted)})")
    return folder


def fetch_weights(place: Hub | Folder) -> Path:
    """The local folder with ``config.json`` and safetensors.

    Raises:
        RewardError: they are neither there nor to be had, or the weights are of another format.
    """
    folder = fetch(place, (CONFIG, *_WEIGHTS), "weights")
    if not (folder / CONFIG).is_file() or not weight_files(folder):
        pickles = sorted(path.name for path in folder.iterdir() if path.suffix in (".bin", ".pt", ".pth", ".ckpt"))
        hint = f"; {', '.join(pickles)} could run code when read and is not: see `solrl convert`" if pickles else ""
        raise RewardError(f"{folder} must hold {CONFIG} and weights as safetensors{hint}")
    return folder


def weight_files(folder: Path) -> list[Path]:
    """The safetensors of a folder, in order."""
    return sorted(folder.glob("*.safetensors"))


def fetch_tokenizer(place: Hub | Folder) -> Path:
    """The local folder of a tokenizer.

    Raises:
        RewardError: it is neither there nor to be had.
    """
    # Old tokenizers do not say what they are: the configuration of their model does.
    folder = fetch(place, (*TOKENIZER_FILES, CONFIG), "tokenizer")
    if not has_tokenizer(folder):
        raise RewardError(f"{folder} holds no vocabulary (one of {', '.join(VOCABULARIES)})")
    return folder


def has_tokenizer(folder: Path) -> bool:
    """Whether a tokenizer can be read from a folder."""
    return any((folder / name).is_file() for name in VOCABULARIES)


@cache
def _download(hub_id: str, revision: str | None, patterns: tuple[str, ...], what: str) -> Path:
    """Once a process, so that a branch which moves meanwhile does not mix two versions."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(hub_id, revision=revision, allow_patterns=list(patterns)))
    except Exception as error:
        raise RewardError(_explain(hub_id, revision, what, error)) from error


def _explain(hub_id: str, revision: str | None, what: str, error: Exception) -> str:
    from huggingface_hub import errors

    causes = list(_causes(error))

    def caused_by(*kinds: type[Exception]) -> bool:
        return any(isinstance(cause, kinds) for cause in causes)

    if caused_by(errors.GatedRepoError):
        return f"{hub_id} is gated: accept its terms at https://huggingface.co/{hub_id}, then set HF_TOKEN"
    if caused_by(errors.RevisionNotFoundError):
        return f"{hub_id} has no revision {revision!r}: correct the option revision"
    if caused_by(errors.RepositoryNotFoundError):
        return f"{hub_id} does not exist on the hub, or is private: correct it, or set HF_TOKEN"
    offline = caused_by(errors.OfflineModeIsEnabled)
    why = "HF_HUB_OFFLINE is set" if offline else f"the hub cannot be read ({causes[-1]})"
    pinned = f" --revision {revision}" if revision else ""
    return (
        f"the {what} of {hub_id} are not in the local cache, and {why}: on a machine with network run "
        f"`hf download {hub_id}{pinned}`, or give the folder of a copy instead of the hub id"
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _content_digest(folder: Path) -> str:
    files = [path for name in (CONFIG, *TOKENIZER_FILES) if (path := folder / name).is_file()]
    files += [path for pattern in _WEIGHTS for path in folder.glob(pattern)]
    if not files:
        raise RewardError(f"{folder.resolve()} holds neither weights as safetensors nor a tokenizer")
    return keys.key({path.name: _file_digest(path) for path in files})


def _file_digest(path: Path) -> str:
    status = path.stat()
    # The time of the last change of the inode cannot be set back, as copies with old times do with the other.
    return _sha256(path.resolve(), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


@cache
def _sha256(path: Path, *stamp: int) -> str:
    del stamp  # Only there to be compared.
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
