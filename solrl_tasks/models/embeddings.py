"""Encoded prompts, kept on disk so that text encoders are needed once a prompt and need not stay."""

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from solrl_tasks.models.dtypes import device_class, dtype_name
from solrl_tasks.models.families.base import Conditioning, Family
from solrl_tasks.models.guidance import with_negative
from solrl_tasks.store import atomic, keys

FORMAT = "solrl-embedding-1"
MEMORY_BYTES = 2**30
_log = logging.getLogger(__name__)


class EmbeddingCache:
    """Encodings of texts: from memory, else from disk, else from the family, whose text encoders then leave.

    Values are kept in what the transformer computes in: it rounds them to that anyway, so nothing is lost.
    """

    def __init__(self, folder: Path | None, family: Family, memory_bytes: int = MEMORY_BYTES) -> None:
        """
        Args:
            folder: made when the first encoding is written; None keeps encodings in memory only.
            memory_bytes: the encodings used longest ago are dropped from memory beyond this.
        """
        self._folder = folder
        self._family = family
        self._limit = memory_bytes
        self._held = 0
        self._memory: OrderedDict[str, Conditioning] = OrderedDict()
        cache_dir = None if folder is None else folder.parent
        key = family.text_key(family.spec, device_class(family.device), cache_dir)
        self._key = {**key, "stored": dtype_name(family.compute_dtype)}

    def get(self, texts: Sequence[str]) -> Conditioning:
        """One row a text, on the family's device; with guidance the negative prompt is in it too.

        An encoding never depends on the other texts: each is encoded alone.

        Raises:
            SourceError: an encoding is missing and the text encoders cannot be loaded.
        """
        negative = self._family.negative_prompt
        wanted = [(text, False) for text in texts] + ([] if negative is None else [(negative, True)])
        try:
            rows = [self._one(text, is_negative) for text, is_negative in wanted]
        finally:
            self._family.release_text()
        prompts = Conditioning.concatenate(rows[: len(texts)])
        return prompts if negative is None else with_negative(prompts, rows[-1])

    def _one(self, text: str, negative: bool) -> Conditioning:
        name = keys.digest({"text": text, "negative": negative, **self._key})
        if name in self._memory:
            self._memory.move_to_end(name)
        else:
            self._remember(name, self._read(name) or self._encode(name, text, negative))
        return self._memory[name].to(self._family.device)

    def _remember(self, name: str, encoded: Conditioning) -> None:
        self._memory[name] = encoded
        self._held += _bytes(encoded)
        while self._held > self._limit and len(self._memory) > 1:
            _, dropped = self._memory.popitem(last=False)
            self._held -= _bytes(dropped)

    def _encode(self, name: str, text: str, negative: bool) -> Conditioning:
        encoded = self._family.encode_text(text, negative).to(torch.device("cpu"), self._family.compute_dtype)
        if self._folder is not None:
            tensors = {part: tensor.contiguous() for part, tensor in encoded.tensors.items()}
            metadata = {"format": FORMAT, "sha256": _digest(tensors)}
            atomic.write_bytes(self._path(self._folder, name), save(tensors, metadata))
        return encoded

    def _read(self, name: str) -> Conditioning | None:
        if self._folder is None:
            return None
        path = self._path(self._folder, name)
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {part: file.get_tensor(part) for part in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            _report_damage(path, str(error))
            return None
        if metadata.get("format") != FORMAT or metadata.get("sha256") != _digest(tensors):
            _report_damage(path, "its content does not match its sha256")
            return None
        return Conditioning(tensors)

    @staticmethod
    def _path(folder: Path, name: str) -> Path:
        return folder / name[:2] / f"{name}.safetensors"


def _report_damage(path: Path, why: str) -> None:
    _log.warning("the cached embedding %s is damaged (%s): the text is encoded again", path, why)


def _digest(tensors: dict[str, Tensor]) -> str:
    state = hashlib.sha256()
    for part in sorted(tensors):
        tensor = tensors[part]
        state.update(f"{part} {tensor.dtype} {list(tensor.shape)}\n".encode())
        state.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return state.hexdigest()


def _bytes(encoded: Conditioning) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in encoded.tensors.values())
