"""Compiled twins: graphs outlive syncs, are shared by blocks, and by no two engines."""

import pytest
import torch
from diffusers import FluxTransformer2DModel
from torch import nn
from torch._dynamo.utils import counters

from solrl_tasks.config.extensions import build, list_extensions, parse_options
from solrl_tasks.engines.base import EngineError
from solrl_tasks.engines.bf16 import Bf16Engine
from solrl_tasks.engines.execution import find_regions, resolve_execution
from solrl_tasks.models.lora import LoraState, init_lora
from solrl_tasks.models.scope import LayerScope

CPU = torch.device("cpu")
SCOPE = LayerScope(include=(r"(single_)?transformer_blocks\..*",), skip=((r".*norm.*", "adaptive norm"),))


@pytest.fixture(autouse=True)
def fresh_graphs(monkeypatch):
    """No graphs of other tests, and no compiler that would take minutes."""
    monkeypatch.setattr(Bf16Engine, "backend", "eager")
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def graphs():
    return counters["stats"]["unique_graphs"]


def make_net(blocks=3):
    torch.manual_seed(0)
    return FluxTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=blocks, num_single_layers=blocks, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=16, guidance_embeds=False,
        axes_dims_rope=(4, 6, 6),
    ).eval().requires_grad_(False)  # fmt: skip


class Toy(nn.Module):
    """Two small blocks, for tests of what takes many graphs."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            return torch.relu(self.linear(x))

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([self.Block(), self.Block()])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def attach_toy(net):
    engine = build("engine", "bf16", {"execution": "compiled"}, CPU)
    engine.attach(net, LayerScope((".*",)))
    engine.sync(None)
    return engine


def make_inputs(rows=2, sigma=0.7):
    generator = torch.Generator().manual_seed(1)

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    return {
        "hidden_states": draw(rows, 8, 16), "encoder_hidden_states": draw(rows, 6, 32),
        "pooled_projections": draw(rows, 16), "timestep": torch.full((rows,), sigma),
        "img_ids": torch.randint(0, 4, (8, 3), generator=generator).float(), "txt_ids": torch.zeros(6, 3),
        "return_dict": False,
    }  # fmt: skip


def run(module, **inputs):
    with torch.no_grad():
        return module(**make_inputs(**inputs))[0]


def make_lora(net, paths, seed=0):
    fresh = init_lora(net, list(paths), rank=4, alpha=8.0, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    weights = {n: torch.randn(w.shape, generator=generator) * 0.2 for n, w in fresh.weights.items()}
    return LoraState(4, 8.0, weights)


def attach(net, execution="compiled", name="bf16"):
    engine = build("engine", name, {"execution": execution}, CPU)
    engine.attach(net, SCOPE)
    engine.sync(None)
    return engine


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_twin_computes_what_an_eager_one_does_before_and_after_a_sync(backend, monkeypatch):
    monkeypatch.setattr(Bf16Engine, "backend", backend)
    net = make_net()
    compiled, eager = attach(net), attach(net, "eager")
    torch.testing.assert_close(run(compiled.module), run(eager.module))
    lora = make_lora(net, eager.record().replaced)
    before = run(compiled.module)
    for engine in (compiled, eager):
        engine.sync(lora)
    assert (run(compiled.module) - before).abs().max() > 1e-3
    torch.testing.assert_close(run(compiled.module), run(eager.module))


def test_a_sync_and_a_step_make_no_graph():
    net = make_net()
    engine = attach(net)
    run(engine.module)
    before = graphs()
    assert before == 3, "one for each class of block, and one for the other strides that the first single block sees"
    for seed in range(3):
        engine.sync(make_lora(net, engine.record().replaced, seed))
        for sigma in (1.0, 0.5, 0.123):
            run(engine.module, sigma=sigma)
    engine.sync(None)
    run(engine.module)
    assert graphs() == before


def test_shapes_are_static():
    engine = attach(make_net(blocks=2))
    assert engine.static_shapes
    for rows in (2, 3):
        run(engine.module, rows=rows)
    assert graphs() == 6
    run(engine.module, rows=2)
    assert graphs() == 6


@torch.no_grad()
def test_too_many_shapes_are_an_error_and_not_slow():
    engine = attach_toy(Toy().requires_grad_(False))
    with pytest.raises(EngineError, match="fewer different shapes"):
        for rows in range(1, 20):
            engine.module(torch.randn(rows, 4))


@torch.no_grad()
def test_an_engine_does_not_use_up_the_graphs_of_another():
    net = Toy().requires_grad_(False)
    for _ in range(3):
        engine = attach_toy(net)
        for rows in range(2, 8):
            engine.module(torch.randn(rows, 4))
    assert graphs() == 3 * 6


def test_layers_adopted_after_compilation_are_not_missed():
    """A LoRA outside the scope replaces layers inside blocks that may have been traced without them."""
    net = make_net()
    compiled, eager = attach(net), attach(net, "eager")
    run(compiled.module)
    before = graphs()
    lora = make_lora(net, ["transformer_blocks.1.norm1.linear", "single_transformer_blocks.0.attn.to_q"])
    notes = [engine.sync(lora).note for engine in (compiled, eager)]
    torch.testing.assert_close(run(compiled.module), run(eager.module))
    assert graphs() == before + 1
    assert "1 new layer: compiled blocks are traced again" in notes[0]
    assert "traced" not in notes[1]
    compiled.sync(make_lora(net, lora.paths, seed=1))
    run(compiled.module)
    assert graphs() == before + 1


def test_the_base_stays_eager():
    net = make_net()
    engine = attach(net)
    run(engine.module)
    before = graphs()
    run(net)
    assert graphs() == before
    assert all("forward" not in vars(module) for module in net.modules())


def test_regions_are_the_outermost_blocks_with_layers():
    net = make_net(blocks=2)
    expected = [*net.transformer_blocks, *net.single_transformer_blocks]
    assert find_regions(net, attach(net, "eager").record().replaced) == expected
    assert find_regions(net, ["transformer_blocks.1.attn.to_out.0"]) == [net.transformer_blocks[1]]
    plain = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    assert find_regions(plain, ["0", "1"]) == [plain]


def test_a_twin_without_blocks_is_compiled_whole():
    engine = build("engine", "bf16", {"execution": "compiled"}, CPU)
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).requires_grad_(False)
    engine.attach(net, LayerScope((".*",)))
    engine.sync(None)
    x = torch.randn(3, 4)
    with torch.no_grad():
        torch.testing.assert_close(engine.module(x), net(x))
    assert graphs() == 1


class Breaking(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        torch._dynamo.graph_break()
        return self.linear(x)


def test_a_block_that_cannot_be_compiled_is_an_error_with_the_way_out():
    engine = build("engine", "bf16", {"execution": "compiled"}, CPU)
    engine.attach(nn.Sequential(Breaking()).requires_grad_(False), LayerScope((".*",)))
    engine.sync(None)
    with torch.no_grad(), pytest.raises(EngineError, match=r"cannot compile Sequential.*execution to eager"):
        engine.module(torch.randn(2, 4))


@pytest.mark.parametrize("name", list(list_extensions("engine")))
def test_the_choice_is_resolved_recorded_and_part_of_the_numerics(name):
    extension = list_extensions("engine")[name]
    for choice, on_cpu, on_gpu in [
        ({}, "eager", "compiled"),
        ({"execution": "eager"}, "eager", "eager"),
        ({"execution": "compiled"}, "compiled", "compiled"),
    ]:
        options = parse_options("engine", extension, choice)
        assert resolve_execution(options, "cpu") == extension.numerics(options, "cpu")["execution"] == on_cpu
        assert extension.numerics(options, "sm_90")["execution"] == on_gpu
        if extension.available(CPU).ok:
            engine = extension(options, CPU)
            assert engine.record().execution == on_cpu
            assert engine.static_shapes == (on_cpu == "compiled")
        assert "execution" not in options.model_dump(), "numerics say what it comes to: it must not be a key twice"


def test_memory_is_what_the_twin_holds_beyond_the_base():
    net = make_net()
    engine = attach(net)
    covered = sum(net.get_submodule(path).weight.nbytes for path in engine.record().replaced)
    assert engine.memory() == {"weight": covered}
    engine.sync(make_lora(net, ["x_embedder"]))
    assert engine.memory() == {"weight": covered + net.x_embedder.weight.nbytes}
