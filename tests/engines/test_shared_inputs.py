"""Equal calls in one graph are made once, unless something was written to between them."""

import pytest
import torch
from torch import nn

from solrl_tasks.config.extensions import build
from solrl_tasks.engines.kernels.nvfp4 import operator
from solrl_tasks.engines.nvfp4_emulated import NVFP4EmulatedEngine
from solrl_tasks.engines.shared_inputs import merge_equal_calls
from solrl_tasks.models.lora import LoraState
from solrl_tasks.models.scope import LayerScope

quantize = operator("cpu")
torch.manual_seed(0)
WEIGHT = torch.randn(32, 32)


def add_one(x):
    return x.add_(1)


CASES = {
    "equal": (lambda x: (quantize(x, False)[0], quantize(x, False)[0]), 1),
    "thrice": (lambda x: (quantize(x, True)[1], quantize(x, True)[0], quantize(x, True)[0]), 2),
    "arithmetic between": (lambda x: (quantize(x, False)[0] @ WEIGHT, quantize(x, False)[0] + x.abs()), 1),
    "other mode": (lambda x: (quantize(x, False)[0], quantize(x, True)[0]), 0),
    "other tensor": (lambda x: (quantize(x, False)[0], quantize(x * 2, False)[0]), 0),
    "method in place": (lambda x: (quantize(x, False)[0], add_one(x), quantize(x, False)[0]), 0),
    "into an output": (lambda x: (quantize(x, False)[0], torch.neg(x, out=x), quantize(x, False)[0]), 0),
    "item assignment": (lambda x: (quantize(x, False)[0], x.__setitem__(0, 3.0), quantize(x, False)[0]), 0),
    "function in place": (
        lambda x: (quantize(x, False)[0], nn.functional.relu(x, inplace=True), quantize(x, False)[0]),
        0,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_calls_are_merged_where_their_arguments_are_the_same(name):
    function, expected = CASES[name]
    merged = []

    def backend(graph, inputs):
        merged.append(merge_equal_calls(graph))
        return graph

    torch._dynamo.reset()
    x = torch.randn(8, 32)
    with torch.no_grad():
        eager = function(x.clone())
        compiled = torch.compile(function, backend=backend, fullgraph=True, dynamic=False)(x.clone())
    assert merged == [expected]
    for one, other in zip(eager, compiled, strict=True):
        assert one is other is None or torch.equal(one, other)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(32, 32) for _ in range(4))
        self.mix = nn.Conv2d(32, 32, 1)

    def forward(self, x):
        y = self.out(self.q(x) * self.k(x).sigmoid() + self.v(x))
        return self.mix(y.transpose(1, 2)[..., None])[..., 0].transpose(1, 2)


@pytest.mark.parametrize("options", [{}, {"activation_scale": "row", "weight_block": "16x16"}])
def test_a_compiled_twin_quantises_a_shared_input_once_and_has_the_bits_of_an_eager_one(options, monkeypatch):
    merged = []

    def backend(graph, inputs):
        merged.append(merge_equal_calls(graph))
        return graph

    monkeypatch.setattr(NVFP4EmulatedEngine, "backend", staticmethod(backend))
    torch._dynamo.reset()
    net = nn.ModuleDict({"blocks": nn.ModuleList([Attention(), Attention()])}).eval().requires_grad_(False)
    x = torch.randn(3, 5, 32)
    lora = LoraState(2, 2.0, {"blocks.1.k.lora_A": torch.randn(2, 32), "blocks.1.k.lora_B": torch.randn(32, 2)})
    outputs = []
    for execution in ("eager", "compiled"):
        engine = build("engine", "nvfp4-emulated", {**options, "execution": execution}, torch.device("cpu"))
        engine.attach(net, LayerScope((r"blocks\..*",)))
        for policy in (None, lora):
            engine.sync(policy)
            with torch.no_grad():
                outputs.append([block(x) for block in engine.module["blocks"]])
    for before, after in zip(outputs[:2], outputs[2:], strict=True):
        assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert not torch.equal(outputs[0][1], outputs[1][1])
    assert merged == [2], "one graph for both blocks and both policies, two quantisations of q, k and v less"
