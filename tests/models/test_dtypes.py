"""Precision by part and device class."""

import pytest
import torch

from solrl_tasks.config.recipe import ModelSpec
from solrl_tasks.models.dtypes import choose, device_class


@pytest.mark.parametrize("part", ["transformer", "vae"])
@pytest.mark.parametrize(
    ("choice", "kind", "expected"),
    [
        ("auto", "cpu", torch.float32),
        ("auto", "sm_75", torch.float32),
        ("auto", "sm_80", torch.bfloat16),
        ("auto", "sm_90", torch.bfloat16),
        ("auto", "sm_120", torch.bfloat16),
        ("float32", "sm_90", torch.float32),
        ("bfloat16", "cpu", torch.bfloat16),
    ],
)
def test_bfloat16_is_used_where_it_is_fast_or_asked_for(part, choice, kind, expected):
    field = "dtype" if part == "transformer" else "vae_dtype"
    assert getattr(choose(ModelSpec(**{field: choice}), kind), part) == expected


def test_text_is_encoded_in_float32_unless_asked_otherwise():
    assert choose(ModelSpec(), "sm_90").text == torch.float32
    assert choose(ModelSpec(text_dtype="bfloat16"), "cpu").text == torch.bfloat16


def test_keys_say_what_an_overflowing_image_gets():
    assert choose(ModelSpec(), "sm_90").describe() == {
        "text": "float32",
        "transformer": "bfloat16",
        "vae": "bfloat16, float32 where it overflows",
    }
    assert set(choose(ModelSpec(), "cpu").describe().values()) == {"float32"}


def test_the_cpu_is_its_own_class():
    assert device_class(torch.device("cpu")) == "cpu"
