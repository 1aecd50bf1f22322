"""Published checkpoints that are pickles, turned once into safetensors under our names."""

import hashlib
import json
import os
import pickle
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from pydantic import Field
from torch import Tensor

from solrl_tasks.config.base import Frozen
from solrl_tasks.config.extensions import find_extension, list_extensions
from solrl_tasks.config.words import are, counted
from solrl_tasks.rewards.base import RewardError, presentable
from solrl_tasks.rewards.loading import Build, differences, shorten, skeleton
from solrl_tasks.rewards.weights import CONFIG, TOKENIZER_FILES, has_tokenizer
from solrl_tasks.store import atomic

Change = Callable[[Tensor], Sequence[Tensor]]

RECORD: Final = "conversion.json"
WEIGHTS: Final = "model.safetensors"
_WRAPPERS: Final = ("state_dict", "model", "module")


def as_it_is(tensor: Tensor) -> Sequence[Tensor]:
    """One tensor, unchanged."""
    return (tensor,)


def transposed(tensor: Tensor) -> Sequence[Tensor]:
    """One matrix, transposed."""
    return (tensor.T,)


def in_three(tensor: Tensor) -> Sequence[Tensor]:
    """Three equal parts along the first axis."""
    return tensor.chunk(3)


@dataclass(frozen=True)
class Rule:
    """What published tensors are called here.

    Attributes:
        pattern: of the published name, all of it.
        targets: names here, with the groups of the pattern; none if the tensor is not used.
        change: makes as many tensors as there are targets.
    """

    pattern: str
    targets: tuple[str, ...]
    change: Change = as_it_is


@dataclass(frozen=True)
class Checkpoint:
    """How a reward's weights are published.

    Attributes:
        file: where they are found, in words.
        rules: the key map; the first pattern that fits counts.
        config: of the module that the weights are for.
        build: makes that module.
        verified: whether the map was tried on the published file itself, rather than on its documented structure.
        sha256: of the published file, where it is known.
    """

    file: str
    rules: tuple[Rule, ...]
    config: dict[str, Any]
    build: Build
    verified: bool = False
    sha256: str | None = None


class Conversion(Frozen):
    """What was converted, from what. ``published`` is whether it is the published file; None if that is not known."""

    reward: str
    source: str
    source_sha256: str
    source_bytes: int
    published: bool | None
    tensors: int
    parameters: int
    unused: tuple[str, ...] = Field(default=())
    key_map_verified: bool


class CheckpointError(RewardError):
    """A checkpoint that is not converted; the message says what is wrong with it."""


def find_checkpoint(name: str) -> tuple[str, Checkpoint]:
    """The identity of a reward and how its weights are published.

    Raises:
        CheckpointError: its weights need no conversion.
        UnknownExtensionError: there is no such reward.
    """
    reward = find_extension("reward", name)
    checkpoint: Checkpoint | None = getattr(reward, "checkpoint", None)
    if checkpoint is None:
        known = [other for other, one in list_extensions("reward").items() if getattr(one, "checkpoint", None)]
        raise CheckpointError(f"reward {name!r} has no weights to convert; those that have: {', '.join(known)}")
    return f"{reward.name}@{reward.version}", checkpoint


def convert(reward: str, checkpoint: Checkpoint, source: Path, folder: Path, tokenizer: Path | None) -> Conversion:
    """Write a published checkpoint as config and safetensors, under our names, in the precision that it has.

    Nothing in the source is run: a pickle may hold tensors and plain containers only. Safetensors under the published
    names are read too. The same source gives the same bytes.

    Args:
        reward: identity of the reward, for the record.
        source: the published file.
        folder: to write; must not exist.
        tokenizer: a folder whose tokenizer is copied beside the weights.

    Raises:
        CheckpointError: the source is not such a checkpoint, or the folder exists.
    """
    if os.path.lexists(folder):
        raise CheckpointError(f"{folder} exists: name a folder that does not, or remove it")
    if tokenizer is not None and not has_tokenizer(tokenizer):
        raise CheckpointError(f"{tokenizer} holds no tokenizer: name the folder of one, or leave it out")
    published = read_tensors(source)
    tensors, unused = rename(published, checkpoint.rules)
    problems = differences(skeleton(checkpoint.build, checkpoint.config), tensors)
    if problems:
        raise CheckpointError(f"{source} is not the checkpoint of {reward} ({checkpoint.file}): {'; '.join(problems)}")
    digest = _sha256(source)
    record = Conversion(
        reward=reward,
        source=source.name,
        source_sha256=digest,
        source_bytes=source.stat().st_size,
        published=None if checkpoint.sha256 is None else digest == checkpoint.sha256,
        tensors=len(tensors),
        parameters=sum(tensor.numel() for tensor in tensors.values()),
        unused=tuple(unused),
        key_map_verified=checkpoint.verified,
    )
    try:
        _write(folder, tensors, checkpoint.config, record, tokenizer)
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be written: {error}") from error
    return record


def read_tensors(source: Path) -> dict[str, Tensor]:
    """The named tensors of a ``.pt``, ``.pth`` or ``.safetensors`` file.

    Raises:
        CheckpointError: it cannot be read, would run code, or holds something else.
    """
    if not source.is_file():
        raise CheckpointError(f"there is no file {source}")
    if source.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(source)
        except SafetensorError as error:
            raise CheckpointError(f"{source} cannot be read: {error}") from error
    try:
        content = torch.load(source, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        # Not the library's own words: they advise to read it all the same.
        asks = re.search(r"GLOBAL (\S+)", str(error))
        what = f"it asks for {presentable(asks[1])}" if asks else "it is torn, or no PyTorch checkpoint"
        raise CheckpointError(
            f"{source} is refused, and nothing of it was run: {what}, but only tensors in plain containers are read"
        ) from error
    except Exception as error:
        # What is no checkpoint fails anywhere within the reader.
        why = presentable(f"{type(error).__name__}: {error}")
        raise CheckpointError(f"{source} cannot be read as a PyTorch checkpoint: {why}") from error
    return _unwrapped(content, source)


def rename(published: dict[str, Tensor], rules: Sequence[Rule]) -> tuple[dict[str, Tensor], list[str]]:
    """Tensors under our names, and the published names that rules leave out.

    Raises:
        CheckpointError: a name fits no rule, or two become one.
    """
    tensors: dict[str, Tensor] = {}
    unused, unknown = [], []
    for name, tensor in published.items():
        rule, match = next(((r, m) for r in rules if (m := re.fullmatch(r.pattern, name))), (None, None))
        if rule is None or match is None:
            unknown.append(name)
            continue
        targets = [match.expand(target) for target in rule.targets]
        if not targets:
            unused.append(name)
            continue
        for target, part in zip(targets, rule.change(tensor), strict=True):
            if target in tensors:
                raise CheckpointError(f"{target} would be made twice, the second time of {name}")
            tensors[target] = part
    odd = [name for name, tensor in tensors.items() if not _is_plain(tensor)]
    if odd:
        raise CheckpointError(
            f"{counted(len(odd), 'tensor')} {are(len(odd))} not dense and floating-point ({shorten(sorted(odd))})"
        )
    if unknown:
        raise CheckpointError(
            f"{counted(len(unknown), 'tensor')} that the key map does not know ({shorten(sorted(unknown))})"
        )
    return tensors, sorted(unused)


def _is_plain(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.is_floating_point() and not tensor.is_meta


def _unwrapped(content: Any, source: Path) -> dict[str, Tensor]:
    for wrapper in _WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    if not isinstance(content, dict) or not content:
        raise CheckpointError(f"{source} holds a {type(content).__name__}, expected tensors by name")
    odd = [str(name) for name, value in content.items() if not isinstance(value, Tensor) or not isinstance(name, str)]
    if odd:
        raise CheckpointError(f"{source} holds something else than tensors: {shorten(odd)}")
    common = "module." if all(name.startswith("module.") for name in content) else ""
    return {name.removeprefix(common): tensor for name, tensor in content.items()}


def _write(
    folder: Path, tensors: dict[str, Tensor], config: dict[str, Any], record: Conversion, tokenizer: Path | None
) -> None:
    from safetensors.torch import save_file

    metadata = {"format": "pt", "reward": record.reward, "source_sha256": record.source_sha256}
    with atomic.publish_folder(folder) as temporary:
        # Parts of one tensor share its memory, which the format does not know.
        save_file(
            {name: tensor.contiguous().clone() for name, tensor in tensors.items()}, temporary / WEIGHTS, metadata
        )
        _order_metadata(temporary / WEIGHTS)
        (temporary / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        (temporary / RECORD).write_text(record.model_dump_json(indent=2) + "\n", encoding="utf-8")
        for name in TOKENIZER_FILES if tokenizer is not None else ():
            if tokenizer is not None and (tokenizer / name).is_file():
                shutil.copyfile(tokenizer / name, temporary / name)


def _order_metadata(path: Path) -> None:
    """Sort the entries of the metadata in place: the library writes them in an order that changes from run to run."""
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        ordered = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(length)
        if len(ordered) != length:
            raise AssertionError(f"the header of {path} is written in another way than expected")
        file.seek(8)
        file.write(ordered)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
