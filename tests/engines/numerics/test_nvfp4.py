"""The quantiser against an independent one built on the float4 and float8 types of ml_dtypes."""

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from solrl_tasks.engines.numerics import nvfp4
from solrl_tasks.engines.numerics.nvfp4 import quantize_activation, quantize_weight

F32 = np.float32
FLT_MAX = np.finfo(F32).max


def reference_block(x, encode):
    """One block (any shape) of float32: code * block scale, by the stated order of operations."""
    decode = F32(1) / encode
    scale = np.minimum(np.abs(x).max() * (encode * F32(1 / 6)), F32(448))
    scale = scale.astype(ml_dtypes.float8_e4m3fn).astype(F32)
    inverse = np.minimum(F32(1) / (scale * decode), FLT_MAX)
    code = np.clip(x * inverse, F32(-6), F32(6)).astype(ml_dtypes.float4_e2m1fn)
    return code.astype(F32) * scale


def reference_encode(x):
    amax = np.abs(x).max()
    return F32(1) if amax == 0 else np.minimum(F32(2688) / amax, FLT_MAX)


def reference(x, block=(1, 16), per_row=False):
    """(values, gd) of a float32 matrix, a loop over blocks."""
    values = np.empty_like(x)
    with np.errstate(all="ignore"):
        encodes = [reference_encode(row) for row in x] if per_row else [reference_encode(x)] * len(x)
        for row in range(0, x.shape[0], block[0]):
            for column in range(0, x.shape[1], block[1]):
                tile = np.s_[row : row + block[0], column : column + block[1]]
                values[tile] = reference_block(x[tile], encodes[row])
        decodes = np.array([F32(1) / encode for encode in encodes], F32)
    return values, decodes[:, None] if per_row else decodes[0]


def assert_same_bits(quantized, expected):
    values, scale = expected
    np.testing.assert_array_equal(quantized.values.float().numpy().view(np.int32), values.view(np.int32))
    np.testing.assert_array_equal(quantized.scale.numpy().view(np.int32), np.asarray(scale).view(np.int32))


def check_everything(x):
    """Every mode, on float32 and on the same numbers rounded to bfloat16."""
    for tensor in (torch.from_numpy(x), torch.from_numpy(x).bfloat16()):
        exact = tensor.float().numpy()
        assert_same_bits(quantize_activation(tensor), reference(exact))
        assert_same_bits(quantize_activation(tensor, "row"), reference(exact, per_row=True))
        assert_same_bits(quantize_weight(tensor), reference(exact))
        if len(x) % 16 == 0:
            assert_same_bits(quantize_weight(tensor, "16x16"), reference(exact, block=(16, 16)))


def gaussian(seed, rows=32, columns=64, scale=1.0):
    return (np.random.default_rng(seed).standard_normal((rows, columns)) * scale).astype(F32)


@pytest.mark.parametrize("exponent", [-45, -42, -38, -37, -30, -10, -3, 0, 3, 10, 30, 37, 38])
def test_gaussian_matrices_of_every_magnitude(exponent):
    x = np.clip(gaussian(exponent + 100).astype(np.float64) * 10.0**exponent, -3.3e38, 3.3e38)
    check_everything(x.astype(F32))


@pytest.mark.parametrize("seed", range(4))
def test_rows_whose_magnitudes_differ_by_many_orders(seed):
    random = np.random.default_rng(seed)
    x = gaussian(seed, 64).astype(np.float64) * 10.0 ** random.uniform(-12, 3, (64, 1))
    check_everything(x.astype(F32))


def test_block_scales_fall_into_the_subnormals_of_e4m3():
    # One outlier pushes the other blocks to 2**-6 and below, where E4M3 has a fixed step, and on to zero.
    x = gaussian(5, 16, 1024) * np.repeat(2.0 ** -np.arange(64, dtype=F32), 16)[None] * F32(0.3)
    x[0, 0] = 1000.0
    values, _ = reference(x)
    assert (values[:, -16:] == 0).all() and (x[:, -16:] != 0).all()
    check_everything(x)


def test_ties_of_both_formats():
    # A maximum of 6 * 448 makes ge = 1: codes and scales are then exactly where the table of ties says.
    ties = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], F32)
    scales = np.array([2.0**-9, 1.5 * 2.0**-9, 2.5 * 2.0**-9, 2.0**-6, 1.0, 1.0625, 1.1875, 100.0, 448.0], F32)
    x = np.concatenate([ties * scale for scale in scales])
    x = np.stack([x, -x] * 8)
    assert reference_encode(x) == 1
    check_everything(x)
    codes = quantize_activation(torch.from_numpy(x)).values[0, -16:].numpy() / 448
    assert codes.tolist() == [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def test_ties_of_the_block_scale_round_to_even_over_the_whole_range():
    # ge = 1, so a block's scale is fl(va / 6): every E4M3 number, every midpoint, and their neighbours.
    table = np.arange(1, 127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(F32)
    middles = (table[1:] + table[:-1]) / 2
    targets = np.concatenate([table, middles, np.nextafter(middles, F32(0)), np.nextafter(middles, F32(1e9))])
    x = np.zeros((len(targets) + 1, 16), F32)
    x[:-1, 0] = targets * F32(6)
    x[:-1, 1] = -targets
    x[-1, 0] = 2688
    x = x[x[:, 0] <= 2688]
    assert reference_encode(x) == 1
    assert_same_bits(quantize_activation(torch.from_numpy(x)), reference(x))


def test_zero_tensor_zero_rows_zero_blocks_and_negative_zeros():
    check_everything(np.zeros((16, 32), F32))
    check_everything(-np.zeros((16, 32), F32))
    x = gaussian(1, 32, 64)
    x[3] = 0
    x[4] = -0.0
    x[:, 16:32] = 0
    x[5, 40] = -0.0
    x[6, 0:2] = (-1e-30, 1e-30)
    check_everything(x)
    assert torch.signbit(quantize_activation(torch.from_numpy(x)).values[6, 0])


def test_a_single_outlier_and_the_largest_and_smallest_numbers():
    x = gaussian(2, 16, 64)
    x[7, 9] = 3e5
    check_everything(x)
    x[7, 9] = FLT_MAX
    assert_same_bits(quantize_activation(torch.from_numpy(x)), reference(x))
    tiny = np.zeros((16, 32), F32)
    tiny[0, 0] = np.finfo(F32).smallest_subnormal
    check_everything(tiny)


# Any finite float32 a bfloat16 can follow: subnormals, zeros of both signs and near-overflow included.
numbers = st.floats(-(2.0**127), 2.0**127, width=32, allow_subnormal=True)


@settings(max_examples=150, deadline=None)
@given(hnp.arrays(F32, (16, 32), elements=numbers, fill=st.nothing() | st.just(F32(0))))
def test_arbitrary_matrices(x):
    check_everything(x)


@settings(max_examples=100, deadline=None)
@given(
    hnp.arrays(np.int32, (16, 32), elements=st.integers(-(2**12), 2**12)),
    st.integers(-120, 100),
    st.lists(st.integers(-30, 0), min_size=2, max_size=2),
)
def test_matrices_on_coarse_grids_are_full_of_ties(integers, exponent, falls):
    x = np.ldexp(integers.astype(np.float64), exponent)
    x *= np.repeat(2.0 ** np.array(falls), 16)[None]
    check_everything(x.astype(F32))


def test_pieces_do_not_change_a_bit(monkeypatch):
    x = torch.from_numpy(gaussian(3, 100, 48))
    whole = [quantize_activation(x, mode) for mode in ("tensor", "row")]
    monkeypatch.setitem(nvfp4._PIECE, "cpu", 7 * 48)
    for mode, expected in zip(("tensor", "row"), whole, strict=True):
        piecewise = quantize_activation(x, mode)
        assert torch.equal(piecewise.values, expected.values)
        assert torch.equal(piecewise.scale, expected.scale)


def test_values_are_exact_in_bfloat16_and_fill_a_given_buffer():
    x = torch.from_numpy(gaussian(4))
    exact = quantize_activation(x)
    buffer = torch.empty(32, 64, dtype=torch.bfloat16)
    given = quantize_activation(x, out=buffer)
    assert given.values is buffer
    assert torch.equal(buffer.float(), exact.values)
    tiled = quantize_weight(x, "16x16", out=buffer)
    assert torch.equal(tiled.values.float(), quantize_weight(x, "16x16").values)


def test_input_that_is_not_contiguous():
    x = torch.from_numpy(gaussian(6, 64, 32)).t()
    assert torch.equal(quantize_activation(x).values, quantize_activation(x.contiguous()).values)
    assert torch.equal(quantize_weight(x, "16x16").values, quantize_weight(x.contiguous(), "16x16").values)


def test_the_input_is_left_alone():
    x = torch.from_numpy(gaussian(7))
    before = x.clone()
    quantize_activation(x, "row")
    quantize_weight(x, "16x16")
    assert torch.equal(x, before)


def test_a_row_scale_makes_rows_independent():
    x = torch.from_numpy(gaussian(8))
    other = x.clone()
    other[1:] *= 37.0
    assert torch.equal(quantize_activation(x, "row").values[0], quantize_activation(other, "row").values[0])
    assert not torch.equal(quantize_activation(x).values[0], quantize_activation(other).values[0])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_not_finite_show(bad):
    x = torch.from_numpy(gaussian(9))
    x[3, 5] = bad
    whole = quantize_activation(x)
    assert (whole.values * whole.scale).isnan().all()
    rows = quantize_activation(x, "row")
    assert (rows.values * rows.scale).isnan().all(1).nonzero().flatten().tolist() == [3]


def test_no_rows_at_all():
    assert quantize_activation(torch.empty(0, 32)).values.shape == (0, 32)
    assert quantize_activation(torch.empty(0, 32), "row").scale.shape == (0, 1)


def test_the_error_of_a_gaussian_matrix_is_the_published_one():
    x = torch.from_numpy(gaussian(10, 512, 512))
    for block, expected in (("1x16", 0.095), ("16x16", 0.111)):
        quantized = quantize_weight(x, block)
        error = (quantized.values * quantized.scale - x).norm() / x.norm()
        assert abs(error.item() - expected) < 0.003


@pytest.mark.parametrize("shape", [(4, 24), (16,), (2, 4, 16)])
def test_shapes_that_are_not_whole_blocks_are_refused(shape):
    with pytest.raises(ValueError, match="whole 1x16 blocks"):
        quantize_activation(torch.zeros(shape))


def test_square_blocks_need_whole_rows_of_blocks():
    with pytest.raises(ValueError, match="whole 16x16 blocks"):
        quantize_weight(torch.zeros(24, 32), "16x16")
    assert nvfp4.why_not(24, 32, "16x16") == "24 output features are not a multiple of 16"
    assert nvfp4.why_not(24, 40, "1x16") == "40 input features are not a multiple of 16"
    assert nvfp4.why_not(24, 32, "1x16") is None
