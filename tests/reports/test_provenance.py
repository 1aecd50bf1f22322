import pytest

from solrl_tasks.reports.provenance import engine_kind, hardware_name, provenance

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
