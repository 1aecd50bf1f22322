"""Policies: everything that training goes on from, as safetensors files under one manifest."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from solrl_tasks.store.folders import SealedFolder, find_folder, load_folder, save_folder
from solrl_tasks.store.refs import Ref
from solrl_tasks.store.root import Store

if TYPE_CHECKING:
    from torch import Tensor

_SUFFIX: Final = ".safetensors"


class StoredPolicy:
    """A verified policy in the store; tensors are read when asked for."""

    def __init__(self, folder: SealedFolder) -> None:
        self._files = folder.files
        self.ref = folder.ref
        self.spec = folder.spec
        self.meta = folder.content
        self.making = folder.making

    @property
    def stems(self) -> tuple[str, ...]:
        """Names of its files, without suffix."""
        return tuple(sorted(name.removesuffix(_SUFFIX) for name in self._files))

    def path(self, stem: str) -> Path:
        """One file of it.

        Raises:
            KeyError: the policy has no such file.
        """
        if stem not in self.stems:
            raise KeyError(f"policy {self.ref.key} has no file {stem!r}; it has {', '.join(self.stems)}")
        return self._files[f"{stem}{_SUFFIX}"]

    def tensors(self, stem: str) -> "dict[str, Tensor]":
        """The tensors of one file, on the CPU. Raises as ``path``."""
        from safetensors.torch import load

        return load(self.path(stem).read_bytes())


def save_policy(
    store: Store,
    spec: dict[str, Any],
    tensors: "Mapping[str, Mapping[str, Tensor]]",
    meta: dict[str, Any],
    making: dict[str, Any] | None = None,
) -> Ref:
    """Store a policy, all at once.

    Args:
        spec: what determines the policy; the key is ``key(spec)``.
        tensors: by file stem (such as ``current``, ``old``, ``optimizer``) and name.
        meta: JSON beside them, such as counters. The digest covers it, so it must not hold times or paths.
        making: JSON that the digest does not cover, such as the seconds that it took.

    Returns:
        A reference to what the store holds under that key, which stays if it was there before.
    """
    files = {f"{stem}{_SUFFIX}": _serialized(named) for stem, named in tensors.items()}
    return save_folder(store, "policies", spec, meta, files, making)


def find_policy(store: Store, spec: dict[str, Any]) -> Ref | None:
    """The stored policy of a spec, every file verified; a damaged one is moved aside: None."""
    found = find_folder(store, "policies", spec)
    return None if found is None else found.ref


def load_policy(store: Store, which: Ref | str) -> StoredPolicy:
    """A policy by reference or key, every file verified.

    Raises:
        MissingObjectError: it is not there.
        DamagedError: a file does not match the manifest, or it is not what the reference was made for.
    """
    return StoredPolicy(load_folder(store, "policies", which))


def _serialized(named: "Mapping[str, Tensor]") -> bytes:
    from safetensors.torch import save

    # Sorted, so that equal tensors give equal bytes.
    return save({name: _own(named[name].detach().cpu().contiguous()) for name in sorted(named)})


def _own(tensor: "Tensor") -> "Tensor":
    # Views of one storage cannot be saved.
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()
