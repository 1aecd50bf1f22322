import pytest

from solrl_tasks.bench.peaks import PEAKS, find_peaks, precision_of


def test_names_of_the_driver_find_their_entry():
    assert find_peaks("NVIDIA H200")["bf16"].rate == 790e12
    assert find_peaks("NVIDIA A100-SXM4-80GB")["bf16"].rate == 312e12


def test_unknown_hardware_has_no_peak():
    assert find_peaks("CPU (AVX512)") == {}


def test_every_entry_is_of_one_size_and_no_faster_in_practice():
    for peaks in PEAKS.values():
        assert "bf16" in peaks
        for peak in peaks.values():
            assert 1e14 < peak.nominal < 2e16
            assert peak.practical is None or peak.practical < peak.nominal


@pytest.mark.parametrize(
    ("engine", "kind", "expected"),
    [
        ("fp8", "real", "fp8"),
        ("nvfp4", "real", "nvfp4"),
        ("nvfp4-emulated", "emulated", "bf16"),
        ("bf16", "real", "bf16"),
    ],
)
def test_emulation_is_measured_against_what_it_runs_on(engine, kind, expected):
    assert precision_of(engine, kind) == expected
