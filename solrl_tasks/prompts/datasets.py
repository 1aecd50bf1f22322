"""Datasets: which files of a folder, or of a repository of the hub, hold the prompts that are asked for.

A dataset says where its splits and subsets are in the head of its README, or by the names of its files and folders.
"""

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, Final

import yaml

from solrl_tasks.config.recipe import PromptSource
from solrl_tasks.config.words import counted
from solrl_tasks.prompts.errors import PromptsError

HUB: Final = "hf:"
README: Final = "README.md"
SUFFIXES: Final = (".parquet", ".jsonl", ".csv", ".txt")
SPLITS: Final = ("train", "test", "validation", "valid", "val", "dev", "eval", "heldout")
_SHARD: Final = re.compile(r"(.*)-(\d+)-of-(\d+)\.\w+$")
_HEAD: Final = re.compile(r"\A---\s*\n(.*?)\n---\s*$", re.DOTALL | re.MULTILINE)


def dataset_files(source: PromptSource, folder: Path | None) -> list[Path]:
    """The files of a dataset that hold what the source asks for, in the order of their names.

    Args:
        folder: where the dataset is; None is the hub, whose files are fetched unless they are in the local cache.

    Raises:
        PromptsError: there is no such dataset, split or subset, or the choice is not clear.
    """
    if folder is None:
        return _from_hub(source)
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    readme = folder / README
    head = readme.read_text(encoding="utf-8", errors="replace") if readme.is_file() else ""
    return [folder / name for name in choose_files(source, names, head)]


def choose_files(source: PromptSource, names: Sequence[str], readme: str = "") -> list[str]:
    """Which of a dataset's files hold the split and subset that are asked for.

    Args:
        names: posix paths within the dataset.
        readme: the text of its README.

    Raises:
        PromptsError: as ``dataset_files``.
    """
    data = sorted(name for name in names if _is_data(name))
    if not data:
        raise PromptsError(f"{source.source} has no data files: none of its names ends in {', '.join(SUFFIXES)}")
    configs = _configs(readme)
    chosen = _by_readme(source, data, configs) if configs else _by_names(source, data)
    if not chosen:
        raise PromptsError(f"{source.source}: the files that its README names are not there")
    suffixes = sorted({PurePosixPath(name).suffix.lower() for name in chosen})
    if len(suffixes) > 1:
        raise PromptsError(f"{source.source}: files of several forms fit ({', '.join(suffixes)}): name the file itself")
    _require_all_shards(source, chosen)
    return chosen


def _is_data(name: str) -> bool:
    path = PurePosixPath(name)
    hidden = any(part.startswith(".") for part in path.parts)
    about = path.suffix.lower() == ".txt" and path.stem.lower() in ("readme", "license", "requirements")
    return path.suffix.lower() in SUFFIXES and not hidden and not about


def _configs(readme: str) -> list[dict[str, Any]]:
    head = _HEAD.match(readme.lstrip("\ufeff"))
    try:
        tree = yaml.safe_load(head[1]) if head else None
    except (yaml.YAMLError, ValueError, RecursionError):
        return []
    found = tree.get("configs") if isinstance(tree, dict) else None
    configs = [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []
    return [item for item in configs if item.get("data_files") is not None or item.get("data_dir") is not None]


def _by_readme(source: PromptSource, data: list[str], configs: list[dict[str, Any]]) -> list[str]:
    named = {_word(item.get("config_name"), "default"): item for item in configs}
    subset = source.subset or _only(source, "subset", list(named), _default(named))
    if subset not in named:
        raise PromptsError(f"{source.source} has no subset {subset!r}: there is {', '.join(named)}")
    files = dict(_split_files(named[subset], data))
    if set(files) == {""}:
        return _by_split_name(source, files[""])
    split = source.split or _only(source, "split", list(files), None)
    if split not in files:
        raise PromptsError(f"{source.source} has no split {split!r}: there is {', '.join(files)}")
    if not files[split]:
        raise PromptsError(f"{source.source}: the files of split {split!r} that its README names are not there")
    return files[split]


def _default(named: dict[str, dict[str, Any]]) -> str | None:
    marked = [name for name, item in named.items() if item.get("default") is True]
    return marked[0] if marked else "default" if "default" in named else None


def _split_files(config: dict[str, Any], data: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Split and files; the split is "" where the README leaves it to the names of files."""
    prefix = _word(config.get("data_dir"), "").strip("/")
    inside = [name for name in data if not prefix or name.startswith(f"{prefix}/")]
    patterns = config.get("data_files")
    if patterns is None:
        yield "", inside
    elif isinstance(patterns, list) and patterns and all(isinstance(item, dict) for item in patterns):
        for item in patterns:
            yield _word(item.get("split"), "train"), _matching(item.get("path"), prefix, inside)
    else:
        yield "", _matching(patterns, prefix, inside)


def _word(value: Any, default: str) -> str:
    return str(value) if isinstance(value, str | int | float) else default


def _matching(patterns: Any, prefix: str, names: list[str]) -> list[str]:
    # Texts only: what aliases of a README nest can be of any size when it is written out.
    wanted = [item for item in (patterns if isinstance(patterns, list) else [patterns]) if isinstance(item, str)]
    wanted = [f"{prefix}/{item}" if prefix else item for item in wanted]
    return [name for name in names if any(fnmatchcase(name, item.replace("**/", "*")) for item in wanted)]


def _by_names(source: PromptSource, data: list[str]) -> list[str]:
    if source.subset is not None:
        found = [name for name in data if source.subset in PurePosixPath(name).parts[:-1]]
        if not found:
            folders = sorted({part for name in data for part in PurePosixPath(name).parts[:-1]})
            raise PromptsError(
                f"{source.source} has no subset {source.subset!r}: no folder is called so"
                + (f", only {', '.join(folders)}" if folders else "")
            )
        data = found
    return _by_split_name(source, data)


def _by_split_name(source: PromptSource, data: list[str]) -> list[str]:
    known = dict.fromkeys(SPLITS if source.split is None else (*SPLITS, source.split))
    files = {split: found for split in known if (found := [name for name in data if _has_word(name, split)])}
    if source.split is None:
        split = _only(source, "split", list(files), None) if files else None
        return data if split is None else files[split]
    if source.split not in files:
        there = ", ".join(files) or f"no split in the names of its files ({', '.join(data[:5])})"
        raise PromptsError(f"{source.source} has no split {source.split!r}: there is {there}")
    return files[source.split]


def _has_word(name: str, word: str) -> bool:
    stem = str(PurePosixPath(name).with_suffix("")).lower()
    return re.search(rf"(?:^|[/._-]){re.escape(word.lower())}(?:[/._-]|$)", stem) is not None


def _only(source: PromptSource, what: str, names: list[str], default: str | None) -> str:
    if default is not None:
        return default
    if len(names) > 1:
        raise PromptsError(f"{source.source} has several {what}s ({', '.join(names)}): name one as `{what}`")
    return names[0]


def _require_all_shards(source: PromptSource, names: list[str]) -> None:
    """A copy that was broken off must not pass for a smaller dataset."""
    shards: dict[tuple[str, int], int] = {}
    for name in names:
        if found := _SHARD.match(name):
            key = found[1], int(found[3])
            shards[key] = shards.get(key, 0) + 1
    for (stem, total), there in shards.items():
        if there != total:
            raise PromptsError(
                f"{source.source}: {there} of {counted(total, 'file')} {stem}-… are there: fetch the others"
            )


def _from_hub(source: PromptSource) -> list[Path]:
    from huggingface_hub import constants

    name = source.source.removeprefix(HUB)
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name):
        raise PromptsError(f"prompts {source.source!r}: a dataset of the hub is named like {HUB}OWNER/NAME")
    try:
        return _cached(source, name) if constants.HF_HUB_OFFLINE else _downloaded(source, name)
    except PromptsError:
        raise
    except Exception as error:
        raise PromptsError(_explain(source, name, error)) from error


def _cached(source: PromptSource, name: str) -> list[Path]:
    from huggingface_hub import snapshot_download

    folder = snapshot_download(name, repo_type="dataset", revision=source.revision, local_files_only=True)
    return dataset_files(source, Path(folder))


def _downloaded(source: PromptSource, name: str) -> list[Path]:
    from huggingface_hub import HfApi, snapshot_download

    # One commit for the list and the files, whatever a branch does meanwhile.
    info = HfApi().dataset_info(name, revision=source.revision)
    names = [item.rfilename for item in info.siblings or []]
    readme = ""
    if README in names:
        only = snapshot_download(name, repo_type="dataset", revision=info.sha, allow_patterns=[README])
        readme = (Path(only) / README).read_text(encoding="utf-8", errors="replace")
    chosen = choose_files(source, names, readme)
    folder = snapshot_download(name, repo_type="dataset", revision=info.sha, allow_patterns=[README, *chosen])
    return [Path(folder) / item for item in chosen]


def _explain(source: PromptSource, name: str, error: Exception) -> str:
    from huggingface_hub import constants, errors

    what = f"dataset {name} of the hub"
    if isinstance(error, errors.GatedRepoError):
        return f"{what} is gated: accept its terms at https://huggingface.co/datasets/{name}, then `hf auth login`"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{what} has no revision {source.revision!r}"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{what} does not exist, or is private: correct the name, or `hf auth login`"
    why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"the hub cannot be reached or read ({error})"
    return (
        f"{what} is not in the local cache, or not to be had, and {why}: run `hf download {name} --repo-type dataset` "
        "where there is a network, or give the folder of a copy as source"
    )
