"""Engines on an accelerator: the bits of the CPU's quantiser, and products summed in float32."""

import pytest
import torch
from torch import nn

from solrl_tasks.config.extensions import build
from solrl_tasks.engines.numerics.nvfp4 import quantize_activation, quantize_weight
from solrl_tasks.models.lora import LoraState
from solrl_tasks.models.scope import LayerScope

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator"),
]
CUDA = torch.device("cuda")


def make_input(scale, rows=512, columns=1024):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, columns, generator=generator) * scale
    x[3], x[:, 32:48], x[5, 7] = 0, -0.0, 300 * scale
    return x * 10.0 ** torch.empty(rows, 1).uniform_(-8, 1, generator=generator)


@pytest.mark.parametrize("scale", [1e-37, 1e-6, 1.0, 1e4, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_quantiser_gives_the_bits_of_the_cpu(scale, dtype):
    x = make_input(scale).to(dtype)
    for mode in ("tensor", "row"):
        expected = quantize_activation(x, mode)
        out = torch.empty(x.shape, dtype=torch.bfloat16, device=CUDA)
        found = quantize_activation(x.cuda(), mode, out)
        assert torch.equal(found.values.float().cpu().view(torch.int32), expected.values.view(torch.int32))
        assert torch.equal(found.scale.cpu(), expected.scale)
    for block in ("1x16", "16x16"):
        expected, found = quantize_weight(x, block), quantize_weight(x.cuda(), block)
        assert torch.equal(found.values.cpu().view(torch.int32), expected.values.view(torch.int32))
        assert torch.equal(found.scale.cpu(), expected.scale)


def make_net(device):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Conv2d(6, 6, 1), nn.Linear(512, 128))
    return net.to(device, torch.bfloat16).eval()


@pytest.mark.parametrize("options", [{}, {"activation_scale": "row", "weight_block": "16x16"}])
def test_the_emulated_engine_computes_what_it_does_on_a_cpu(options):
    generator = torch.Generator().manual_seed(0)
    lora = LoraState(
        4, 8.0,
        {
            "0.lora_A": torch.randn(4, 256, generator=generator) / 4,
            "0.lora_B": torch.randn(512, 4, generator=generator) / 50,
        },
    )  # fmt: skip
    x = torch.randn(6, 40, 256, generator=generator).bfloat16()
    outputs, records = [], []
    for device in (torch.device("cpu"), CUDA):
        engine = build("engine", "nvfp4-emulated", options, device)
        engine.attach(make_net(device), LayerScope((".*",)))
        assert engine.sync(lora).synced == 2
        with torch.no_grad():
            outputs.append(engine.module[0](x.to(device)).float().cpu())
        records.append(engine.record())
    # Sums are taken in another order, which now and then turns a rounding to bfloat16.
    assert (outputs[0] - outputs[1]).norm() < 1e-3 * outputs[0].norm()
    assert (outputs[0] == outputs[1]).float().mean() > 0.99
    assert "bfloat16" in records[1].compute
    assert records[1].skipped == {"2": "6 input features are not a multiple of 16"}


def test_the_baseline_is_bfloat16_and_keeps_its_storage():
    engine = build("engine", "bf16", {}, CUDA)
    engine.attach(make_net(CUDA), LayerScope((".*",)))
    engine.sync(None)
    addresses = [buffer.data_ptr() for buffer in engine.module.buffers()]
    engine.sync(LoraState(1, 1.0, {"3.lora_A": torch.ones(1, 512), "3.lora_B": torch.ones(128, 1)}))
    assert [buffer.data_ptr() for buffer in engine.module.buffers()] == addresses
    assert engine.record().compute == "bfloat16"
    assert engine.record().hardware == torch.cuda.get_device_name()
