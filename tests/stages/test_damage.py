"""Whatever happens to a file of a finished run: it is found and made again, or refused by name, never believed."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from solrl_tasks.stages import session as sessions
from solrl_tasks.stages.iteration import DivergedError, run_all
from solrl_tasks.stages.reporter import SilentReporter
from solrl_tasks.stages.session import open_session
from solrl_tasks.store.errors import StoreError
from solrl_tasks.store.gc import plan_gc
from solrl_tasks.store.refs import KINDS
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import view_run
from solrl_tasks.workers import rollout
from solrl_tasks.workers.inline import InlineWorker
from solrl_tasks.workers.numerics import default_device
from tests.support.contents import run_contents
from tests.support.micro import micro_recipe, write_prompts
from tests.support.wholeness import check_whole

REWARD = "data.zarr/rewards/colourfulness@1"


@pytest.fixture(scope="module")
def recipe(micro_model, tmp_path_factory):
    return micro_recipe(micro_model, write_prompts(tmp_path_factory.mktemp("prompts")))


@pytest.fixture(scope="module")
def worker(recipe):
    """Loaded once for all cases; what it holds does not depend on a store."""
    return InlineWorker(recipe.model, default_device())


@pytest.fixture(scope="module")
def finished(recipe, worker, tmp_path_factory):
    """A finished store, and what is in it."""
    root = tmp_path_factory.mktemp("finished") / "store"
    finish(root, recipe, worker)
    return root, run_contents(root, "run")


@pytest.fixture
def root(finished, tmp_path):
    """A copy of it."""
    return Path(shutil.copytree(finished[0], tmp_path / "store"))


def finish(root, recipe, worker):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "InlineWorker", lambda *_: worker)
        with open_session(root, "run", recipe) as session:
            return list(run_all(session))


def kept(root, step, name):
    """The folder that a committed step refers to."""
    return root / view_run(Store(root), "run").summary(step)["refs"][name]["path"]


OBJECTS = {
    "pool reward values": lambda root: kept(root, 1, "explore") / REWARD / "values/c/1/0",
    "pool reward mark": lambda root: kept(root, 1, "explore") / REWARD / "ledger/c/0/1/0",
    "pool reward metadata": lambda root: kept(root, 2, "explore") / REWARD / "values/zarr.json",
    "pool image": lambda root: kept(root, 2, "explore") / "data.zarr/images/values/c/0/1/0/0/0",
    "pool image metadata": lambda root: kept(root, 1, "explore") / "data.zarr/images/ledger/zarr.json",
    "pool group": lambda root: kept(root, 1, "explore") / "data.zarr/zarr.json",
    "pool spec": lambda root: kept(root, 1, "explore") / "spec.json",
    "pool record": lambda root: next((kept(root, 1, "explore") / "records").iterdir()),
    "samples latents": lambda root: kept(root, 1, "regenerate") / "data.zarr/latents/values/c/1/0/0/0/0",
    "samples latents mark": lambda root: kept(root, 2, "regenerate") / "data.zarr/latents/ledger/c/0/0/0",
    "samples reward": lambda root: kept(root, 1, "regenerate") / REWARD / "values/c/0/0",
    "samples spec": lambda root: kept(root, 1, "regenerate") / "spec.json",
    "audit latents": lambda root: kept(root, 1, "audit") / "data.zarr/latents/values/c/0/1/0/0/0",
    "selection": lambda root: kept(root, 1, "select") / "manifest.json",
    "first policy": lambda root: kept(root, 1, "parent") / "old.safetensors",
    "policy weights": lambda root: kept(root, 1, "update") / "current.safetensors",
    "policy optimizer": lambda root: kept(root, 2, "update") / "optimizer.safetensors",
    "policy manifest": lambda root: kept(root, 1, "update") / "manifest.json",
    "evaluation": lambda root: kept(root, 2, "evaluate") / "manifest.json",
    "evaluation picture": lambda root: kept(root, 1, "evaluate") / "samples.png",
    "evaluation pool": lambda root: pool_of_evaluation(root) / REWARD / "values/c/0/0",
    "baseline summary": lambda root: step_file(root, 0, "summary.json"),
    "summary": lambda root: step_file(root, 1, "summary.json"),
    "last summary": lambda root: step_file(root, 2, "summary.json"),
    "references": lambda root: step_file(root, 1, "refs.json"),
    "journal": lambda root: root / "runs/run/spent.jsonl",
    "inputs": lambda root: root / "runs/run/inputs.json",
}
REFUSED = {"configuration": lambda root: root / "runs/run/config.json", "store": lambda root: root / "store.json"}


def step_file(root, step, name):
    return root / "runs/run/iterations" / f"{step:04d}" / name


def pool_of_evaluation(root):
    used = {kept(root, step, "explore").name for step in (1, 2)}
    return next(path for path in sorted((root / "pools").iterdir()) if path.name not in used)


def flip(path, share):
    """Invert one bit, ``share`` of the way through the file."""
    data = bytearray(path.read_bytes())
    data[int(share * (len(data) - 1))] ^= 0x10
    path.write_bytes(bytes(data))


DAMAGES = {
    "deleted": lambda path: path.unlink(),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3]),
    "flipped early": lambda path: flip(path, 0.02),
    "flipped late": lambda path: flip(path, 0.98),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", OBJECTS)
def test_damage_is_found_and_made_good(kind, damage, root, finished, recipe, worker):
    path = OBJECTS[kind](root)
    DAMAGES[damage](path)
    finish(root, recipe, worker)
    assert run_contents(root, "run") == finished[1]
    check_whole(root, "run", recipe)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_made_again_is_refused_by_name(kind, damage, root, recipe, worker):
    path = REFUSED[kind](root)
    DAMAGES[damage](path)
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(StoreError, match=path.name.replace(".", r"\.") if kind == "configuration" else "store"):
        finish(root, recipe, worker)
    assert (path.read_bytes() if path.exists() else None) == before


@pytest.mark.parametrize("kinds", [*((kind,) for kind in KINDS), KINDS], ids="-".join)
def test_whole_folders_that_are_gone_are_made_again(kinds, root, finished, recipe, worker):
    for kind in kinds:
        shutil.rmtree(root / kind)
    finish(root, recipe, worker)
    assert run_contents(root, "run") == finished[1]
    check_whole(root, "run", recipe)


def test_a_torn_last_line_of_the_journal_costs_that_line_only(root, recipe, worker):
    journal = view_run(Store(root), "run").journal
    before = journal.totals()
    with journal.path.open("ab") as file:
        file.write(b'{"iteration": 2, "seconds": 1000.0, "sta')
    shutil.rmtree(kept(root, 2, "update"))
    finish(root, recipe, worker)
    after = journal.totals()
    assert after.keys() == before.keys()
    assert {stage for stage in before if after[stage] != before[stage]} == {"update"}
    assert sum(after.values()) < sum(before.values()) + 100.0


def test_damaged_references_are_mended_before_garbage_is_collected(root, recipe, worker):
    for step in range(3):
        step_file(root, step, "refs.json").unlink()
    finish(root, recipe, worker)
    assert plan_gc(Store(root), 0.0) == []


def test_a_policy_that_cannot_be_made_again_stops_the_run(root, recipe, worker, monkeypatch):
    shutil.rmtree(kept(root, 1, "update"))
    train = worker.train

    def elsewhere(job, policy):
        state, result = train(job, policy)
        return replace(state, current=state.current.lerp(state.old, 0.5)), result

    monkeypatch.setattr(worker, "train", elsewhere)
    with pytest.raises(DivergedError, match="step 1: update was done again and differs"):
        finish(root, recipe, worker)


def test_what_followed_from_lost_values_follows_from_the_new_ones(root, recipe, worker, monkeypatch):
    """A damaged pool that is filled again elsewhere ranks differently: no old choice or mean is taken for its own."""
    selected, measured = kept(root, 1, "select"), kept(root, 0, "evaluate")
    shutil.rmtree(root / "pools")
    scored = rollout.score

    def elsewhere(*arguments):
        scores = scored(*arguments)
        return replace(scores, values=(1.0 - scores.values).astype("float32"))

    monkeypatch.setattr(rollout, "score", elsewhere)
    worker._device.resident.rewards.clear()
    notes = []
    with pytest.raises(DivergedError), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "InlineWorker", lambda *_: worker)
        with open_session(root, "run", recipe, Notes(notes)) as session:
            list(run_all(session))
    assert any("evaluate was done again and differs" in note for note in notes)
    refs = view_run(Store(root), "run").refs(1)
    assert root / refs["select"].path != selected and selected.exists() and measured.exists()


class Notes(SilentReporter):
    """Keeps what a run says."""

    def __init__(self, notes):
        self._notes = notes

    def note(self, message):
        self._notes.append(message)
