"""The FP8 engine on a CPU: its layer against the stated formula, and what it says about itself."""

import pytest
import torch
from torch import nn

from solrl_tasks.config.extensions import build
from solrl_tasks.engines import fp8 as engines
from solrl_tasks.engines.base import EngineError
from solrl_tasks.engines.fp8_layer import Fp8Layer, QuantizedRows
from solrl_tasks.engines.numerics import fp8
from solrl_tasks.models.lora import LoraState
from solrl_tasks.models.scope import LayerScope

CPU = torch.device("cpu")
EVERYTHING = LayerScope(include=(".*",))


def make_layer(source=None, fused=True, bias=True):
    torch.manual_seed(0)
    source = source or nn.Linear(64, 48, bias=bias)
    layer = Fp8Layer(source.requires_grad_(False), fused)
    layer.load(source.weight.detach())
    return source, layer


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("fused", [True, False])
def test_a_layer_computes_the_stated_formula(bias, fused):
    source, layer = make_layer(fused=fused, bias=bias)
    x = torch.randn(5, 7, 64)
    left, right = fp8.quantize_rows(x), fp8.quantize_rows(source.weight)
    expected = left.dequantize().double() @ right.dequantize().double().t() + (source.bias.double() if bias else 0)
    found = layer(x)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected.view(5, 7, 48), rtol=1e-5, atol=1e-6)
    exact = source(x)
    assert 0.01 < (found - exact).norm() / exact.norm() < 0.06


def test_the_weights_are_those_of_the_quantiser():
    source, layer = make_layer()
    expected = fp8.quantize_rows(source.weight)
    assert torch.equal(layer.weight.view(torch.uint8), expected.values.view(torch.uint8))
    assert torch.equal(layer.weight_scale, expected.scale.t())
    assert layer.weight.dtype == torch.float8_e4m3fn
    assert layer.weight.is_contiguous() and layer.weight_scale.is_contiguous()


def test_the_output_has_the_dtype_of_the_input():
    _, layer = make_layer()
    x = torch.randn(9, 64).bfloat16()
    assert layer(x).dtype == torch.bfloat16
    assert torch.equal(layer(x), layer(x.float()).bfloat16())


@pytest.mark.parametrize("channels_last", [True, False])
def test_a_pointwise_convolution_is_a_linear_layer_over_positions(channels_last):
    torch.manual_seed(1)
    convolution = nn.Conv2d(64, 48, 1)
    linear = nn.Linear(64, 48)
    linear.load_state_dict({"weight": convolution.weight.detach().flatten(1), "bias": convolution.bias.detach()})
    _, one = make_layer(convolution)
    _, other = make_layer(linear)
    x = torch.randn(3, 64, 4, 5)
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
    found = one(x)
    assert found.shape == (3, 48, 4, 5)
    assert torch.equal(found, other(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))
    assert found.is_contiguous(memory_format=torch.channels_last)
    exact = convolution(x)
    assert (found - exact).norm() < 0.06 * exact.norm()


def test_quantised_rows_stand_for_their_tensor():
    _, layer = make_layer()
    x = torch.randn(2, 3, 64)
    rows = QuantizedRows(fp8.quantize_rows(x), x.shape, x.dtype)
    assert torch.equal(layer(rows), layer(x))
    _, convolution = make_layer(nn.Conv2d(64, 48, 1))
    image = torch.randn(2, 64, 3, 4)
    last = image.permute(0, 2, 3, 1)
    rows = QuantizedRows(fp8.quantize_rows(last), last.shape, last.dtype)
    assert torch.equal(convolution(rows), convolution(image).permute(0, 2, 3, 1))


def test_no_rows_give_no_rows():
    assert make_layer()[1](torch.empty(0, 7, 64)).shape == (0, 7, 48)


def test_a_row_does_not_depend_on_those_beside_it():
    """So an image has the same bits in every chunk, unlike with one scale for a whole input."""
    _, layer = make_layer()
    x = torch.randn(8, 64)
    whole = layer(x)
    torch.testing.assert_close(layer(x[:3]), whole[:3], rtol=1e-6, atol=1e-6)
    x[5] *= 1e4
    torch.testing.assert_close(layer(x)[:3], whole[:3], rtol=1e-6, atol=1e-6)


def test_gradients_are_refused_and_not_cut():
    _, layer = make_layer()
    with pytest.raises(EngineError, match="no gradients"):
        layer(torch.randn(4, 64, requires_grad=True))


def make_net(dtype=torch.float32):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 64), nn.Linear(64, 24), nn.Linear(24, 32))
    return net.to(dtype).requires_grad_(False)


def make_lora(paths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    net, weights = make_net(), {}
    for path in paths:
        count, columns = net.get_submodule(path).weight.shape
        weights[f"{path}.lora_A"] = torch.randn(4, columns, generator=generator)
        weights[f"{path}.lora_B"] = torch.randn(count, 4, generator=generator) / 8
    return LoraState(4, 6.0, weights)


def attach(net, **options):
    engine = build("engine", "fp8", options, CPU)
    engine.attach(net, EVERYTHING)
    return engine


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_adapter_is_merged_in_float32_and_then_quantised_once(dtype):
    net = make_net(dtype)
    engine = attach(net)
    lora = make_lora(["0"])
    engine.sync(lora)
    expected = fp8.quantize_rows(net[0].weight.float() + lora.delta("0"))
    assert torch.equal(engine.module[0].weight.view(torch.uint8), expected.values.view(torch.uint8))
    if dtype == torch.bfloat16:
        twice = fp8.quantize_rows((net[0].weight.float() + lora.delta("0")).bfloat16())
        assert not torch.equal(expected.values.view(torch.uint8), twice.values.view(torch.uint8))


def test_layers_that_the_adapter_does_not_touch_are_quantised_once(monkeypatch):
    engine = attach(make_net())
    engine.sync(make_lora(["0"]))
    written = []
    monkeypatch.setattr(Fp8Layer, "merge", lambda self, base, delta: written.append(self))
    engine.sync(make_lora(["0"], seed=1))
    assert written == [engine.module[0]]


def test_layers_of_other_sizes_are_skipped_with_the_reason():
    engine = attach(make_net())
    engine.sync(None)
    record = engine.record()
    assert record.replaced == ("0", "2")
    assert record.skipped == {
        "3": "24 output features are not a multiple of 16",
        "4": "24 input features are not a multiple of 16",
    }


def test_on_a_cpu_it_is_emulated_and_says_so():
    engine = attach(make_net())
    record = engine.record()
    assert (record.kind, engine.kind, record.execution) == ("emulated", "real", "eager")
    assert "emulated, summed in float32; 0 blocks with fused kernels" in record.compute
    assert record.options == {"fused": True}
    assert "emulated" in engine.available(CPU).reason
    on_cpu, on_gpu = (engine.numerics(engine.options, kind) for kind in ("cpu", "sm_90"))
    assert on_cpu["matmul"] != on_gpu["matmul"]
    assert engine.numerics(attach(make_net(), fused=False).options, "cpu") != on_cpu


def test_memory_is_a_byte_a_number_and_a_scale_a_row():
    engine = attach(make_net())
    assert engine.memory() == {"weight": 64 * 96 * 2, "weight_scale": 4 * (96 + 64)}


@pytest.mark.parametrize(
    ("capability", "installed", "reason"),
    [
        ((9, 0), True, None),
        ((8, 9), True, None),
        ((10, 0), True, None),
        ((8, 6), True, "needs compute capability 8.9 or higher, this device has 8.6"),
        ((9, 0), False, "Triton is not installed"),
    ],
)
def test_where_it_can_run(capability, installed, reason, monkeypatch):
    monkeypatch.setattr(engines, "device_present", lambda device: engines.Availability(True, "runs"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(engines, "triton_available", lambda: installed)
    found = engines.Fp8Engine.available(torch.device("cuda"))
    assert found.ok == (reason is None)
    assert reason is None or reason in found.reason
