"""Transformer Engine itself: the code of engine nvfp4 with a recipe that Hopper runs, and on Blackwell with its own."""

import threading

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from solrl_tasks.config.extensions import build
from solrl_tasks.engines.base import EngineError, require_engine
from solrl_tasks.engines.kernels import nvfp4 as kernels
from solrl_tasks.engines.numerics import nvfp4 as plain
from solrl_tasks.engines.nvfp4 import NVFP4Engine
from solrl_tasks.engines.te_layer import TransformerEngineError, load_transformer_engine
from solrl_tasks.models.lora import LoraState
from solrl_tasks.models.scope import LayerScope
from tests.support.te_fp8 import FP8Engine

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator"),
    pytest.mark.filterwarnings("default"),
]
CUDA = torch.device("cuda")
BLOCKS = LayerScope((r"blocks\..*",))
WIDTH = 256


@pytest.fixture(autouse=True)
def transformer_engine():
    try:
        found = load_transformer_engine()
    except TransformerEngineError as error:
        pytest.skip(str(error))
    torch._dynamo.reset()
    counters.clear()
    yield found
    torch._dynamo.reset()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=bias) for bias in (True, True, False))
        self.up, self.down = nn.Conv2d(WIDTH, 2 * WIDTH, 1), nn.Conv2d(2 * WIDTH, WIDTH, 1)

    def forward(self, x):
        y = self.norm(x)
        y = nn.functional.scaled_dot_product_attention(self.q(y), self.k(y), self.v(y))
        x = x + y
        y = self.norm(x).transpose(1, 2)[..., None]
        return x + self.down(nn.functional.silu(self.up(y)))[..., 0].transpose(1, 2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return (self.out(x),)


def make_net():
    torch.manual_seed(0)
    return Net().eval().requires_grad_(False).to(CUDA, torch.bfloat16)


def draw(rows=4, tokens=37, seed=0):
    return torch.randn(rows, tokens, WIDTH, generator=torch.Generator().manual_seed(seed)).to(CUDA, torch.bfloat16)


def make_lora(path="blocks.1.q", seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs, outputs = {"blocks.1.q": (WIDTH, WIDTH), "blocks.0.up": (WIDTH, 2 * WIDTH), "out": (WIDTH, WIDTH)}[path]
    weights = {
        f"{path}.lora_A": torch.randn(4, inputs, generator=generator) / 4,
        f"{path}.lora_B": torch.randn(outputs, 4, generator=generator) / 4,
    }
    return LoraState(4, 8.0, weights)


def attach(net, kind=FP8Engine, **options):
    engine = kind(kind.Options(**options), CUDA)
    engine.attach(net, BLOCKS)
    engine.sync(None)
    return engine


@torch.no_grad()
def run(module, x=None):
    return module(draw() if x is None else x)[0]


def relative(found, expected):
    return ((found.float() - expected.float()).norm() / expected.float().norm()).item()


def merged(lora):
    net = make_net()
    for path in lora.paths:
        weight = net.get_submodule(path).weight
        weight += lora.delta(path).to(CUDA).view_as(weight)
    return net


def addresses(engine):
    return {
        (path, name): tensor.data_ptr()
        for path, layer in engine._layers.items()
        for name, tensor in layer.held().items()
    }


def test_the_twin_is_near_the_base_and_the_base_is_left_alone():
    net = make_net()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    engine = attach(net, execution="eager")
    assert len(engine.record().replaced) == 15
    assert 1e-4 < relative(run(engine.module), run(net)) < 0.1
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    weights = sum(layer.weight.numel() for layer in net.modules() if isinstance(layer, (nn.Linear, nn.Conv2d)))
    assert weights - WIDTH**2 <= sum(engine.memory().values()) < 1.1 * weights
    assert "by transformer_engine" in engine.record().compute


@pytest.mark.parametrize("path", ["blocks.1.q", "blocks.0.up"])
def test_a_sync_fills_the_same_storage(path):
    net = make_net()
    engine = attach(net, execution="eager")
    held = addresses(engine)
    assert len(held) >= 2 * 15
    before = run(engine.module)
    lora = make_lora(path)
    assert engine.sync(lora).synced == 1
    assert relative(run(engine.module), run(merged(lora))) < 0.1
    assert relative(run(engine.module), before) > 0.02
    engine.sync(None)
    assert torch.equal(run(engine.module), before)
    assert addresses(engine) == held


@pytest.mark.parametrize("tokens", [1, 5, 8, 333])
def test_rows_are_padded_with_zeros_and_cut(tokens):
    layer = attach(make_net(), execution="eager").module.blocks[0].q
    x = draw(rows=3, tokens=tokens)
    whole = nn.functional.pad(x.view(-1, WIDTH), (0, 0, 0, -3 * tokens % 8))
    with torch.no_grad():
        found = layer(x)
        assert found.shape == x.shape
        assert torch.equal(found.view(-1, WIDTH), layer(whole)[: 3 * tokens])
        assert layer(x[:0]).shape == (0, tokens, WIDTH)


def test_a_pointwise_convolution_is_the_linear_layer_of_its_channels():
    net = make_net()
    layer = attach(net, execution="eager").module.blocks[0].up
    x = torch.randn(2, WIDTH, 8, 6, device=CUDA, dtype=torch.bfloat16)
    with torch.no_grad():
        found = layer(x)
        assert found.shape == (2, 2 * WIDTH, 8, 6)
        assert relative(found, net.blocks[0].up(x)) < 0.1
        assert torch.equal(layer(x.to(memory_format=torch.channels_last)), found)


@pytest.mark.parametrize("execution", ["eager", "compiled"])
def test_cuda_graphs_replay_new_inputs_and_new_weights(execution):
    net = make_net()
    engine, plain_twin = attach(net, execution=execution, graphs=True), attach(net, execution=execution)
    outputs = []
    for lora in (None, make_lora(), make_lora(seed=1)):
        for each in (engine, plain_twin):
            each.sync(lora)
        for seed in range(2):
            x = draw(seed=seed)
            outputs.append(run(engine.module, x))
            assert torch.equal(outputs[-1], run(plain_twin.module, x))
    assert engine.recordings == 1
    assert all(not torch.equal(outputs[0], other) for other in outputs[1:])
    run(engine.module, draw(rows=2))
    assert engine.recordings == 2


def test_another_thread_may_use_the_device_while_a_graph_is_recorded():
    engine = attach(make_net(), execution="eager", graphs=True)
    stop, failures = threading.Event(), []

    def work():
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                x = torch.ones(512, 512, device=CUDA)
                while not stop.is_set():
                    (x @ x.clone()).sum().item()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        first = run(engine.module)
    finally:
        stop.set()
        thread.join()
    assert not failures
    assert torch.equal(run(engine.module), first)


def test_exchanged_layers_end_recordings():
    engine = attach(make_net(), execution="eager", graphs=True)
    run(engine.module)
    lora = make_lora("out")
    engine.sync(lora)
    assert engine.recordings == 0
    assert relative(run(engine.module), run(merged(lora))) < 0.1


def test_compiled_blocks_break_around_the_layers_and_no_sync_makes_a_graph():
    net = make_net()
    compiled, eager = attach(net), attach(net, execution="eager")
    assert compiled.record().execution == "compiled"
    assert relative(run(compiled.module), run(eager.module)) < 0.06
    graphs = counters["stats"]["unique_graphs"]
    assert 1 < graphs < 20
    for seed in range(3):
        for engine in (compiled, eager):
            engine.sync(make_lora(seed=seed))
        assert relative(run(compiled.module), run(eager.module)) < 0.06
    assert counters["stats"]["unique_graphs"] == graphs


CAPABILITY = torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)


@pytest.mark.skipif(CAPABILITY >= (10, 0), reason="this GPU has NVFP4")
def test_nvfp4_is_refused_here_for_transformer_engines_reason():
    found = NVFP4Engine.available(CUDA)
    assert not found.ok
    assert "10.0 or higher required for NVFP4" in found.reason
    with pytest.raises(EngineError, match=r"'nvfp4' cannot run.*10\.0 or higher.*Available here:.*bf16"):
        require_engine("nvfp4", CUDA)


@pytest.mark.skipif(CAPABILITY < (10, 0), reason="NVFP4 needs compute capability 10.0")
@pytest.mark.parametrize("options", [{}, {"weight_block": "16x16"}, {"activation_scale": "row"}])
@pytest.mark.parametrize("graphs", [False, True])
def test_nvfp4_computes_what_its_emulation_does(options, graphs):
    net = make_net()
    engine = attach(net, NVFP4Engine, **options, execution="eager", graphs=graphs)
    emulated = build("engine", "nvfp4-emulated", {**options, "execution": "eager"}, CUDA)
    emulated.attach(net, BLOCKS)
    emulated.sync(None)
    assert relative(run(engine.module), run(emulated.module)) < 0.02
    held = addresses(engine)
    for each in (engine, emulated):
        each.sync(make_lora())
    assert relative(run(engine.module), run(emulated.module)) < 0.02
    assert addresses(engine) == held


@pytest.mark.parametrize("name", ["tensor", "row", "16x16"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_no_value_differs_from_the_reference_quantiser(name, dtype):
    reference = pytest.importorskip("transformer_engine.pytorch.custom_recipes.reference_nvfp4")
    formats = pytest.importorskip("transformer_engine.pytorch.custom_recipes.reference_utils")
    quantizer = reference.NVFP4QuantizerRef(
        dtype=formats.Fp4Formats.E2M1,
        columnwise=False,
        quant_tile_shape=(16, 16) if name == "16x16" else (1, 16),
        row_scaled_nvfp4=name == "row",
    )
    generator = torch.Generator(CUDA).manual_seed(0)
    for scale in (1e-6, 1e-3, 1.0, 1e4):
        x = torch.randn(2048, 3072, generator=generator, device=CUDA) * scale
        x = x * 10.0 ** torch.empty(2048, 1, device=CUDA).uniform_(-6, 0, generator=generator)
        x[32:48], x[:, 64:96], x[5, 7] = 0, 0, 300 * scale
        x = x.to(dtype)
        theirs = quantizer.quantize(x)
        codes = reference.cast_from_fp4x2(theirs.data, torch.float32)
        values = codes * theirs.scale.float().repeat_interleave(16, 1)
        square = name == "16x16"
        ours = kernels.quantize_weight(x, "16x16") if square else kernels.quantize_activation(x, name)
        slow = plain.quantize_weight(x, "16x16") if square else plain.quantize_activation(x, name)
        assert int((ours.values.float() != values).sum()) == 0
        assert int((slow.values != values).sum()) == 0
