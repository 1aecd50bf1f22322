"""What the doctor finds beyond lists."""

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from flows import checkup
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import Run, list_runs
from solrl_tasks.store.trimming import Keep, apply_trim, plan_trim
from tests.flows.conftest import Finished

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def store(finished: Finished, tmp_path: Path) -> Store:
    return Store(Path(shutil.copytree(finished.home / "store", tmp_path / "store")))


def grow(store: Store, run_id: str, iterations: int) -> None:
    """Ask for more than is done."""
    with Run.open(store, run_id, {**Run(store, run_id).config, "iterations": iterations}):
        pass


def test_room_is_told_against_what_unfinished_runs_will_write(
    store: Store, finished: Finished, monkeypatch: pytest.MonkeyPatch
):
    assert len(list(checkup.disk_lines(store, list_runs(store)))) == 1, "nothing is left to be written"
    grow(store, finished.run_id, 12)
    each = checkup.bytes_of_iteration(store, finished.run_id)
    assert each is not None and each > 0
    for free, words in ((20 * each, "free"), (11 * each, "TOO LITTLE")):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: Usage(0, 0, int(free)))
        first, last = checkup.disk_lines(store, list_runs(store))
        assert first.startswith("done: 10 iterations left") and words in last
        assert ("TOO LITTLE" in last) == (free < 12 * each)


def test_a_trimmed_iteration_does_not_count_as_a_small_one(store: Store, finished: Finished):
    apply_trim(store, plan_trim(store, finished.run_id, Keep()))
    kept = checkup.bytes_of_iteration(store, finished.run_id)
    whole = sum(file.stat().st_size for file in store.root.rglob("*") if file.is_file())
    assert kept is not None and 0 < kept < whole


def test_damaged_reports_are_named(store: Store, finished: Finished):
    from flows.report import draw_report

    draw_report(store, finished.run_id)
    assert list(checkup.report_lines(store)) == ["1"]
    (store.runs / finished.run_id / "report" / "page.json").write_text("{")
    count, fault = checkup.report_lines(store)
    assert count == "1" and "page.json is damaged" in fault and "solrl report done" in fault


def test_packages_of_other_versions_are_named(monkeypatch: pytest.MonkeyPatch):
    wanted = ["torch>=1", "numpy<1", "no-such-thing>=2", 'ray>=99; extra == "ray"']
    monkeypatch.setattr(checkup.importlib.metadata, "requires", lambda _: wanted)
    found = list(checkup.unfit_packages())
    assert [line.split()[0] for line in found] == ["numpy", "no-such-thing"]
    assert "<1 is wanted" in found[0] and "not installed" in found[1]


@pytest.mark.usefixtures("prefect_server")
def test_deployments_that_nobody_serves_are_named():
    count, *rest = checkup.deployment_lines()
    assert count.startswith("0 of ") and all("solrl up" in line for line in rest)
    assert any("solrl/train: unknown to the server" in line for line in rest)
