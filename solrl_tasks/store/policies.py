"""Policies: everything that training goes on from, as safetensors files under one manifest."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from solrl_tasks.store.refs import Ref
from solrl_tasks.store.root import Store

if TYPE_CHECKING:
    from torch import Tensor


class StoredPolicy:
    """A verified policy in the store; tensors are read when asked for."""

    ref: Ref
    spec: dict[str, Any]
    meta: dict[str, Any]

    @property
    def stems(self) -> tuple[str, ...]:
        """Names of its files, without suffix."""
        raise NotImplementedError

    def tensors(self, stem: str) -> "dict[str, Tensor]":
        """The tensors of one file, on the CPU."""
        raise NotImplementedError


def save_policy(
    store: Store, spec: dict[str, Any], tensors: "Mapping[str, Mapping[str, Tensor]]", meta: dict[str, Any]
) -> Ref:
    """Store a policy: ``tensors`` by file stem and name. The digest covers spec, meta and all files."""
    raise NotImplementedError


def find_policy(store: Store, spec: dict[str, Any]) -> Ref | None:
    """The stored policy of a spec, every file verified; a damaged one is moved aside: None."""
    raise NotImplementedError


def load_policy(store: Store, which: Ref | str) -> StoredPolicy:
    """A policy by reference or key, every file verified."""
    raise NotImplementedError
