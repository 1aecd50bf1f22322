"""FP8 on an accelerator: products against the dequantised reference, operators in graphs, syncs in place."""

import pytest
import torch
from diffusers import FluxTransformer2DModel, SanaTransformer2DModel, SD3Transformer2DModel
from torch import nn
from torch._dynamo.utils import counters

from solrl_tasks.config.extensions import build
from solrl_tasks.engines.base import require_engine
from solrl_tasks.engines.fp8 import Fp8Engine
from solrl_tasks.engines.fp8_layer import Fp8Layer
from solrl_tasks.engines.kernels import rows
from solrl_tasks.engines.numerics import fp8
from solrl_tasks.engines.numerics.fp8 import Quantized
from solrl_tasks.models.lora import LoraState
from solrl_tasks.models.scope import LayerScope

CUDA = torch.device("cuda")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not Fp8Engine.available(CUDA).ok, reason=Fp8Engine.available(CUDA).reason),
    # Compilers of many versions have advice to give.
    pytest.mark.filterwarnings("default"),
]
SCOPE = LayerScope(include=(r".*blocks\..*",), skip=((r".*norm.*|time_embed\.linear", "modulation"),))


@pytest.fixture(autouse=True)
def operators():
    rows.register()
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def draw(*shape, dtype=torch.bfloat16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(CUDA, dtype)


def same(one, other):
    assert torch.equal(one.values.view(torch.uint8), other.values.view(torch.uint8))
    assert torch.equal(one.scale, other.scale)


def near(one, other):
    torch.testing.assert_close(one.scale, other.scale, rtol=1e-5, atol=0)
    differ = one.values.view(torch.uint8) != other.values.view(torch.uint8)
    assert differ.float().mean() < 2e-3
    torch.testing.assert_close(one.dequantize(), other.dequantize(), rtol=0.13, atol=1e-2)


def distance(found, expected):
    return float((found.float() - expected.float()).norm() / expected.float().norm())


@pytest.mark.parametrize("columns", [2240, 2432, 3072, 5600, 9728, 12288, 15360])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_quantiser_has_the_bits_of_plain_torch_at_the_widths_of_models(columns, dtype):
    x = draw(3, 67, columns, dtype=dtype) * 10
    x[0, 3], x[1, 5, 7], x[2, 2] = 0, 3e4, x[2, 2] * 1e-20
    found = rows.quantize_rows(x)
    same(found, fp8.quantize_rows(x))
    same(Quantized(found.values.cpu(), found.scale.cpu()), fp8.quantize_rows(x.cpu()))


@pytest.mark.parametrize("others", [0, 2432, 3072])
@pytest.mark.parametrize("columns", [9728, 12288])
def test_gelu_at_the_widths_of_models(columns, others):
    x, prefix = draw(2, 33, columns) * 3, draw(2, 33, others, seed=1) if others else None
    near(rows.gelu_quantize_rows(x, prefix), fp8.gelu_quantize_rows(x, prefix))


@pytest.mark.parametrize("columns", [2240, 5600])
def test_gates_at_the_widths_of_models(columns):
    x = draw(2, 33, 2 * columns) * 3
    near(rows.gate_quantize_rows(x), fp8.gate_quantize_rows(x))


@pytest.mark.parametrize("columns", [2240, 2432, 3072])
def test_modulated_norms_at_the_widths_of_models(columns):
    x, modulation = draw(3, 35, columns) + 0.5, draw(3, 6 * columns, seed=1)
    near(rows.modulate_quantize_rows(x, modulation, 3, 4, 1e-6), fp8.modulate_quantize_rows(x, modulation, 3, 4, 1e-6))


def chain(x, modulation, prefix):
    """All operators on inputs that a compiler is free to lay out otherwise."""
    columns = x.shape[-1]
    sliced = (modulation * 2).chunk(2, dim=1)[1]
    one = rows.modulate_quantize_rows(x + 1, sliced, 1, 0, 1e-6)
    two = rows.quantize_rows((x * 2).transpose(0, 1))
    wide = torch.cat([x, x * 3], dim=-1)
    three = rows.gate_quantize_rows(wide)
    four = rows.gelu_quantize_rows(wide[..., columns:], prefix.transpose(1, 2) + 1)
    return [part for quantized in (one, two, three, four) for part in quantized]


@pytest.mark.parametrize("columns", [2240, 3072])
def test_operators_in_a_compiled_graph_give_what_they_give_alone(columns):
    arguments = draw(3, 40, columns), draw(3, 4 * columns, seed=1), draw(3, 96, 40, seed=2)
    expected = chain(*arguments)
    found = torch.compile(chain, fullgraph=True, dynamic=False)(*arguments)
    for one, other in zip(found, expected, strict=True):
        if one.dtype == torch.float8_e4m3fn:
            # The compiler keeps numbers in front of an operator wider than their dtype, where it may.
            assert (one.view(torch.uint8) == other.view(torch.uint8)).float().mean() > 0.9
        torch.testing.assert_close(one.float(), other.float(), rtol=0.15, atol=0.02)


@pytest.mark.parametrize("count", [1, 3, 16, 333 * 24])
@pytest.mark.parametrize("bias", [True, False])
def test_products_are_those_of_the_dequantised_numbers(count, bias):
    torch.manual_seed(0)
    source = nn.Linear(2432, 1216, bias=bias).to(CUDA, torch.bfloat16).requires_grad_(False)
    layer = Fp8Layer(source, True)
    layer.load(source.weight)
    x = draw(count, 2432)
    left, right = fp8.quantize_rows(x), fp8.quantize_rows(source.weight)
    expected = left.dequantize() @ right.dequantize().t() + (source.bias.float() if bias else 0)
    found = layer(x)
    assert found.dtype == torch.bfloat16
    # Rounded to bfloat16; sums of fast accumulation have some 14 bits, and fewer in the kernel that few rows get.
    assert distance(found, expected) < (0.012 if count < 128 else 4e-3)
    assert distance(found, source(x)) < 0.06


def test_a_pointwise_convolution():
    torch.manual_seed(0)
    source = nn.Conv2d(2240, 1120, 1).to(CUDA, torch.bfloat16).requires_grad_(False)
    layer = Fp8Layer(source, True)
    layer.merge(source.weight, None)
    x = draw(2, 2240, 16, 16).to(memory_format=torch.channels_last)
    found = layer(x)
    assert found.shape == (2, 1120, 16, 16)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert distance(found, source(x)) < 0.06


@pytest.mark.parametrize("with_delta", [True, False])
@pytest.mark.parametrize("columns", [2240, 15360])
def test_a_merge_has_the_bits_of_plain_torch(columns, with_delta):
    torch.manual_seed(0)
    source = nn.Linear(columns, 96, bias=False).to(CUDA, torch.bfloat16).requires_grad_(False)
    delta = torch.randn(96, columns, device=CUDA) / 100 if with_delta else None
    layer = Fp8Layer(source, True)
    layer.merge(source.weight, delta)
    expected = fp8.quantize_rows(source.weight.float() if delta is None else source.weight + delta)
    same(Quantized(layer.weight, layer.weight_scale.t()), expected)


def make_flux():
    return FluxTransformer2DModel(
        patch_size=1, in_channels=64, num_layers=2, num_single_layers=2, attention_head_dim=64,
        num_attention_heads=4, joint_attention_dim=128, pooled_projection_dim=64, guidance_embeds=False,
        axes_dims_rope=(16, 24, 24),
    )  # fmt: skip


def make_sd3():
    return SD3Transformer2DModel(
        sample_size=16, patch_size=2, in_channels=16, num_layers=3, attention_head_dim=64, num_attention_heads=4,
        joint_attention_dim=128, caption_projection_dim=256, pooled_projection_dim=64, out_channels=16,
        pos_embed_max_size=16, qk_norm="rms_norm", dual_attention_layers=(0,),
    )  # fmt: skip


def make_sana():
    return SanaTransformer2DModel(
        in_channels=16, out_channels=16, num_attention_heads=8, attention_head_dim=32, num_layers=2,
        num_cross_attention_heads=4, cross_attention_head_dim=64, cross_attention_dim=256, caption_channels=128,
        sample_size=16, patch_size=1,
    )  # fmt: skip


def inputs_of(net):
    timestep = torch.tensor([700.0, 300.0, 100.0], device=CUDA, dtype=torch.bfloat16)
    if isinstance(net, FluxTransformer2DModel):
        return {
            "hidden_states": draw(3, 64, 64), "encoder_hidden_states": draw(3, 20, 128, seed=1),
            "pooled_projections": draw(3, 64, seed=2), "timestep": timestep / 1000,
            "img_ids": draw(64, 3, dtype=torch.float32), "txt_ids": torch.zeros(20, 3, device=CUDA),
        }  # fmt: skip
    if isinstance(net, SD3Transformer2DModel):
        return {
            "hidden_states": draw(3, 16, 16, 16), "encoder_hidden_states": draw(3, 21, 128, seed=1),
            "pooled_projections": draw(3, 64, seed=2), "timestep": timestep,
        }  # fmt: skip
    return {
        "hidden_states": draw(3, 16, 16, 16), "encoder_hidden_states": draw(3, 20, 128, seed=1), "timestep": timestep,
        "encoder_attention_mask": torch.ones(3, 20, device=CUDA, dtype=torch.bfloat16),
    }  # fmt: skip


@pytest.fixture(params=[make_flux, make_sd3, make_sana], ids=["flux", "sd3", "sana"])
def net(request):
    torch.manual_seed(0)
    return request.param().to(CUDA, torch.bfloat16).eval().requires_grad_(False)


@torch.no_grad()
def run(module):
    return module(**inputs_of(module), return_dict=False)[0]


def attach(name, net, **options):
    engine = require_engine(name, CUDA)(build("engine", name, options, CUDA).options, CUDA)
    engine.attach(net, SCOPE)
    engine.sync(None)
    return engine


def make_lora(net, paths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for path in paths:
        count, columns = net.get_submodule(path).weight.shape[:2]
        weights[f"{path}.lora_A"] = torch.randn(8, columns, generator=generator) / 8
        weights[f"{path}.lora_B"] = torch.randn(count, 8, generator=generator) / 40
    return LoraState(8, 12.0, weights)


@pytest.mark.parametrize("fused", [True, False])
def test_a_network_computes_what_bf16_does_within_the_error_of_fp8(net, fused):
    exact = run(net)
    engine = attach("fp8", net, fused=fused)
    assert distance(run(engine.module), exact) < 0.12
    record = engine.record()
    assert (record.kind, record.execution) == ("real", "compiled")
    assert ("; 0 blocks" in record.compute) != fused


def test_fused_and_plain_are_equally_near(net):
    exact = run(net)
    errors = [distance(run(attach("fp8", net, fused=fused).module), exact) for fused in (True, False)]
    assert errors[0] < 1.25 * errors[1] + 0.01


def test_eager_and_compiled_agree(net):
    eager, compiled = (attach("fp8", net, execution=execution) for execution in ("eager", "compiled"))
    exact = run(net)
    assert distance(run(compiled.module), run(eager.module)) < distance(run(eager.module), exact) + 0.02


@pytest.mark.parametrize("name", ["bf16", "fp8"])
def test_a_sync_makes_no_graph_moves_no_tensor_and_shows(name, net):
    engine = attach(name, net)
    before = run(engine.module)
    graphs = counters["stats"]["unique_graphs"]
    assert graphs > 0
    addresses = {path: buffer.data_ptr() for path, buffer in engine.module.named_buffers()}
    engine.sync(make_lora(net, engine.record().replaced))
    after = run(engine.module)
    fresh = attach(name, net)
    fresh.sync(make_lora(net, engine.record().replaced))
    counted = counters["stats"]["unique_graphs"]
    assert distance(after, before) > 0.01
    assert distance(run(fresh.module), after) < 1e-2
    engine.sync(None)
    assert distance(run(engine.module), before) < 1e-3
    assert counted == graphs
    assert {path: buffer.data_ptr() for path, buffer in engine.module.named_buffers()} == addresses


def test_a_sync_gives_the_weights_that_a_cpu_gives(net):
    engine = attach("fp8", net)
    lora = make_lora(net, engine.record().replaced)
    engine.sync(lora)
    differ = total = 0
    for path in engine.record().replaced:
        base = net.get_submodule(path).weight.cpu()
        expected = fp8.quantize_rows((base + lora.delta(path).view_as(base)).flatten(1))
        layer = engine.module.get_submodule(path)
        torch.testing.assert_close(layer.weight_scale.cpu(), expected.scale.t(), rtol=1e-6, atol=0)
        differ += int((layer.weight.cpu().view(torch.uint8) != expected.values.view(torch.uint8)).sum())
        total += layer.weight.numel()
    # The products of factors are summed in another order, which turns a rounding now and then.
    assert differ < 1e-4 * total


def test_an_adapter_on_modulations_is_not_missed_after_compilation(net):
    path = next(path for path, reason in SCOPE.resolve(net).skipped.items() if reason == "modulation")
    engine = attach("fp8", net)
    before = run(engine.module)
    lora = make_lora(net, [path])
    engine.sync(lora)
    after = run(engine.module)
    plain = attach("fp8", net, execution="eager", fused=False)
    plain.sync(lora)
    assert distance(after, before) > 0.003
    assert distance(after, run(plain.module)) < 0.12
