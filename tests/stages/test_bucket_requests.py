"""How many requests an iteration sends to a bucket, by kind: one more is a regression, one less a new number here."""

from collections import Counter
from pathlib import Path

import pytest

from tests.support.micro import micro_recipe, write_prompts
from tests.support.request_counts import Request, run_counted
from tests.support.s3 import serving, speaking_to

OBJECTS = {"pools": 2, "samples": 1}
ARRAYS = 8
"""Images and rewards of the pool, those and latents of the samples, images, rewards and features of the evaluation."""
BLOCKS = {"pools": (4, 2), "samples": (2, 3), "evaluate": (2, 3)}
"""Blocks of each object and arrays of each block."""


@pytest.fixture(scope="module")
def steps(micro_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[list[Request]]:
    """Requests of each step of a micro run; the third has no audit."""
    folder = tmp_path_factory.mktemp("requests")
    recipe = micro_recipe(micro_model, write_prompts(folder), iterations=2)
    with serving() as server, speaking_to(server, lease=60.0) as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOLRL_HOME", str(folder / "home"))
        return run_counted(url, recipe)


def counts(requests: list[Request]) -> Counter[tuple[str, str]]:
    return Counter((request.verb, request.kind) for request in requests)


def test_a_warm_iteration_sends_few_requests_besides_its_blocks(steps):
    rest = Counter(request.verb for request in steps[2] if not request.of_block)
    assert rest == {"put": 68, "get": 31, "list": 8, "head": 3}


def test_a_block_costs_its_values_and_marks_and_an_entry_of_the_journal(steps):
    writes = sum(request.of_block for request in steps[2])
    entries = sum(blocks for blocks, _ in BLOCKS.values()) + len(("quantize", "update"))
    assert writes == sum(2 * blocks * arrays for blocks, arrays in BLOCKS.values()) + entries


def test_it_does_not_grow_with_the_iterations(steps):
    training = [Counter(request.verb for request in requests) for requests in steps[1:]]
    # The first has an audit besides: samples of their own.
    assert all(training[1][verb] <= training[0][verb] for verb in ("get", "put", "list", "head"))


def test_nothing_that_is_written_once_is_asked_for_when_it_is_there(steps):
    """Each is looked for where it may be lacking, and not again once it was seen."""
    seen = counts(steps[2])
    assert seen["get", "pools/KEY/spec.json"] == OBJECTS["pools"]
    assert seen["get", "samples/KEY/spec.json"] == OBJECTS["samples"]
    # Before it is made: by the stage, under the lock, and by who writes it.
    assert seen["get", "policies/KEY/manifest.json"] == 3
    assert not any(verb == "get" and "zarr.json" in kind for verb, kind in seen)
    assert not any(verb == "get" and kind.endswith("/BLOCK") for verb, kind in seen)
    assert seen["put", "pools/KEY/data.zarr/ARRAY/zarr.json"] + seen[
        "put", "samples/KEY/data.zarr/ARRAY/zarr.json"
    ] == (ARRAYS)


def test_what_can_change_is_asked_for_each_time(steps):
    seen = counts(steps[2])
    # The run's lease before every write into its folder, the lock of an object before anything of it is trusted.
    writes = seen["put", "runs/counted/iterations/N/refs.json"] + seen["put", "runs/counted/iterations/N/summary.json"]
    assert seen["get", "runs/counted/lock"] == writes
    for kind in ("pools", "samples"):
        assert seen["get", f"locks/{kind}-KEY.lock"] == seen["list", f"{kind}/KEY"] >= OBJECTS[kind]
    assert seen["get", "runs/counted/iterations/N/summary.json"] == seen["get", "runs/counted/trimmed.json"] == 1
    assert seen["list", "runs/counted/spent.jsonl"] >= 1


def test_the_store_is_in_use_under_one_lease_all_the_time(steps):
    assert not any("store.lock" in request.key for requests in steps for request in requests)
