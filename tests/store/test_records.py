"""Environment records and differences between JSON trees."""

import subprocess
import sys

from solrl_tasks.store.keys import digest
from solrl_tasks.store.records import RecordShelf, decisive_differences, differences, environment_record, record_id


def test_a_record_is_json_that_names_what_matters():
    record = environment_record("cpu")
    assert record["device_class"] == "cpu" and record["threads"] >= 1 and record["hardware"]
    assert {"python", "torch", "numpy"} <= set(record["libraries"])
    assert record_id(record) == digest(record)[:16] == record_id(environment_record("cpu"))


def test_a_shelf_keeps_records_by_number(tmp_path):
    shelf = RecordShelf(tmp_path / "records")
    record = {"threads": 1}
    number = shelf.save(record)
    assert shelf.save(dict(record)) == number and shelf.load(number) == record
    assert len(list((tmp_path / "records").iterdir())) == 1
    assert shelf.load(number + 1) is None
    (tmp_path / "records" / f"{number:016x}.json").write_text("{")
    assert shelf.load(number) is None


def test_differences_name_fields():
    one = {"a": {"b": 1, "c": [1, {"d": 2}]}, "same": 1.5, "gone": None}
    other = {"a": {"b": 2, "c": [1, {"d": 3}]}, "same": 1.5, "new": [1]}
    expected = ["a.b: 1 -> 2", "a.c[1].d: 2 -> 3", "gone: None -> (absent)", "new: (absent) -> [1]"]
    assert differences(one, other) == expected
    assert differences(one, one) == []
    assert differences({"a": [1]}, {"a": [1, 2]}) == ["a: [1] -> [1, 2]"]
    assert differences({"a": 1}, {"a": 1.0}) == ["a: 1 -> 1.0"]
    assert len(differences({"a": "x" * 1000}, {"a": 1})[0]) < 200


def test_threads_decide_what_a_cpu_computes_and_not_what_a_gpu_does():
    for device_class, expected in (("cpu", ["threads: 1 -> 16"]), ("sm_90", [])):
        one, other = ({"device_class": device_class, "hardware": "Abacus", "threads": threads} for threads in (1, 16))
        assert decisive_differences(one, other) == expected
        assert decisive_differences(one, {**one, "hardware": "other"}) == ["hardware: 'Abacus' -> 'other'"]


def test_the_store_needs_no_orchestration_or_model_packages():
    code = (
        "import sys; import solrl_tasks.store.runs, solrl_tasks.store.gc, solrl_tasks.store.policies;"
        "assert not {'torch', 'prefect', 'mlflow', 'diffusers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
