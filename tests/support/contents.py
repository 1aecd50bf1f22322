"""What a store holds, for comparing two of them byte by byte."""

import hashlib
import json
from pathlib import Path

from solrl_tasks.store.policies import load_policy
from solrl_tasks.store.pool import Pool
from solrl_tasks.store.refs import Ref
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import view_run
from solrl_tasks.tracking.summary import Summary


def run_contents(root: Path | str, run_id: str) -> dict[str, object]:
    """Everything of a run that exact resume must reproduce: digests of every object, and metrics without costs."""
    store = Store.open(root, create=False)
    contents: dict[str, object] = {}
    for step, raw in view_run(store, run_id).summaries().items():
        summary = Summary.model_validate(raw)
        contents[f"{step}/metrics"] = json.dumps(summary.results(), sort_keys=True)
        contents[f"{step}/stderr"] = json.dumps(summary.stderr, sort_keys=True)
        for name, ref in summary.refs.items():
            contents[f"{step}/{name}"] = _digest(store, ref)
    return contents


def _digest(store: Store, ref: Ref) -> str:
    if ref.kind == "policies":
        stored = load_policy(store, ref)
        state = hashlib.sha256()
        for stem in sorted(stored.stems):
            for name, tensor in sorted(stored.tensors(stem).items()):
                state.update(f"{stem}/{name}".encode() + tensor.numpy().tobytes())
        return state.hexdigest()
    if ref.kind == "pools":
        Pool.load(store, ref)
    return ref.digest
