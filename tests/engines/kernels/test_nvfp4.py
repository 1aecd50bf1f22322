"""The kernel against plain torch, bit for bit: as it runs on an accelerator, elsewhere in Triton's interpreter."""

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from solrl_tasks.engines.kernels import nvfp4 as kernels
from solrl_tasks.engines.kernels import triton_available
from solrl_tasks.engines.numerics import nvfp4 as plain

needs_triton = pytest.mark.skipif(not triton_available(), reason="Triton is not installed")
GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
MODES = ["tensor", "row"]
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def quiet_interpreter():
    """NumPy, which the interpreter computes with, warns of every overflow and of every NaN."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def draw(scale=1.0, rows=40, columns=96, seed=0):
    """Rows of many magnitudes with zeros of both signs, zero rows, zero blocks and an outlier."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=generator) * scale
    x = x * 10.0 ** torch.empty(rows, 1).uniform_(-8, 1, generator=generator)
    x[3], x[:, 32:48], x[6, 0], x[5, 7] = 0, -0.0, 0.0, 300 * scale
    return x.clamp(-3e38, 3e38)


def assert_same_bits(found, expected):
    assert torch.equal(found.values.float().cpu().view(torch.int32), expected.values.view(torch.int32))
    assert torch.equal(found.scale.cpu().view(torch.int32), expected.scale.view(torch.int32))


def check(x):
    """Both scale modes and both dtypes of values."""
    for mode in MODES:
        expected = plain.quantize_activation(x, mode)
        for dtype in (torch.float32, torch.bfloat16):
            out = torch.empty(x.shape, dtype=dtype, device=DEVICE)
            found = kernels.quantize_activation(x.to(DEVICE), mode, out)
            assert found.values is out
            assert_same_bits(found, expected)


@needs_triton
@pytest.mark.parametrize("scale", [1e-37, 1e-30, 1e-6, 1.0, 1e4, 1e30])
def test_float32_of_every_magnitude(scale):
    check(draw(scale))


@needs_triton
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e2])
def test_narrow_inputs(dtype, scale):
    check(draw(scale).clamp(-6e4, 6e4).to(dtype))


@needs_triton
@pytest.mark.skipif(not GPU, reason="Triton's interpreter does not convert subnormal bfloat16 numbers exactly")
@pytest.mark.parametrize("scale", [1e-38, 1e-37, 1e-30])
def test_subnormal_bfloat16(scale):
    check(draw(scale).bfloat16())


@needs_triton
@pytest.mark.parametrize("columns", [16, 48, 240, 4112])
def test_shapes_that_fill_no_whole_program(columns):
    check(draw(rows=7, columns=columns) if columns > 32 else torch.randn(7, columns))
    assert (7 * columns // 16) % kernels.TILE
    assert columns // 16 % kernels.TILE, "of a row"


@needs_triton
def test_ties_of_both_formats():
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    scales = torch.tensor([2.0**-9, 1.5 * 2.0**-9, 2.5 * 2.0**-9, 2.0**-6, 1.0, 1.0625, 1.1875, 100.0, 448.0])
    x = (scales[:, None] * ties).view(1, -1)
    check(torch.cat([x, -x]))


@needs_triton
def test_every_midpoint_of_block_scales_and_its_neighbours():
    table = torch.arange(1, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    middles = (table[1:] + table[:-1]) / 2
    up, down = (torch.nextafter(middles, torch.tensor(end)) for end in (torch.inf, 0.0))
    targets = torch.cat([table, middles, up, down])
    targets = targets[targets * 6 < 2688]
    # In every row the largest number is 2688, so a block's scale is the sixth of its own largest.
    rows = torch.zeros(9, 64, 16)
    blocks = rows[:, :-1].reshape(-1, 16)
    blocks[: len(targets), 0], blocks[: len(targets), 1] = targets * 6, -targets
    rows[:, :-1], rows[:, -1, 0] = blocks.view(9, 63, 16), 2688
    check(rows.view(9, 1024))


@needs_triton
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_not_finite_show(bad):
    x = draw()
    x[2, 5] = bad
    whole = kernels.quantize_activation(x.to(DEVICE))
    assert (whole.values * whole.scale).isnan().all()
    rows = kernels.quantize_activation(x.to(DEVICE), "row")
    assert (rows.values * rows.scale).isnan().all(1).nonzero().flatten().tolist() == [2]
    x[2] = 1.0
    assert rows.values[3:].float().cpu().equal(plain.quantize_activation(x, "row").values[3:])


@needs_triton
def test_nothing_but_zeros_and_nothing_at_all():
    check(torch.zeros(3, 32))
    check(-torch.zeros(3, 32))
    empty = torch.empty(0, 32, device=DEVICE)
    assert kernels.quantize_activation(empty).values.shape == (0, 32)
    assert kernels.quantize_activation(empty, "row").scale.shape == (0, 1)


@needs_triton
def test_input_that_is_not_contiguous():
    x = draw().t()[:, :32]
    assert not x.is_contiguous()
    for mode in MODES:
        assert_same_bits(kernels.quantize_activation(x.to(DEVICE), mode), plain.quantize_activation(x, mode))


@needs_triton
@pytest.mark.parametrize("block", ["1x16", "16x16"])
def test_weights(block):
    weight = draw(rows=48)
    out = torch.empty(48, 96, dtype=torch.bfloat16, device=DEVICE)
    assert_same_bits(kernels.quantize_weight(weight.to(DEVICE), block, out), plain.quantize_weight(weight, block))


def test_shapes_that_are_not_whole_blocks_are_refused():
    with pytest.raises(ValueError, match="whole 1x16 blocks"):
        kernels.quantize_activation(torch.zeros(4, 24))


@pytest.mark.parametrize("per_row", [False, True])
def test_the_opaque_operator_is_the_plain_quantiser(per_row):
    x = draw().view(4, 10, 96)
    operator = kernels.operator("cpu")
    values, scale = operator(x, per_row)
    expected = plain.quantize_activation(x.view(40, 96), "row" if per_row else "tensor")
    assert_same_bits(plain.Quantized(values, scale), expected)
    torch.library.opcheck(operator, (x, per_row), test_utils=("test_schema", "test_faketensor"))


COMPILE = """
import json, re
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from solrl_tasks.engines.kernels import nvfp4

constants = {"NUMBERS": 8192, "TILE": nvfp4.TILE, "ROW_BLOCKS": 960}
types = {"x": "*bf16", "bits": "*i32", "values": "*bf16", "decode": "*fp32", **dict.fromkeys(constants, "constexpr")}
found = {}
for name, kernel in nvfp4.kernels().items():
    for dtype in ("*bf16", "*fp32"):
        signature = {key: {**types, "x": dtype}.get(key, "i32") for key in kernel.arg_names}
        constexprs = {(i,): constants[key] for i, key in enumerate(signature) if key in constants}
        source = ASTSource(fn=kernel, signature=signature, constexprs=constexprs)
        compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
        text = compiled.asm["ptx"]
        found[f"{name} {dtype}"] = sorted(set(re.findall(r"div\\.\\w+\\.f32|\\S+\\.ftz\\S*", text)))
print(json.dumps(found))
"""


@needs_triton
def test_the_code_for_hopper_divides_with_rounding_and_keeps_subnormals(monkeypatch):
    """Compiled here for sm_90, which needs no GPU; approximate division or flushed subnormals would cost exactness."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    command = [sys.executable, "-W", "ignore", "-c", COMPILE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    for dtype in ("*bf16", "*fp32"):
        assert found.pop(f"largest {dtype}") == []
        assert found.pop(f"tensor {dtype}") == found.pop(f"row {dtype}") == ["div.rn.f32"]
    assert found == {}
