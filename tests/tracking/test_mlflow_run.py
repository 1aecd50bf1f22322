import math
import socket
import time
from contextlib import closing
from pathlib import Path

import pytest
from mlflow import MlflowClient

from solrl_tasks.tracking import mlflow_run
from solrl_tasks.tracking.devices import device_kind
from solrl_tasks.tracking.mlflow_client import TrackingError
from solrl_tasks.tracking.mlflow_files import RunFiles
from solrl_tasks.tracking.mlflow_run import SENDING, SENT, SUPERSEDED, flatten, publish, publish_or_note
from solrl_tasks.tracking.points import points


@pytest.fixture
def root(tmp_path):
    return tmp_path / "artifacts"


def shown(uri, run_id):
    """Everything MLflow has of a run's metrics, as sorted points."""
    client = MlflowClient(tracking_uri=uri)
    names = client.get_run(run_id).data.metrics
    history = [metric for name in names for metric in client.get_metric_history(run_id, name)]
    return sorted((m.step, m.key, m.value, m.timestamp) for m in history)


def held(summaries):
    return sorted((p.step, p.name, p.value, p.timestamp_ms) for s in summaries for p in points(s))


def test_publishing_twice_gives_each_point_once(uri, root, facts, history):
    first = publish(history, facts, uri, artifact_root=root)
    again = publish(history, facts, uri, artifact_root=root)
    assert again.run_id == first.run_id
    assert shown(uri, first.run_id) == held(history)


def test_publishing_as_the_run_goes_on_equals_publishing_at_the_end(uri, root, facts, history):
    for count in range(1, len(history) + 1):
        run = publish(history[:count], facts, uri, artifact_root=root)
    assert shown(uri, run.run_id) == held(history)
    late = publish(history, facts.model_copy(update={"store_id": "copy"}), uri, artifact_root=root)
    assert late.run_id != run.run_id
    assert shown(uri, late.run_id) == shown(uri, run.run_id)


@pytest.mark.parametrize("survivor", ["set_tag", "log_batch", "nothing"])
def test_killed_while_sending_goes_on_without_doubles(uri, root, facts, history, monkeypatch, survivor):
    publish(history[:2], facts, uri, artifact_root=root)
    calls = {"log_batch": MlflowClient.log_batch, "set_tag": MlflowClient.set_tag}

    def die_after(name):
        def call(self, *args, **kwargs):
            calls[name](self, *args, **kwargs)
            raise KeyboardInterrupt

        return call

    def die(self, *args, **kwargs):
        raise KeyboardInterrupt

    if survivor == "nothing":
        monkeypatch.setattr(MlflowClient, "set_tag", die)
    else:
        monkeypatch.setattr(MlflowClient, survivor, die_after(survivor))
    with pytest.raises(KeyboardInterrupt):
        publish(history, facts, uri, artifact_root=root)
    monkeypatch.undo()
    run = publish(history, facts, uri, artifact_root=root)
    assert run.notes == ()
    assert shown(uri, run.run_id) == held(history)


def test_a_summary_measured_again_is_never_mixed_into_the_old_run(uri, root, facts, history, make_summary):
    old = publish(history, facts, uri, artifact_root=root)
    changed = [*history[:3], make_summary(3, metrics={"eval/scene": 0.9})]
    new = publish(changed, facts, uri, artifact_root=root)
    assert new.run_id != old.run_id
    assert "other values or times up to step 3" in new.notes[0]
    assert shown(uri, old.run_id) == held(history)
    assert shown(uri, new.run_id) == held(changed)
    kept = MlflowClient(tracking_uri=uri).get_run(old.run_id)
    assert kept.data.tags[SUPERSEDED] == new.run_id
    assert kept.info.status == "KILLED"
    assert publish(changed, facts, uri, artifact_root=root) == new.model_copy(update={"notes": ()})


def test_a_store_that_lost_iterations_gets_a_run_of_its_own(uri, root, facts, history):
    old = publish(history, facts, uri, artifact_root=root)
    new = publish(history[:1], facts, uri, artifact_root=root)
    assert new.run_id != old.run_id
    assert "step 3, which the store does not hold" in new.notes[0]


def test_values_sent_but_not_marked_as_sent_are_known_again(uri, root, facts, history, make_summary):
    run = publish(history, facts, uri, artifact_root=root)
    client = MlflowClient(tracking_uri=uri)
    client.delete_tag(run.run_id, SENT)
    other = [*history[:3], make_summary(3, timestamp_ms=5)]
    assert publish(other, facts, uri, artifact_root=root).run_id != run.run_id
    assert client.get_run(run.run_id).data.tags[SENDING].startswith("3:")


def test_two_stores_with_one_run_id_do_not_displace_each_other(uri, root, facts, history):
    other = facts.model_copy(update={"store_id": "store-2"})
    ours, theirs = publish(history[:1], facts, uri, None, "RUNNING", root), publish(history, other, uri)
    assert ours.run_id != theirs.run_id
    again = publish(history[:2], facts, uri)
    assert (again.run_id, again.notes) == (ours.run_id, ())


def test_a_run_deleted_in_mlflow_is_made_again(uri, root, facts, history):
    old = publish(history, facts, uri, artifact_root=root)
    MlflowClient(tracking_uri=uri).delete_run(old.run_id)
    new = publish(history, facts, uri, artifact_root=root)
    assert new.run_id != old.run_id
    assert shown(uri, new.run_id) == held(history)


def test_a_deleted_experiment_is_named_with_the_remedy(uri, root, facts, history):
    publish(history, facts, uri, artifact_root=root)
    client = MlflowClient(tracking_uri=uri)
    client.delete_experiment(client.get_experiment_by_name("solrl").experiment_id)
    with pytest.raises(TrackingError, match="mlflow experiments restore"):
        publish(history, facts, uri, artifact_root=root)


def test_params_and_tags_say_what_ran(uri, root, facts, history):
    run = publish(history, facts, uri, artifact_root=root)
    data = MlflowClient(tracking_uri=uri).get_run(run.run_id).data
    assert data.params["explore.engine.name"] == "nvfp4-emulated"
    assert data.params["config_digest"] == facts.config_digest
    assert data.tags["solrl.engine.nvfp4-emulated"] == "emulated"
    assert data.tags["solrl.device_kind"] == "cpu"
    assert "hours of the CPU device" in data.tags["mlflow.note.content"]


def test_a_run_without_an_environment_record_says_so_until_one_is_known(uri, root, facts, history):
    where = [device_kind(record) for record in ({}, {"device_class": "cpu"}, {"device_class": "sm_90"})]
    assert where == ["unknown", "cpu", "cuda"]
    run = publish(history[:1], facts.model_copy(update={"device_kind": "unknown"}), uri, artifact_root=root)
    client = MlflowClient(tracking_uri=uri)
    tags = client.get_run(run.run_id).data.tags
    assert tags["solrl.device_kind"] == "unknown" and "is not known" in tags["mlflow.note.content"]
    publish(history, facts, uri, artifact_root=root)
    tags = client.get_run(run.run_id).data.tags
    assert tags["solrl.device_kind"] == "cpu" and "hours of the CPU device" in tags["mlflow.note.content"]
    client.set_tag(run.run_id, "mlflow.note.content", "my own words")
    publish(history, facts, uri, artifact_root=root)
    assert client.get_run(run.run_id).data.tags["mlflow.note.content"] == "my own words"


def test_the_number_of_iterations_may_grow(uri, root, facts, history):
    first = publish(history[:2], facts, uri, artifact_root=root)
    longer = facts.model_copy(update={"recipe": facts.recipe | {"iterations": 9}})
    run = publish(history, longer, uri, artifact_root=root)
    client = MlflowClient(tracking_uri=uri)
    assert run.run_id == first.run_id
    assert client.get_run(run.run_id).data.tags["solrl.iterations"] == "9"
    config = client.download_artifacts(run.run_id, "config.yaml", str(root))
    assert "iterations: 9" in Path(config).read_text()


def test_another_recipe_is_another_run(uri, root, facts, history):
    first = publish(history, facts, uri, artifact_root=root)
    other = facts.model_copy(update={"recipe": facts.recipe | {"seed": 43}})
    run = publish(history, other, uri, artifact_root=root)
    assert run.run_id != first.run_id
    assert "recipe differs" in run.notes[0]


def test_status_follows_the_run(uri, root, facts, history):
    client = MlflowClient(tracking_uri=uri)
    run_id = publish(history[:2], facts, uri, None, "KILLED", root).run_id
    assert client.get_run(run_id).info.status == "KILLED"
    publish(history[:3], facts, uri)
    assert client.get_run(run_id).info.status == "RUNNING"
    publish(history, facts, uri, status="FINISHED")
    ended = client.get_run(run_id).info
    assert (ended.status, ended.end_time) == ("FINISHED", history[-1].timestamp_ms)
    assert ended.start_time == history[0].timestamp_ms


def test_pools_are_dataset_inputs_once(uri, root, facts, history):
    for _ in range(2):
        run = publish(history, facts, uri, artifact_root=root)
    inputs = MlflowClient(tracking_uri=uri).get_run(run.run_id).inputs.dataset_inputs
    assert sorted(item.dataset.name for item in inputs) == [f"pool/{step:024x}" for step in (1, 2, 3)]


def test_images_and_adapter_are_logged_once(uri, root, facts, make_summary, iteration_folder, tmp_path):
    summaries = [make_summary(0), make_summary(1, images=["grid.png"]), make_summary(2, images=["grid.png"])]
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "pytorch_lora_weights.safetensors").write_bytes(b"weights")
    files = RunFiles(iteration_folder, (2, adapter))
    run = publish(summaries, facts, uri, files, artifact_root=root)
    times = {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}
    client = MlflowClient(tracking_uri=uri)
    assert [e.path for e in client.list_artifacts(run.run_id, "samples")] == [
        "samples/iter-0001.png",
        "samples/iter-0002.png",
    ]
    stored = client.download_artifacts(run.run_id, "policy/iter-0002/adapter")
    assert [path.name for path in Path(stored).iterdir()] == ["pytorch_lora_weights.safetensors"]
    publish(summaries, facts, uri, files, artifact_root=root)
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()} == times


def test_an_image_cut_short_is_logged_again(uri, root, facts, make_summary, iteration_folder):
    summaries = [make_summary(0, images=["grid.png"])]
    files = RunFiles(iteration_folder)
    publish(summaries, facts, uri, files, artifact_root=root)
    (logged,) = root.rglob("iter-0000.png")
    whole = logged.read_bytes()
    logged.write_bytes(whole[:20])
    publish(summaries, facts, uri, files, artifact_root=root)
    assert logged.read_bytes() == whole


def test_an_image_that_is_gone_is_told(uri, root, facts, make_summary, iteration_folder):
    run = publish([make_summary(0, images=["lost.png"])], facts, uri, RunFiles(iteration_folder), artifact_root=root)
    assert "lost.png" in run.notes[0]


def test_a_server_that_is_down_is_a_note_at_once_and_made_up_for_later(uri, root, facts, history):
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    notes: list[str] = []
    started = time.monotonic()
    assert publish_or_note(notes.append, history[:2], facts, f"http://127.0.0.1:{port}") is None
    assert time.monotonic() - started < 10
    assert "does not answer" in notes[0]
    assert "solrl track rebuild demo" in notes[0]
    run = publish_or_note(notes.append, history, facts, uri, artifact_root=root)
    assert shown(uri, run.run_id) == held(history)
    assert len(notes) == 1


@pytest.mark.parametrize("error", [RuntimeError("odd"), OSError("disk full"), ValueError("no")])
def test_no_fault_of_tracking_reaches_the_run(uri, root, facts, history, monkeypatch, error):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(mlflow_run, "_send", fail)
    notes: list[str] = []
    assert publish_or_note(notes.append, history, facts, uri, artifact_root=root) is None
    assert str(error) in notes[0]


def test_a_wrong_address_is_told(facts, history):
    notes: list[str] = []
    assert publish_or_note(notes.append, history, facts, "nonsense://place") is None
    assert publish_or_note(notes.append, history, facts, "http://") is None
    assert len(notes) == 2


def test_flatten_gives_dotted_names_and_cuts_what_is_too_long():
    flat = flatten({"a": {"b": 1, "c": [1, 2]}, "d": [{"name": "x"}], "e": {}, "f": "y" * 9000})
    assert flat["a.b"] == "1"
    assert flat["a.c"] == "[1, 2]"
    assert flat["d.0.name"] == "x"
    assert flat["e"] == "{}"
    assert len(flat["f"]) == 6000
    assert flat["f"].endswith("…")


def test_nothing_that_is_not_finite_is_in_mlflow(uri, root, facts, history):
    run = publish(history, facts, uri, artifact_root=root)
    assert all(math.isfinite(value) for _, _, value, _ in shown(uri, run.run_id))
