"""Text encoders that wait in host memory and come back to an accelerator, on tiny pipelines."""

import pytest
import torch

from solrl_tasks.config.extensions import find_extension
from solrl_tasks.models.embeddings import EmbeddingCache
from tests.support.tiny import FAMILIES, tiny_spec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator"),
    # Libraries have advice for a GPU that says nothing about us.
    pytest.mark.filterwarnings("default"),
]
CUDA = torch.device("cuda")
TEXTS = ["a red circle", "two blue squares"]


@pytest.fixture(params=FAMILIES)
def family(request):
    spec = tiny_spec(request.param, text_encoders="offload")
    return find_extension("family", spec.family).load(spec, CUDA)


def weights(family):
    return [t for network in family._text.networks() for t in [*network.parameters(), *network.buffers()]]


def test_they_wait_in_pinned_memory_and_say_the_same_when_back(family):
    first, held = family.encode(TEXTS).tensors, family.memory()["text"]
    assert held > 0
    homes = []
    for _ in range(3):
        family.release_text()
        assert all(weight.is_pinned() for weight in weights(family))
        assert family.memory()["text"] == 0
        homes.append([weight.data_ptr() for weight in weights(family)])
        again = family.encode(TEXTS).tensors
        assert all(weight.is_cuda for weight in weights(family))
        assert family.memory()["text"] == held
        assert all(torch.equal(again[name], first[name]) for name in first)
    assert homes == [homes[0]] * 3
    assert family._text._copy.refusal == ""


def test_the_device_gets_its_memory_back(family):
    # What libraries take for themselves at the first encoding stays.
    EmbeddingCache(None, family).get(TEXTS)
    left = torch.cuda.memory_allocated(CUDA)
    family._text.prepare()
    assert torch.cuda.memory_allocated(CUDA) >= left + family.memory()["text"]
    family.release_text()
    assert torch.cuda.memory_allocated(CUDA) == left


def test_whoever_computes_on_another_stream_sees_them_whole(family):
    first = family.encode(TEXTS).tensors
    family.release_text()
    family._text.prepare()
    with torch.cuda.stream(torch.cuda.Stream(CUDA)):
        other = family.encode(TEXTS).tensors
    torch.cuda.synchronize()
    assert all(torch.equal(other[name], first[name]) for name in first)
