"""The order of attention kernels holds for the process, and can be put aside for a while."""

import gc
import subprocess
import sys

import pytest
import torch

from solrl_tasks.engines.attention import describe_attention

PROGRAM = """
import gc, torch
from torch.nn.attention import SDPBackend, _cur_sdpa_kernel_backends
from solrl_tasks.engines.attention import ORDER, prefer_cudnn, torch_order

def order():
    return [backend.name for backend in _cur_sdpa_kernel_backends(with_priority=True)]

before = order()
prefer_cudnn()
prefer_cudnn()
gc.collect()
assert order()[:len(ORDER)] == [backend.name for backend in ORDER], order()
with torch_order():
    assert order()[0] == before[0] == "FLASH_ATTENTION", (order(), before)
gc.collect()
assert order()[0] == "CUDNN_ATTENTION", order()
"""


def test_the_order_holds_for_the_process():
    # In a process of its own: it is for good.
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=120)
    gc.collect()


def test_keys_tell_accelerators_apart():
    assert describe_attention(torch.device("cpu")) == "sdpa"
    assert describe_attention(torch.device("cuda")) == "sdpa, cudnn first"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cudnn_computes_it():
    from torch.profiler import ProfilerActivity, profile

    from solrl_tasks.engines.attention import prefer_cudnn

    prefer_cudnn()
    q = torch.randn(2, 4, 256, 64, device="cuda", dtype=torch.bfloat16)
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        torch.nn.functional.scaled_dot_product_attention(q, q, q)
        torch.cuda.synchronize()
    assert any("cudnn" in event.key.lower() for event in found.key_averages()), [e.key for e in found.key_averages()]
