"""Engines on Transformer Engine, with a stand-in for it: layers, syncs, padding, breaks in graphs, recordings."""

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from solrl_tasks.engines.base import EngineError
from solrl_tasks.engines.cuda_graphs import LIMIT, Replayed
from solrl_tasks.models.lora import LoraState
from solrl_tasks.models.scope import LayerScope
from tests.support import fake_transformer_engine as fake
from tests.support.te_fp8 import FP8Engine, record_by_running

CPU = torch.device("cpu")
BLOCKS = LayerScope((r"blocks\..*",))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(32, 64), nn.Linear(32, 64, bias=False)
        self.mix = nn.Conv2d(64, 32, 1)

    def forward(self, x):
        y = self.q(x) * self.k(x).sigmoid()
        return x + self.mix(y.transpose(1, 2)[..., None])[..., 0].transpose(1, 2)


class Net(nn.Module):
    def __init__(self, blocks=3):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.out = nn.Linear(32, 16)

    def forward(self, x, scale=1.0):
        for block in self.blocks:
            x = block(x)
        return (self.out(x) * scale,)


def make_net(blocks=3, dtype=torch.bfloat16):
    torch.manual_seed(0)
    return Net(blocks).to(dtype).eval().requires_grad_(False)


def draw(rows=2, tokens=5, dtype=torch.bfloat16, seed=0):
    return torch.randn(rows, tokens, 32, generator=torch.Generator().manual_seed(seed)).to(dtype)


def make_lora(path="blocks.1.q", seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs, outputs = {"blocks.1.q": (32, 64), "blocks.0.mix": (64, 32), "out": (32, 16)}[path]
    weights = {
        f"{path}.lora_A": torch.randn(2, inputs, generator=generator),
        f"{path}.lora_B": torch.randn(outputs, 2, generator=generator),
    }
    return LoraState(2, 2.0, weights)


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    monkeypatch.setattr(FP8Engine, "backend", "eager")
    monkeypatch.setattr(FP8Engine, "_recorder", lambda self: record_by_running)
    torch._dynamo.reset()
    counters.clear()
    yield fake.install(monkeypatch)
    torch._dynamo.reset()


def attach(net, **options):
    engine = FP8Engine(FP8Engine.Options(**options), CPU)
    engine.attach(net, BLOCKS)
    engine.sync(None)
    return engine


@torch.no_grad()
def run(module, x=None):
    return module(draw() if x is None else x)[0]


def relative(found, expected):
    return ((found - expected).float().norm() / expected.float().norm()).item()


def test_the_twin_is_near_the_base_and_the_base_is_left_alone():
    net = make_net()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    engine = attach(net)
    assert len(engine.record().replaced) == 9
    assert 1e-4 < relative(run(engine.module), run(net)) < 0.05
    assert net.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert {type(layer) for layer in net.modules()} == {Net, Block, nn.Linear, nn.Conv2d, nn.ModuleList}


def test_no_module_owns_quantised_weights_and_biases_are_shared():
    net = make_net()
    engine = attach(net)
    assert {name.rpartition(".")[2] for name, _ in engine.module.named_parameters()} == {"bias", "weight"}
    assert {name for name, _ in engine.module.named_parameters() if name.endswith("weight")} == {"out.weight"}
    assert engine.module.blocks[0].q.bias is net.blocks[0].q.bias
    assert not list(engine.module.buffers())
    assert engine.memory() == {"data": 4 * 3 * 3 * 32 * 64, "scale_inv": 4 * 9}


@pytest.mark.parametrize("path", ["blocks.1.q", "blocks.0.mix"])
def test_a_sync_fills_the_same_storage(path):
    net = make_net()
    engine = attach(net)
    addresses = {
        (name, kept): tensor.data_ptr()
        for name, layer in engine._layers.items()
        for kept, tensor in layer.held().items()
    }
    before = run(engine.module)
    lora = make_lora(path)
    assert engine.sync(lora).synced == 1
    merged = make_net()
    weight = merged.get_submodule(path).weight
    weight += lora.delta(path).view_as(weight)
    assert relative(run(engine.module), run(merged)) < 0.1
    assert relative(run(engine.module), before) > 0.2
    engine.sync(None)
    assert torch.equal(run(engine.module), before)
    assert addresses == {
        (name, kept): tensor.data_ptr()
        for name, layer in engine._layers.items()
        for kept, tensor in layer.held().items()
    }


@pytest.mark.parametrize("tokens", [1, 4, 5, 8])
def test_rows_are_padded_with_zeros_and_cut(tokens):
    layer = attach(make_net()).module.blocks[0].q
    x = draw(rows=3, tokens=tokens)
    with torch.no_grad():
        found = layer(x)
        assert fake.State.rows[-1] == -(-3 * tokens // 8) * 8
        whole = layer(torch.cat([x.view(-1, 32), torch.zeros(24, 32, dtype=x.dtype)])[:24])
    assert found.shape == (3, tokens, 64)
    assert torch.equal(found.view(-1, 64), whole[: 3 * tokens])


def test_no_rows_give_no_rows():
    with torch.no_grad():
        assert attach(make_net()).module.blocks[0].q(draw(rows=0)).shape == (0, 5, 64)


def test_the_output_has_the_dtype_of_the_input():
    layer = attach(make_net()).module.blocks[0].q
    with torch.no_grad():
        assert torch.equal(layer(draw().float()), layer(draw()).float())


def test_gradients_are_refused_and_not_cut():
    with pytest.raises(EngineError, match="no gradients"):
        attach(make_net()).module.blocks[0].q(draw().requires_grad_())


def test_building_draws_no_random_numbers():
    torch.manual_seed(7)
    expected = torch.rand(1)
    net = make_net()
    torch.manual_seed(7)
    attach(net)
    assert torch.equal(torch.rand(1), expected)


def test_layers_that_cannot_be_computed_are_skipped_with_the_reason():
    net = nn.ModuleDict(
        {"a": nn.Linear(24, 32), "b": nn.Linear(32, 24), "c": nn.Linear(32, 32), "d": nn.Linear(32, 32)}
    ).bfloat16()
    net["d"].float()
    engine = FP8Engine(FP8Engine.Options(), CPU)
    engine.attach(net, LayerScope((".*",)))
    assert engine.record().replaced == ("c",)
    assert engine.record().skipped == {
        "a": "24 input features are not a multiple of 16",
        "b": "24 output features are not a multiple of 16",
        "d": "its weight is float32, not bfloat16: set model.dtype to bfloat16",
    }


def test_a_float32_network_is_refused_with_the_remedy():
    engine = FP8Engine(FP8Engine.Options(), CPU)
    with pytest.raises(EngineError, match=r"can replace no layer.*set model\.dtype to bfloat16"):
        engine.attach(make_net(dtype=torch.float32), BLOCKS)


def test_the_record_names_precision_and_package():
    engine = attach(make_net(), graphs=True)
    record = engine.record()
    assert (record.kind, record.compute) == ("real", "fp8, by transformer_engine 2.20.2")
    assert record.execution == "eager, replayed as CUDA graphs"
    assert engine.options.model_dump() == {}, "what changes no bit is in no key"


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_blocks_break_around_the_layers_and_share_their_graphs(backend, monkeypatch):
    monkeypatch.setattr(FP8Engine, "backend", backend)
    outputs, counts = [], []
    for blocks in (1, 3):
        net = make_net(blocks)
        compiled, eager = attach(net, execution="compiled"), attach(net)
        start = counters["stats"]["unique_graphs"]
        outputs.append((run(compiled.module), run(eager.module)))
        counts.append(counters["stats"]["unique_graphs"] - start)
        lora = make_lora("blocks.0.mix")
        compiled.sync(lora)
        eager.sync(lora)
        outputs.append((run(compiled.module), run(eager.module)))
        assert counters["stats"]["unique_graphs"] - start == counts[-1], "a sync made a graph"
    for found, expected in outputs:
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert counts[0] > 1
    assert counts[1] == 0, "further blocks need graphs of their own"


def test_too_many_shapes_of_a_compiled_twin_are_an_error_and_not_slow():
    engine = attach(make_net(1), execution="compiled")
    with pytest.raises(EngineError, match="fewer different shapes"):
        for rows in range(1, 20):
            run(engine.module, draw(rows))


@pytest.mark.parametrize("execution", ["eager", "compiled"])
def test_recordings_are_replayed_on_new_inputs_and_after_syncs(execution):
    net = make_net()
    engine, plain = attach(net, graphs=True, execution=execution), attach(net)
    assert engine.static_shapes
    assert engine.recordings == 0
    kept = []
    for lora in (None, make_lora(), make_lora(seed=1)):
        for each in (engine, plain):
            each.sync(lora)
        for seed in range(2):
            x = draw(seed=seed)
            kept.append((run(engine.module, x), run(plain.module, x)))
            assert engine.recordings == 1
    assert all(torch.equal(found, expected) for found, expected in kept)


def test_each_shape_and_option_has_a_recording():
    engine = attach(make_net(), graphs=True)
    run(engine.module, draw(2))
    run(engine.module, draw(3))
    run(engine.module, draw(2))
    assert engine.recordings == 2
    with torch.no_grad():
        (doubled,) = engine.module(draw(2), scale=2.0)
    assert engine.recordings == 3
    assert torch.equal(doubled, run(engine.module, draw(2)) * 2)


def test_recordings_serve_inference_mode_and_leave_it():
    engine = attach(make_net(), graphs=True)
    with torch.inference_mode():
        first = engine.module(draw())[0]
    assert torch.equal(run(engine.module), first)
    assert engine.recordings == 1


def test_exchanged_layers_end_recordings():
    net = make_net()
    engine, plain = attach(net, graphs=True), attach(net)
    run(engine.module)
    for each in (engine, plain):
        assert each.sync(make_lora("out")).synced == 1
    assert engine.recordings == 0
    assert torch.equal(run(engine.module), run(plain.module))
    engine.sync(make_lora("out", seed=1))
    assert engine.recordings == 1


def test_recordings_have_a_limit():
    replayed = Replayed(lambda x, n: (x * n,), CPU, record_by_running)
    for number in range(LIMIT):
        assert replayed(torch.ones(2), number)[0].tolist() == [number] * 2
    with pytest.raises(EngineError, match=r"8 different shapes.*option graphs"):
        replayed(torch.ones(2), -1)
    assert len(replayed) == LIMIT
    assert replayed(torch.full((2,), 3.0), 2)[0].tolist() == [6.0, 6.0]


def test_what_a_recording_was_given_can_be_written_to_and_what_it_gave_is_kept():
    replayed = Replayed(lambda x: (x + 1,), CPU, record_by_running)
    x = torch.zeros(2)
    first = replayed(x)[0]
    x += 10
    second = replayed(x)[0]
    assert (first.tolist(), second.tolist(), x.tolist()) == ([1, 1], [11, 11], [10, 10])
