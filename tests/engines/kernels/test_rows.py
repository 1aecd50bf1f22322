"""The kernels against plain torch: as they run on an accelerator, elsewhere in Triton's interpreter.

The interpreter rounds ties of E4M3 the wrong way: there, kernels leave their values unrounded and torch rounds them.
"""

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from solrl_tasks.engines.kernels import row_programs, rows, triton_available
from solrl_tasks.engines.numerics import fp8
from solrl_tasks.engines.numerics.fp8 import E4M3, Quantized

pytestmark = pytest.mark.skipif(not triton_available(), reason="Triton is not installed")
GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
VALUES = E4M3 if GPU else torch.float32
DTYPES = [torch.float32, torch.bfloat16]
ROOT = Path(__file__).resolve().parents[3]
WIDTHS = [16, 48, 80, 1024, 2240, 2432, 3072]


@pytest.fixture(autouse=True)
def quiet_interpreter():
    """NumPy, which the interpreter computes with, warns of every overflow and of every NaN."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def draw(*shape, seed=0, spread=True):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=generator)
    if spread:
        x = x * 10.0 ** torch.empty(*shape[:-1], 1).uniform_(-6, 1, generator=generator)
    return x


def found(result):
    values, scale = result
    return Quantized(values.to(E4M3).cpu(), scale.cpu())


def kernel(name):
    return row_programs.kernels()[name]


def same(one, other):
    assert torch.equal(one.values.view(torch.uint8), other.values.view(torch.uint8))
    assert torch.equal(one.scale.view(torch.int32), other.scale.view(torch.int32))


def near(one, other):
    """The same up to the rounding of float32 before the values are: a few turn by one step of E4M3, seldom."""
    torch.testing.assert_close(one.scale, other.scale, rtol=3e-6, atol=0)
    differ = one.values.view(torch.uint8) != other.values.view(torch.uint8)
    assert differ.float().mean() < 2e-3 + 1 / differ.numel()
    # Half a step of the coarsest values, 448, is 16; a step next to zero is 2**-9.
    a, b = (quantized.values.float()[differ] for quantized in (one, other))
    assert ((a - b).abs() <= 0.126 * torch.maximum(a.abs(), b.abs()) + 2**-9).all()


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_have_the_bits_of_plain_torch(columns, dtype):
    x = draw(3, 5, columns).to(dtype)
    x[0, 1], x[1, 2, 0] = 0, -0.0
    same(found(rows.launch_quantize(kernel("quantize"), x.to(DEVICE), VALUES)), fp8.quantize_rows(x))


def test_rows_that_are_not_finite_have_the_bits_of_plain_torch():
    x = draw(6, 80)
    x[1, 3], x[2, 79], x[3, 0], x[4] = float("nan"), float("inf"), -float("inf"), 1e-30
    one, other = found(rows.launch_quantize(kernel("quantize"), x.to(DEVICE), VALUES)), fp8.quantize_rows(x)
    assert torch.equal(one.values.float().isnan(), other.values.float().isnan())
    torch.testing.assert_close(one.values.float(), other.values.float(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(one.scale, other.scale, rtol=0, atol=0, equal_nan=True)


def test_ties_go_to_even():
    codes = torch.arange(127, dtype=torch.uint8).view(E4M3).float()
    x = torch.zeros(1, 256)
    x[0, :126], x[0, 126:252], x[0, 252] = (codes[1:] + codes[:-1]) / 2, -(codes[1:] + codes[:-1]) / 2, 448
    same(found(rows.launch_quantize(kernel("quantize"), x.to(DEVICE), VALUES)), fp8.quantize_rows(x))


def test_inputs_need_not_lie_in_one_piece():
    x = draw(4, 6, 96).transpose(0, 1)
    same(found(rows.launch_quantize(kernel("quantize"), x.to(DEVICE), VALUES)), fp8.quantize_rows(x))
    same(
        found(rows.launch_quantize(kernel("quantize"), x[..., :48].to(DEVICE), VALUES)), fp8.quantize_rows(x[..., :48])
    )


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu(columns, dtype):
    x = (draw(2, 3, columns, spread=False) * 3).to(dtype)
    near(found(rows.launch_gelu(kernel("gelu"), x.to(DEVICE), None, VALUES)), fp8.gelu_quantize_rows(x))


def test_gelu_of_large_numbers():
    x = torch.tensor([[-1e4, -50.0, -6.0, -0.5, -0.0, 0.0, 0.5, 6.0, 50.0, 1e4, 2e4, -2e4, 1.0, 2.0, -1.0, -2.0]])
    near(found(rows.launch_gelu(kernel("gelu"), x.to(DEVICE), None, VALUES)), fp8.gelu_quantize_rows(x))


@pytest.mark.parametrize(("columns", "others"), [(48, 16), (256, 80), (2240, 96), (4096, 1024)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu_behind_a_prefix(columns, others, dtype):
    x, prefix = (draw(2, 3, columns, spread=False) * 3).to(dtype), draw(2, 3, others, seed=1, spread=False).to(dtype)
    one = found(rows.launch_gelu(kernel("gelu"), x.to(DEVICE), prefix.to(DEVICE), VALUES))
    near(one, fp8.gelu_quantize_rows(x, prefix))
    assert one.values.shape == (6, columns + others)


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gates(columns, dtype):
    x = (draw(2, 3, 2 * columns, spread=False) * 3).to(dtype)
    near(found(rows.launch_gate(kernel("gate"), x.to(DEVICE), VALUES)), fp8.gate_quantize_rows(x))


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_modulated_norms(columns, dtype):
    x = (draw(3, 4, columns, spread=False) + 0.5).mul(10.0 ** torch.linspace(-5, 2, 12).view(3, 4, 1)).to(dtype)
    modulation = draw(3, 6 * columns, seed=1, spread=False).to(dtype)
    one = rows.launch_modulate(kernel("modulate"), x.to(DEVICE), modulation.to(DEVICE), 3, 4, 1e-6, VALUES)
    near(found(one), fp8.modulate_quantize_rows(x, modulation, 3, 4, 1e-6))


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_delta", [True, False])
def test_merged_weights_have_the_bits_of_plain_torch(columns, dtype, with_delta):
    base, delta = draw(8, columns).to(dtype), draw(8, columns, seed=1) * 0.1 if with_delta else None
    values = torch.empty(8, columns, dtype=VALUES, device=DEVICE)
    scale = torch.empty(8, device=DEVICE)
    moved = None if delta is None else delta.to(DEVICE)
    rows.launch_merge(kernel("merge"), base.to(DEVICE), moved, values, scale)
    expected = fp8.quantize_rows(base.float() if delta is None else base + delta)
    same(found((values, scale[:, None])), expected)


@pytest.mark.parametrize("columns", [1, 16, 24, 1024, 1040, 2240, 5600, 9728, 12288, 15360, rows.WIDEST])
def test_a_row_is_covered_by_two_powers_of_two_with_few_idle_lanes(columns):
    head, tail = rows.split(columns)
    assert head <= columns <= head + tail
    assert all(part & (part - 1) == 0 for part in (head, tail))
    assert columns < 1024 or head + tail <= 1.1 * columns
    warps = rows.count_warps(columns)
    assert warps & (warps - 1) == 0 and 1 <= warps <= 16


def test_without_cuda_the_functions_are_those_of_plain_torch():
    x, modulation = draw(2, 3, 32), draw(2, 64, seed=1)
    same(rows.quantize_rows(x), fp8.quantize_rows(x))
    same(rows.gelu_quantize_rows(x, x), fp8.gelu_quantize_rows(x, x))
    same(rows.gate_quantize_rows(x), fp8.gate_quantize_rows(x))
    same(rows.modulate_quantize_rows(x, modulation, 0, 1, 1e-6), fp8.modulate_quantize_rows(x, modulation, 0, 1, 1e-6))


COMPILE = """
import json, re
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from solrl_tasks.engines.kernels import row_programs, rows

half, single, byte = "*bf16", "*fp32", "*fp8e4nv"
head, tail = rows.split(3072)
row = {"COLUMNS": 3072, "HEAD": head, "TAIL": tail}
wide = dict(zip(("HEAD", "TAIL"), rows.split(12288)), COLUMNS=12288, OTHERS=3072, FRONT_HEAD=head, FRONT_TAIL=tail)
cases = {
    "quantize": ({"x": half, "values": byte, "scale": single}, row),
    "gelu": ({"x": half, "front": half, "values": byte, "scale": single}, wide),
    "gate": ({"x": half, "values": byte, "scale": single}, row),
    "modulate": (
        {"x": half, "modulation": half, "values": byte, "scale": single},
        row | {"TOKENS": 1024, "STRIDE": 18432, "SHIFT": 0, "SCALE": 3072, "EPS": 1e-6},
    ),
    "merge": ({"base": half, "delta": single, "values": byte, "scale": single}, row | {"WITH_DELTA": True}),
}
found = {}
for name, (pointers, constants) in cases.items():
    source = ASTSource(
        fn=row_programs.kernels()[name],
        signature={**pointers, **dict.fromkeys(constants, "constexpr")},
        constexprs=constants,
        attrs={(index,): [["tt.divisibility", 16]] for index in range(len(pointers))},
    )
    warps = rows.count_warps(constants["COLUMNS"] + constants.get("OTHERS", 0))
    text = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps}).asm["ptx"]
    found[name] = {
        "loads": sorted(set(re.findall(r"ld\\.global\\S*", text))),
        "rounding": sorted(set(re.findall(r"cvt\\.rn\\S*e4m3x2\\S*", text))),
        "divisions": text.count("div.rn.f32"),
        "spills": text.count(".local"),
    }
print(json.dumps(found))
"""


def test_the_code_for_hopper_reads_in_wide_loads_and_rounds_in_hardware(monkeypatch):
    """Compiled here for sm_90, which needs no GPU."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    command = [sys.executable, "-W", "ignore", "-c", COMPILE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for name, found in json.loads(done.stdout).items():
        assert any("v4.b32" in load for load in found["loads"]), name
        assert not any("b16" in load or "b8" in load for load in found["loads"]), name
        assert found["rounding"] == ["cvt.rn.satfinite.e4m3x2.f32"], name
        assert found["divisions"] == (2 if name == "modulate" else 1), name
        assert found["spills"] == 0, name
