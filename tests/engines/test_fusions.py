"""Fused blocks compute what the blocks that they stand for do, through the same submodules."""

import pytest
import torch
from diffusers import FluxTransformer2DModel, SanaTransformer2DModel, SD3Transformer2DModel
from torch import nn
from torch._dynamo.utils import counters

from solrl_tasks.config.extensions import build
from solrl_tasks.engines.fp8 import Fp8Engine
from solrl_tasks.engines.fp8_layer import Fp8Layer
from solrl_tasks.engines.fusions import _known
from solrl_tasks.models.lora import LoraState, init_lora
from solrl_tasks.models.scope import LayerScope

CPU = torch.device("cpu")
SCOPE = LayerScope(include=(r".*blocks\..*",), skip=((r".*norm.*|time_embed\.linear", "modulation"),))


def make_flux():
    return FluxTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=2, num_single_layers=2, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=16, guidance_embeds=False,
        axes_dims_rope=(4, 6, 6),
    )  # fmt: skip


def make_sd3(**options):
    return SD3Transformer2DModel(
        sample_size=8, patch_size=2, in_channels=4, num_layers=3, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, caption_projection_dim=32, pooled_projection_dim=16, out_channels=4,
        pos_embed_max_size=8, qk_norm="rms_norm", **options,
    )  # fmt: skip


def make_sana():
    return SanaTransformer2DModel(
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=16, num_layers=2,
        num_cross_attention_heads=2, cross_attention_head_dim=16, cross_attention_dim=32, caption_channels=32,
        sample_size=8, patch_size=1,
    )  # fmt: skip


def inputs_of(net, dtype):
    generator = torch.Generator().manual_seed(1)

    def draw(*shape):
        return torch.randn(*shape, generator=generator).to(dtype)

    timestep = torch.tensor([700.0, 300.0], dtype=dtype)
    if isinstance(net, FluxTransformer2DModel):
        return {
            "hidden_states": draw(2, 8, 16), "encoder_hidden_states": draw(2, 6, 32),
            "pooled_projections": draw(2, 16), "timestep": timestep / 1000,
            "img_ids": torch.randint(0, 4, (8, 3), generator=generator).float(), "txt_ids": torch.zeros(6, 3),
        }  # fmt: skip
    if isinstance(net, SD3Transformer2DModel):
        return {
            "hidden_states": draw(2, 4, 8, 8), "encoder_hidden_states": draw(2, 6, 32),
            "pooled_projections": draw(2, 16), "timestep": timestep,
        }  # fmt: skip
    return {
        "hidden_states": draw(2, 4, 8, 6), "encoder_hidden_states": draw(2, 5, 32), "timestep": timestep,
        "encoder_attention_mask": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], dtype=dtype),
    }  # fmt: skip


NETS = {
    "flux": (make_flux, 4),
    "sd3": (make_sd3, 3),
    "sd3-dual": (lambda: make_sd3(dual_attention_layers=(0, 1)), 3),
    "sana": (make_sana, 2),
}


@pytest.fixture(params=NETS)
def net(request):
    torch.manual_seed(0)
    module = NETS[request.param][0]().eval().requires_grad_(False)
    module.expected_blocks = NETS[request.param][1]
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            # Modulations that do something, and distinct from each other.
            if "norm" in name and name.endswith("bias"):
                parameter.copy_(torch.randn_like(parameter) / 2)
    return module


def attach(net, lora=None, **options):
    engine = build("engine", "fp8", options, CPU)
    engine.attach(net, SCOPE)
    engine.sync(lora)
    return engine


@torch.no_grad()
def run(module, dtype=torch.float32):
    return module(**inputs_of(module, dtype), return_dict=False)[0].float()


def distance(found, expected):
    return float((found - expected).norm() / expected.norm())


def test_a_fused_network_is_the_unfused_one_up_to_roundings(net):
    fused, plain = attach(net), attach(net, fused=False)
    found, expected, exact = run(fused.module), run(plain.module), run(net)
    # In float32 only sums of norms and gelu's formula differ: a code turns now and then.
    assert distance(found, expected) < 0.2 * distance(expected, exact)
    assert 0.002 < distance(expected, exact) < 0.08
    assert f"; {net.expected_blocks} blocks with fused kernels" in fused.record().compute
    assert "; 0 blocks with fused kernels" in plain.record().compute


def test_in_bfloat16_a_fused_network_is_as_near(net):
    exact = run(net)
    # Embeddings of positions and modulation tables are part of a model's weights and dtype.
    half = net.to(torch.bfloat16)
    floor = distance(run(half, torch.bfloat16), exact)
    errors = [distance(run(attach(half, fused=fused).module, torch.bfloat16), exact) for fused in (True, False)]
    assert errors[0] < 1.3 * errors[1] + floor


def test_fused_blocks_keep_their_submodules_and_the_base_its_classes(net):
    classes = {path: type(module) for path, module in net.named_modules()}
    engine = attach(net)
    assert {path: type(module) for path, module in net.named_modules()} == classes
    assert [path for path, _ in engine.module.named_modules()] == list(classes)
    changed = [path for path, module in engine.module.named_modules() if type(module) is not classes[path]]
    blocks = [path for path in changed if not isinstance(engine.module.get_submodule(path), Fp8Layer)]
    assert len(blocks) == net.expected_blocks
    for path in blocks:
        assert isinstance(engine.module.get_submodule(path), classes[path])


def test_every_layer_of_a_fused_network_counts(net):
    """Each replaced layer, and the norms' own projections, decide the result: a fused block leaves none out."""
    lora_free = attach(net)
    before = run(lora_free.module)
    fresh = init_lora(net, list(lora_free.record().replaced), 4, 8.0, seed=0)
    generator = torch.Generator().manual_seed(0)
    weights = {n: torch.randn(w.shape, generator=generator) * 0.3 for n, w in fresh.weights.items()}
    silent = []
    for path in fresh.paths:
        own = {f"{path}.{factor}": weights[f"{path}.{factor}"] for factor in ("lora_A", "lora_B")}
        lora_free.sync(LoraState(4, 8.0, own))
        if torch.equal(run(lora_free.module), before):
            silent.append(path)
    # SD3's last block makes no text, so what its text asks for leads to nothing.
    assert silent == (["transformer_blocks.2.attn.add_q_proj"] if isinstance(net, SD3Transformer2DModel) else [])


def test_an_adapter_on_modulations_is_not_missed(net):
    path = next(path for path, reason in SCOPE.resolve(net).skipped.items() if reason == "modulation")
    fresh = init_lora(net, [path], 4, 8.0, seed=0)
    lora = LoraState(4, 8.0, {name: torch.ones_like(weight) / 8 for name, weight in fresh.weights.items()})
    fused, plain = attach(net), attach(net, fused=False)
    before = run(fused.module)
    for engine in (fused, plain):
        assert engine.sync(lora).synced == 1
    after = run(fused.module)
    assert distance(after, before) > 0.01
    assert distance(after, run(plain.module)) < 0.05


def test_fused_blocks_compile_whole_and_outlive_a_sync(net, monkeypatch):
    monkeypatch.setattr(Fp8Engine, "backend", "aot_eager")
    torch._dynamo.reset()
    counters.clear()
    compiled, eager = attach(net, execution="compiled"), attach(net)
    assert distance(run(compiled.module), run(eager.module)) < 0.02
    before = counters["stats"]["unique_graphs"]
    assert 0 < before <= 4
    fresh = init_lora(net, list(compiled.record().replaced), 4, 8.0, seed=0)
    lora = LoraState(4, 8.0, {name: torch.ones_like(weight) / 16 for name, weight in fresh.weights.items()})
    compiled.sync(lora)
    eager.sync(lora)
    assert distance(run(compiled.module), run(eager.module)) < 0.02
    assert counters["stats"]["unique_graphs"] == before
    torch._dynamo.reset()


def test_a_block_with_a_layer_that_was_not_replaced_stays_as_it_is():
    torch.manual_seed(0)
    net = make_flux().eval().requires_grad_(False)
    engine = build("engine", "fp8", {}, CPU)
    engine.attach(net, LayerScope((r".*blocks\..*",), ((r".*norm.*", "norm"), (r".*blocks\.1\.attn\.to_k", "tried"))))
    engine.sync(None)
    assert "; 2 blocks with fused kernels" in engine.record().compute
    assert run(engine.module).isfinite().all()


def test_obstacles_are_named():
    flux, sd3, sana = make_flux(), make_sd3(), make_sana()
    known = _known()

    def obstacle(block):
        return known[type(block)].obstacle(block)

    assert obstacle(flux.transformer_blocks[0]) == "attn.to_q is not an FP8 layer"
    flux.single_transformer_blocks[0].act_mlp = nn.GELU()
    assert "act_mlp is not gelu" in obstacle(flux.single_transformer_blocks[0])
    sd3.transformer_blocks[0].set_chunk_feed_forward(2)
    assert "in pieces" in obstacle(sd3.transformer_blocks[0])
    flux.transformer_blocks[0].ff.net[0].approximate = "none"
    assert obstacle(flux.transformer_blocks[0]).startswith("ff has another activation")
    sana.transformer_blocks[0].ff.residual_connection = True
    assert obstacle(sana.transformer_blocks[0]).startswith("ff has a norm")
    twin = attach(make_flux().requires_grad_(False), fused=False)._twin
    block = twin.transformer_blocks[0]
    assert obstacle(block) is None
    block.norm2 = nn.LayerNorm(32)
    assert obstacle(block) == "norm2 is not a layer norm without weights"
