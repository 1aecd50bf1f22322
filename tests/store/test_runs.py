"""Runs: one process, one configuration, iterations committed once and for all."""

import json
import subprocess
import sys

import pytest

from solrl_tasks.store import errors
from solrl_tasks.store.journal import Journal, _parse
from solrl_tasks.store.refs import Ref
from solrl_tasks.store.runs import Run, list_runs, view_run

CONFIG = {"iterations": 3, "explore": {"steps": 6, "engine": {"name": "fp4"}}, "rewards": [{"name": "a"}]}
REF = Ref(kind="pools", key="0" * 24, digest="a" * 64, path="pools/" + "0" * 24)


def test_summaries_come_back_in_order(store):
    with Run.open(store, "demo", CONFIG) as run:
        for number in (0, 2, 1):
            run.commit_summary(number, {"reward": number * 0.5})
    view = view_run(store, "demo")
    assert list(view.summaries().items()) == [
        (0, {"reward": 0.0}),
        (1, {"reward": 0.5}),
        (2, {"reward": 1.0}),
    ]
    assert view.summary(7) is None and view.config == CONFIG


def test_a_second_holder_is_refused_and_the_status_follows_the_lock(store):
    with Run.open(store, "demo", CONFIG) as run:
        with pytest.raises(errors.LockedError, match="run demo: the lock is held by run demo"):
            Run.open(store, "demo", CONFIG)
        assert [(info.run_id, info.status) for info in list_runs(store)] == [("demo", "running")]
        run.commit_summary(0, {})
    (info,) = list_runs(store)
    assert (info.status, info.committed, info.iterations, info.holder) == ("interrupted", 1, 3, None)
    with Run.open(store, "demo", CONFIG) as run:
        run.commit_summary(1, {})
        run.commit_summary(2, {})
    assert list_runs(store)[0].status == "interrupted"
    with Run.open(store, "demo", CONFIG) as run:
        run.commit_summary(3, {})
    assert list_runs(store)[0].status == "finished"


def test_the_lock_is_given_back_when_opening_fails(store):
    Run.open(store, "demo", CONFIG).close()
    with pytest.raises(errors.ConfigChangedError):
        Run.open(store, "demo", {**CONFIG, "iterations": 1})
    Run.open(store, "demo", CONFIG).close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"explore": {"steps": 4, "engine": {"name": "fp4"}}}, r"explore\.steps: 6 -> 4"),
        ({"explore": {"steps": 6, "engine": {"name": "bf16"}}}, r"explore\.engine\.name: 'fp4' -> 'bf16'"),
        ({"rewards": [{"name": "b"}]}, r"rewards\[0\]\.name: 'a' -> 'b'"),
        ({"seed": 4}, r"seed: \(absent\) -> 4"),
        ({"iterations": 2}, r"iterations: 3 -> 2"),
        ({"iterations": 9, "seed": 4}, r"asked for\):\n  seed: \(absent\) -> 4\nOnly iterations may grow"),
    ],
)
def test_a_changed_configuration_is_refused_naming_the_fields(store, change, message):
    Run.open(store, "demo", CONFIG).close()
    with pytest.raises(errors.ConfigChangedError, match=message):
        Run.open(store, "demo", {**CONFIG, **change})
    assert view_run(store, "demo").config == CONFIG


def test_iterations_may_grow(store):
    Run.open(store, "demo", CONFIG).close()
    Run.open(store, "demo", {**CONFIG, "iterations": 9}).close()
    assert view_run(store, "demo").config["iterations"] == 9


def test_a_damaged_configuration_is_a_clear_error(store):
    Run.open(store, "demo", CONFIG).close()
    path = store.runs / "demo" / "config.json"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(errors.DamagedError, match=r"config\.json is damaged.*another run id"):
        Run.open(store, "demo", CONFIG)
    assert list_runs(store)[0].status == "damaged"


def test_a_begun_run_without_its_configuration_is_refused(store):
    with Run.open(store, "demo", CONFIG) as run:
        run.commit_summary(0, {})
    path = store.runs / "demo" / "config.json"
    path.unlink()
    with pytest.raises(errors.DamagedError, match=r"config\.json is damaged: it is gone"):
        Run.open(store, "demo", CONFIG)
    assert not path.exists()


def test_a_committed_summary_is_final(store):
    with Run.open(store, "demo", CONFIG) as run:
        run.commit_summary(0, {"a": 1})
        run.commit_summary(0, {"a": 1})
        with pytest.raises(errors.StoreError, match="iteration 0 is committed"):
            run.commit_summary(0, {"a": 2})


def test_a_damaged_summary_is_not_committed_any_more(store, caplog):
    with Run.open(store, "demo", CONFIG) as run:
        run.commit_summary(0, {"a": 1})
        path = run.iteration_dir(0) / "summary.json"
        path.write_text(path.read_text().replace('"a": 1', '"a": 2'))
        assert view_run(store, "demo").summaries() == {}
        assert path.exists()
        assert run.summaries() == {} and not path.exists()
        assert "moved to" in caplog.text
        run.commit_summary(0, {"a": 3})
        assert run.summaries() == {0: {"a": 3}}


def test_references_are_noted_by_stage(store):
    with Run.open(store, "demo", CONFIG) as run:
        run.note_ref(0, "explore", REF)
        run.note_ref(0, "update", REF.model_copy(update={"kind": "policies"}))
        assert list(view_run(store, "demo").refs(0)) == ["explore", "update"]
        assert run.refs(0)["explore"] == REF and run.refs(1) == {}
        (run.iteration_dir(0) / "refs.json").write_text("{")
        with pytest.raises(errors.DamagedError):
            run.refs(0)
        run.note_ref(0, "explore", REF)
        assert run.refs(0) == {"explore": REF}


@pytest.mark.parametrize("run_id", ["", ".", "..", "../x", "a/b", ".hidden", "a b", "x" * 101, "-x"])
def test_run_ids_stay_in_their_folder(store, run_id):
    with pytest.raises(ValueError, match="run_id"):
        Run.open(store, run_id, CONFIG)


def test_an_unknown_run_is_an_error_that_lists_the_known(store):
    Run.open(store, "demo", CONFIG).close()
    with pytest.raises(errors.MissingObjectError, match=r"no run 'domo' .* there is demo"):
        view_run(store, "domo")


def test_of_many_runs_those_are_named_that_are_spelled_most_alike(store):
    for number in range(20):
        Run.open(store, f"study-{number:02d}", CONFIG).close()
    Run.open(store, "demo", CONFIG).close()
    with pytest.raises(errors.MissingObjectError, match=r"there is demo, .* and 13 more: see solrl runs"):
        view_run(store, "dmeo")


def test_a_killed_run_is_interrupted_and_goes_on(store):
    code = (
        "import sys, json, pathlib; from solrl_tasks.store.root import Store;"
        "from solrl_tasks.store.runs import Run;"
        "run = Run.open(Store(pathlib.Path(sys.argv[1])), 'demo', json.loads(sys.argv[2]));"
        "run.commit_summary(0, {'a': 1}); print('ready', flush=True); sys.stdin.read()"
    )
    arguments = [sys.executable, "-c", code, str(store.root), json.dumps(CONFIG)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"ready\n"
        (info,) = list_runs(store)
        assert info.status == "running" and info.holder["pid"] == child.pid
        child.kill()
    assert list_runs(store)[0].status == "interrupted"
    with Run.open(store, "demo", CONFIG) as run:
        assert run.summaries() == {0: {"a": 1}}


def test_the_journal_adds_up_by_stage(tmp_path):
    journal = Journal(tmp_path / "spent.jsonl")
    assert journal.entries() == [] and journal.totals() == {}
    journal.append({"stage": "explore", "iteration": 0, "seconds": 1.5})
    journal.append({"stage": "explore", "iteration": 1, "seconds": 2})
    journal.append({"stage": "update", "iteration": 1, "seconds": 0.25, "note": "ü\n"})
    assert journal.totals() == {"explore": 3.5, "update": 0.25}
    assert journal.totals(iteration=1) == {"explore": 2.0, "update": 0.25}
    assert journal.shares(1) == (journal.totals(1), journal.totals())
    assert journal.entries()[2]["note"] == "ü\n"


def test_a_torn_line_costs_only_itself_wherever_it_is_torn(tmp_path):
    journal = Journal(tmp_path / "spent.jsonl")
    journal.append({"stage": "a", "seconds": 1.0})
    whole = journal.path.read_bytes()
    journal.append({"stage": "a", "seconds": 2.0})
    second = journal.path.read_bytes()[len(whole) :]
    for length in range(len(second) - 1):
        journal.path.write_bytes(whole + second[:length])
        journal.append({"stage": "a", "seconds": 4.0})
        assert journal.totals() == {"a": 5.0}
    journal.path.write_bytes(whole + second[:-1])
    journal.append({"stage": "a", "seconds": 4.0})
    assert journal.totals() == {"a": 7.0}


def test_what_was_summed_up_is_not_read_again(tmp_path, monkeypatch):
    journal, others = Journal(tmp_path / "spent.jsonl"), Journal(tmp_path / "spent.jsonl")
    parsed = []
    monkeypatch.setattr("solrl_tasks.store.journal._parse", lambda line: parsed.append(line) or _parse(line))
    for step in range(5):
        journal.append({"stage": "a", "iteration": step, "seconds": 1.0})
        others.append({"stage": "b", "iteration": step, "seconds": 2.0})
        assert journal.totals(step) == {"a": 1.0, "b": 2.0}
        assert journal.totals() == {"a": step + 1.0, "b": 2.0 * (step + 1)}
    assert len([line for line in parsed if line]) == 10
    journal.path.unlink()
    assert journal.totals() == {}


def test_a_damaged_line_does_not_count(tmp_path, caplog):
    journal = Journal(tmp_path / "spent.jsonl")
    for _ in range(2):
        journal.append({"stage": "a", "seconds": 1.0})
    data = journal.path.read_bytes()
    journal.path.write_bytes(data.replace(b"1.0", b"9.0", 1))
    assert journal.totals() == {"a": 1.0}
    assert "line 1 is torn or damaged" in caplog.text


@pytest.mark.parametrize("entry", [{"seconds": 1.0}, {"stage": "a"}, {"stage": "a", "seconds": -1.0}, {"stage": 1}])
def test_an_entry_needs_stage_and_seconds(tmp_path, entry):
    with pytest.raises(ValueError, match="needs a stage and its seconds"):
        Journal(tmp_path / "spent.jsonl").append(entry)


def test_a_field_that_came_later_has_its_default_in_earlier_runs(store):
    with Run.open(store, "run", {"lr": 1.0, "iterations": 2}):
        pass

    def complete(config):
        return {"resolution": None, **config}

    with Run.open(store, "run", {"lr": 1.0, "iterations": 2, "resolution": None}, complete):
        pass
    with (
        pytest.raises(errors.ConfigChangedError, match="resolution"),
        Run.open(store, "run", {"lr": 1.0, "iterations": 2, "resolution": 32}, complete),
    ):
        pass
