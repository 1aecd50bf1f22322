"""The emulated engine: its layer against the stated formula, and the sharing of quantised inputs."""

import pytest
import torch
from torch import nn

from solrl_tasks.config.extensions import build
from solrl_tasks.engines.base import EngineError
from solrl_tasks.engines.numerics.nvfp4 import quantize_activation, quantize_weight
from solrl_tasks.engines.nvfp4_layer import ActivationQuantizer, NVFP4Layer
from solrl_tasks.models.scope import LayerScope

CPU = torch.device("cpu")
EVERYTHING = LayerScope(include=(".*",))


def make_layer(rows=48, columns=64, block="1x16", scale="tensor", bias=True):
    torch.manual_seed(0)
    source = nn.Linear(columns, rows, bias=bias)
    layer = NVFP4Layer(source, block, ActivationQuantizer(scale, torch.float32), torch.float32)
    layer.load(source.weight.detach())
    return source, layer


@pytest.mark.parametrize("block", ["1x16", "16x16"])
@pytest.mark.parametrize("scale", ["tensor", "row"])
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_computes_the_stated_formula(block, scale, bias):
    source, layer = make_layer(block=block, scale=scale, bias=bias)
    x = torch.randn(5, 7, 64)
    weight, inputs = (
        quantize_weight(source.weight.detach(), block),
        quantize_activation(x.view(35, 64), scale),
    )
    product = inputs.values.double() @ weight.values.double().t()
    expected = product * (inputs.scale * weight.scale).double() + (source.bias.double() if bias else 0)
    with torch.no_grad():
        found = layer(x)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected.view(5, 7, 48), rtol=1e-5, atol=1e-6)


def test_the_output_has_the_dtype_of_the_input():
    _, layer = make_layer()
    x = torch.randn(9, 64).bfloat16()
    with torch.no_grad():
        assert layer(x).dtype == torch.bfloat16
        assert torch.equal(layer(x), layer(x.float()).bfloat16())


def test_no_rows_give_no_rows():
    with torch.no_grad():
        assert make_layer()[1](torch.empty(0, 7, 64)).shape == (0, 7, 48)


def test_gradients_are_refused_and_not_cut():
    _, layer = make_layer()
    with pytest.raises(EngineError, match="no gradients"):
        layer(torch.randn(4, 64, requires_grad=True))


class Counting:
    def __init__(self):
        self.calls = 0

    def __call__(self, x, scale, out):
        self.calls += 1
        return quantize_activation(x, scale, out)


def make_counting():
    counting = Counting()
    return ActivationQuantizer("tensor", torch.float32, counting), counting


def test_the_same_tensor_is_quantised_once():
    quantizer, counting = make_counting()
    x = torch.randn(4, 8, 32)
    assert quantizer(x) is quantizer(x)
    assert counting.calls == 1
    assert quantizer(x).values.shape == (32, 32)


def test_a_tensor_that_was_written_to_is_quantised_again():
    quantizer, counting = make_counting()
    x = torch.randn(8, 32)
    quantizer(x)
    x.mul_(2)
    assert torch.equal(quantizer(x).scale, quantize_activation(x).scale)
    x[0].zero_()
    assert torch.equal(quantizer(x).values, quantize_activation(x).values)
    assert counting.calls == 3


def test_an_equal_tensor_is_another_tensor():
    quantizer, counting = make_counting()
    x = torch.randn(8, 32)
    quantizer(x)
    quantizer(x.clone())
    quantizer(x)
    assert counting.calls == 3


def test_a_tensor_in_the_place_of_a_dead_one_is_quantised():
    quantizer, counting = make_counting()
    for seed in range(20):
        x = torch.randn(8, 32, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(quantizer(x).values, quantize_activation(x).values)
        del x
    assert counting.calls == 20


def test_inputs_of_changing_shapes_share_memory_and_nothing_else():
    quantizer, _ = make_counting()
    for rows, columns in ((8, 32), (2, 16), (16, 64), (8, 32)):
        x = torch.randn(rows, columns)
        assert torch.equal(quantizer(x).values, quantize_activation(x).values)


def test_nothing_is_kept_of_tensors_that_do_not_count_their_writes():
    quantizer, counting = make_counting()
    with torch.inference_mode():
        x = torch.randn(8, 32)
        quantizer(x)
        x.mul_(2)
        assert torch.equal(quantizer(x).values, quantize_activation(x).values)
    quantizer(torch.randn(8, 32))
    assert counting.calls == 3


def test_an_error_leaves_no_stale_result():
    def fail_on_small(x, scale, out):
        out.zero_()
        if len(x) < 8:
            raise MemoryError
        return quantize_activation(x, scale, out)

    quantizer = ActivationQuantizer("tensor", torch.float32, fail_on_small)
    x = torch.randn(8, 32)
    quantizer(x)
    with pytest.raises(MemoryError):
        quantizer(torch.randn(4, 32))
    assert torch.equal(quantizer(x).values, quantize_activation(x).values)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(32, 32) for _ in range(4))

    def forward(self, x):
        return self.out(self.q(x) * self.k(x).sigmoid() + self.v(x))


def attached(**options):
    torch.manual_seed(0)
    net = Attention().eval()
    engine = build("engine", "nvfp4-emulated", options, CPU)
    engine.attach(net, EVERYTHING)
    engine.sync(None)
    return net, engine


def test_sharing_does_not_change_a_bit():
    net, engine = attached()
    x = torch.randn(10, 32)

    def alone(name, value):
        source = net.get_submodule(name)
        layer = NVFP4Layer(source, "1x16", ActivationQuantizer("tensor", torch.float32), torch.float32)
        layer.load(source.weight.detach())
        return layer(value)

    with torch.no_grad():
        q, k, v = (alone(name, x) for name in "qkv")
        assert torch.equal(engine.module(x), alone("out", q * k.sigmoid() + v))


def test_row_scales_remove_the_coupling_between_batch_mates():
    _, coupled = attached()
    _, free = attached(activation_scale="row")
    x = torch.randn(4, 6, 32)
    louder = x.clone()
    louder[1:] *= 50
    with torch.no_grad():
        assert torch.equal(free.module(x)[0], free.module(louder)[0])
        assert not torch.equal(coupled.module(x)[0], coupled.module(louder)[0])


def test_not_a_number_reaches_the_output():
    _, engine = attached(activation_scale="row")
    x = torch.randn(4, 32)
    x[2, 7] = float("nan")
    with torch.no_grad():
        assert engine.module(x).isnan().any(1).tolist() == [False, False, True, False]


def test_layers_that_are_not_whole_blocks_are_skipped_with_the_reason():
    net = nn.ModuleDict({"a": nn.Linear(24, 32), "b": nn.Linear(32, 24), "c": nn.Linear(32, 32)})
    engine = build("engine", "nvfp4-emulated", {"weight_block": "16x16"}, CPU)
    engine.attach(net, EVERYTHING)
    assert engine.record().replaced == ("c",)
    assert engine.record().skipped == {
        "a": "24 input features are not a multiple of 16",
        "b": "24 output features are not a multiple of 16",
    }
    assert engine.record().options == {"activation_scale": "tensor", "weight_block": "16x16"}


def test_a_network_without_any_suitable_layer_is_refused():
    engine = build("engine", "nvfp4-emulated", {}, CPU)
    with pytest.raises(EngineError, match=r"can replace no layer.*24 input features"):
        engine.attach(nn.ModuleDict({"a": nn.Linear(24, 32)}), EVERYTHING)
