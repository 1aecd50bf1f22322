"""The NVFP4 engine where it cannot run: what it says, and what it asks Transformer Engine for."""

import contextlib
import sys
import types

import pytest
import torch
from torch import nn

from solrl_tasks.config.extensions import build
from solrl_tasks.engines import nvfp4
from solrl_tasks.engines.base import Availability, EngineError, report_engines, require_engine
from solrl_tasks.engines.nvfp4 import NVFP4Engine
from solrl_tasks.models.scope import LayerScope
from tests.support import fake_transformer_engine as fake

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def blackwell(monkeypatch):
    """A GPU as far as torch is asked; whether it has NVFP4 is for the stand-in to say."""
    monkeypatch.setattr(nvfp4, "device_present", lambda device: Availability(True, "runs on a GPU"))
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (10, 0))


def test_a_cpu_is_refused_without_a_look_at_transformer_engine(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformer_engine", None)
    assert NVFP4Engine.available(CPU) == Availability(
        False, "needs a GPU of compute capability 10.0 or higher, this is cpu"
    )
    with pytest.raises(
        EngineError, match=r"'nvfp4' cannot run.*capability 10\.0.*Available here: bf16.*nvfp4-emulated"
    ):
        require_engine("nvfp4", CPU)
    assert report_engines(CPU)["nvfp4"].ok is False


@pytest.mark.usefixtures("blackwell")
def test_an_absent_package_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformer_engine", None)
    found = NVFP4Engine.available(GPU)
    assert found == Availability(False, "transformer_engine is not installed: pip install 'sol-rl[te]'")


@pytest.mark.usefixtures("blackwell")
def test_the_reason_is_transformer_engines_own(monkeypatch):
    reason = "Device compute capability 10.0 or higher required for NVFP4 execution."
    fake.install(monkeypatch, available=(False, reason))
    assert NVFP4Engine.available(GPU) == Availability(False, reason)


@pytest.mark.usefixtures("blackwell")
@pytest.mark.parametrize(("capability", "documented"), [((10, 0), True), ((10, 3), True), ((12, 0), False)])
def test_what_was_never_run_is_said_to_be_unverified(monkeypatch, capability, documented):
    fake.install(monkeypatch)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    found = NVFP4Engine.available(GPU)
    assert found.ok
    assert "unverified" in found.reason
    assert ("compute capability 12.0 is not the one" in found.reason) is not documented


@pytest.mark.usefixtures("blackwell")
@pytest.mark.parametrize("version", ["2.19.0", "1.13", "unknown"])
def test_a_release_without_the_recipes_fields_is_refused(monkeypatch, version):
    fake.install(monkeypatch, version=version)
    found = NVFP4Engine.available(GPU)
    assert not found.ok
    assert f"transformer_engine {version} is too old: 2.20 or newer" in found.reason


@pytest.mark.usefixtures("blackwell")
def test_availability_never_raises(monkeypatch):
    pytorch = fake.install(monkeypatch)

    def fail(return_reason):
        raise RuntimeError("driver lost\nmore")

    monkeypatch.setattr(pytorch, "is_nvfp4_available", fail)
    assert NVFP4Engine.available(GPU).reason == "transformer_engine cannot say whether it has NVFP4: driver lost"
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch", None)
    assert (
        NVFP4Engine.available(GPU).reason
        == "transformer_engine cannot be imported: it needs transformer_engine.pytorch"
    )


@pytest.mark.usefixtures("blackwell")
def test_a_package_that_fails_while_it_is_imported_is_not_called_absent(monkeypatch, tmp_path):
    (tmp_path / "transformer_engine").mkdir()
    (tmp_path / "transformer_engine" / "__init__.py").write_text("raise OSError('libnvrtc.so: no such file')")
    for name in [name for name in sys.modules if name.split(".")[0] == "transformer_engine"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    found = NVFP4Engine.available(GPU)
    assert found.reason == "transformer_engine cannot be imported: libnvrtc.so: no such file"


@pytest.mark.parametrize(
    ("options", "square", "by_row"),
    [({}, False, False), ({"weight_block": "16x16"}, True, False), ({"activation_scale": "row"}, False, True)],
)
def test_the_recipe_leaves_nothing_to_the_environment(options, square, by_row):
    engine = build("engine", "nvfp4", options, CPU)
    asked = {}
    recipes = types.SimpleNamespace(NVFP4BlockScaling=lambda **fields: asked.update(fields))
    engine._choose_recipe().build(recipes)
    assert asked == {
        "disable_rht": True, "disable_stochastic_rounding": True, "disable_2d_quantization": not square,
        "row_scaled_activation": by_row, "nvfp4_4over6": "none", "backward_override": None,
    }  # fmt: skip


def test_the_record_says_what_was_not_run(monkeypatch):
    fake.install(monkeypatch)
    engine = build("engine", "nvfp4", {"weight_block": "16x16"}, CPU)
    engine.attach(nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 48)).bfloat16(), LayerScope((".*",)))
    record = engine.record()
    assert record.kind == "real"
    assert record.compute.startswith("nvfp4 tensor cores (written without such hardware")
    assert record.compute.endswith("by transformer_engine 2.20.2")
    assert record.replaced == ("0",)
    assert record.skipped == {"1": "48 output features are not a multiple of 32"}
    assert NVFP4Engine.numerics(engine.options, "sm_100") == {
        "matmul": "nvfp4 by transformer_engine, accumulated in float32",
        "merge": "float32, rounded to bfloat16, then quantised",
        "activation_scale": "tensor", "weight_block": "16x16", "execution": "compiled",
    }  # fmt: skip
