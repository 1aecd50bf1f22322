import pytest

from solrl_tasks.reports.provenance import engine_kind, hardware_name, joined, provenance

CPU = {"hardware": "AMD EPYC", "device_class": "cpu", "threads": 1}
H200 = {"hardware": "NVIDIA H200", "device_class": "sm_90", "threads": 16}


@pytest.mark.parametrize(
    ("name", "where", "kind"),
    [
        ("bf16", "cpu", "real"),
        ("fp8", "cpu", "emulated"),
        ("fp8", "sm_90", "real"),
        ("nvfp4-emulated", "sm_100", "emulated"),
        ("nvfp4", "sm_100", "real"),
        ("fp8", "unknown", "emulated"),
    ],
)
def test_whether_an_engine_is_real_depends_on_the_device(name, where, kind):
    assert engine_kind(name, where) == kind


def test_the_line_comes_from_the_record():
    assert provenance(H200, "fp8", "4 seeds").line == "Measured on NVIDIA H200; engine fp8 (real); 4 seeds"
    assert provenance(CPU, "fp8").line == "Measured on AMD EPYC (CPU, 1 thread); engine fp8 (emulated)"
    assert provenance(CPU).line == "Measured on AMD EPYC (CPU, 1 thread)"
    assert "computes in float32" in provenance(CPU, "bf16").line
    assert "computes in float32" not in provenance(H200, "bf16").line


def test_hardware_that_is_not_known_is_not_made_up():
    assert hardware_name({}) == ""
    assert provenance({}).line == "Measured, hardware not recorded"


def test_a_pool_of_several_environments_names_all_that_differ():
    old, new = ({**H200, "libraries": {"torch": version, "numpy": "2.0"}} for version in ("2.8", "2.9"))
    record = joined([old, None, new, CPU, {**old, "threads": 3}])
    assert hardware_name(record) == "NVIDIA H200 and AMD EPYC (CPU, 1 thread)"
    line = provenance(record, "fp8").line
    assert "engine fp8 (emulated)" in line, "it is real only where all of it is"
    assert "torch 2.8 and 2.9" in line and "numpy 2.0 and absent" in line
    assert provenance(joined([old, new]), "fp8").line.count("NVIDIA H200") == 1
    assert joined([record, CPU]) == record, "joined once more it is the same"


def test_one_environment_stays_as_it_was_recorded():
    assert joined([CPU, CPU]) == CPU and joined([None]) == {}
    assert provenance(joined([H200]), "fp8").line == provenance(H200, "fp8").line
