"""The precision policy."""

import pytest
import torch

from solrl_tasks.models import dtypes


@pytest.mark.parametrize(
    ("choice", "device_class", "transformer"),
    [
        ("auto", "cpu", "float32"),
        ("auto", "mps", "float32"),
        ("auto", "sm_75", "float32"),
        ("auto", "sm_80", "bfloat16"),
        ("auto", "sm_90", "bfloat16"),
        ("auto", "sm_100", "bfloat16"),
        ("bfloat16", "cpu", "bfloat16"),
        ("float32", "sm_90", "float32"),
    ],
)
def test_transformers_use_bfloat16_where_it_is_fast(choice, device_class, transformer):
    chosen = dtypes.choose(choice, device_class)
    assert chosen.describe() == {"text": "float32", "transformer": transformer, "vae": "float32"}
    assert chosen.transformer is getattr(torch, transformer)
    assert chosen.reason


def test_the_cpu_is_its_own_class():
    assert dtypes.device_class(torch.device("cpu")) == "cpu"
