"""The registry of engines, and what they say about themselves."""

import pytest
import torch

from solrl_tasks.config.extensions import UnknownExtensionError, build, list_extensions, parse_options
from solrl_tasks.engines.base import (
    Availability,
    EngineError,
    device_present,
    report_engines,
    require_engine,
)

CPU = torch.device("cpu")


def test_the_engines_that_exist():
    assert {"bf16", "fp8", "nvfp4-emulated"} <= set(list_extensions("engine"))


def test_these_engines_run_on_a_cpu_and_say_how():
    report = report_engines(CPU)
    assert all(report[name].ok for name in ("bf16", "fp8", "nvfp4-emulated"))
    assert "float32" in report["bf16"].reason
    assert "emulated" in report["fp8"].reason
    assert "emulated" in report["nvfp4-emulated"].reason


@pytest.mark.parametrize("name", ["int8", "no-such"])
def test_unknown_names_are_refused_with_the_names_there_are(name):
    with pytest.raises(UnknownExtensionError, match=f"{name!r}.*bf16, fp8, .*nvfp4-emulated"):
        require_engine(name, CPU)


def test_an_engine_that_cannot_run_names_those_that_can(monkeypatch):
    engine = list_extensions("engine")["nvfp4-emulated"]
    monkeypatch.setattr(engine, "available", classmethod(lambda cls, device: Availability(False, "no such unit")))
    with pytest.raises(EngineError, match=r"'nvfp4-emulated' cannot run.*no such unit.*Available here: bf16, fp8"):
        require_engine("nvfp4-emulated", CPU)
    assert require_engine("bf16", CPU).name == "bf16"


def test_a_device_that_torch_cannot_use_is_a_reason_and_not_an_exception():
    absent = torch.device("cuda", 99)
    assert not device_present(absent).ok
    assert not any(availability.ok for availability in report_engines(absent).values())
    with pytest.raises(EngineError, match="Available here: none"):
        require_engine("bf16", absent)


@pytest.mark.parametrize("name", ["bf16", "fp8", "nvfp4-emulated"])
def test_numerics_need_no_weights(name):
    engine = list_extensions("engine")[name]
    options = parse_options("engine", engine, {})
    cpu, gpu = engine.numerics(options, "cpu"), engine.numerics(options, "sm_90")
    assert cpu != gpu
    assert all(isinstance(value, str) for value in (*cpu.values(), *gpu.values()))


def test_options_are_part_of_the_numerics():
    engine = list_extensions("engine")["nvfp4-emulated"]
    described = [
        engine.numerics(parse_options("engine", engine, options), "cpu")
        for options in ({}, {"activation_scale": "row"}, {"weight_block": "16x16"})
    ]
    assert len({tuple(sorted(one.items())) for one in described}) == 3


def test_options_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match="activation_scale"):
        build("engine", "nvfp4-emulated", {"activation_scale": "column"}, CPU)
    with pytest.raises(ValueError, match="fast"):
        build("engine", "bf16", {"fast": True}, CPU)
