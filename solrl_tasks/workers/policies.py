"""Policies in the store: roles as safetensors, counters as JSON."""

from typing import Any

from torch import Tensor

from solrl_tasks.models.lora import LoraState
from solrl_tasks.store.errors import StoreError
from solrl_tasks.store.policies import load_policy, save_policy
from solrl_tasks.store.refs import Ref
from solrl_tasks.store.root import Store
from solrl_tasks.workers.state import ROLES, PolicyState, Role

_last: dict[tuple[str, Role], LoraState] = {}


def save_state(
    store: Store, spec: dict[str, Any], state: PolicyState, metrics: dict[str, float], seconds: float
) -> Ref:
    """Write a policy whole; a reader sees all of it or nothing.

    Args:
        metrics: of the update that made it.
        seconds: device-seconds that it took; the policy is the same whatever they are.
    """
    tensors: dict[str, dict[str, Tensor]] = {role: state.role(role).weights for role in ROLES}
    if state.optimizer:
        tensors["optimizer"] = state.optimizer
    meta = {
        "rank": state.current.rank,
        "alpha": state.current.alpha,
        "iteration": state.iteration,
        "optimizer_step": state.optimizer_step,
        "digests": state.role_digests(),
        "metrics": metrics,
    }
    return save_policy(store, spec, tensors, meta, {"seconds": seconds})


def load_state(store: Store, ref: Ref) -> PolicyState:
    """Read a policy whole, every file verified.

    Raises:
        PolicyError: it is absent or damaged.
    """
    stored = load_policy(store, ref)
    meta = stored.meta
    roles = {role: LoraState(meta["rank"], meta["alpha"], stored.tensors(role)) for role in ROLES}
    optimizer = stored.tensors("optimizer") if "optimizer" in stored.stems else {}
    return PolicyState(**roles, optimizer=optimizer, iteration=meta["iteration"], optimizer_step=meta["optimizer_step"])


def load_lora(store: Store, ref: Ref, role: Role) -> LoraState:
    """One role of a stored policy, verified. The last one is kept: the stages of an iteration ask for it in turn."""
    stored = load_policy(store, ref)
    which = stored.ref.digest, role
    found = _last.get(which)
    if found is None:
        found = LoraState(stored.meta["rank"], stored.meta["alpha"], stored.tensors(role))
        _last.clear()
        _last[which] = found
    return found


def policy_intact(store: Store, ref: Ref) -> bool:
    """Whether a policy is in the store and undamaged."""
    try:
        load_policy(store, ref)
    except StoreError:
        return False
    return True
