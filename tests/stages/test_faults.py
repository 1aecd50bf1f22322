"""Disks, clocks and servers fail in the middle of a run: it ends in words, goes on, and ends as an undisturbed one."""

import hashlib

import pytest

from solrl_tasks.rewards.protocol import decode_image
from solrl_tasks.stages.iteration import run_all
from solrl_tasks.stages.session import open_session
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import view_run
from solrl_tasks.tracking.summary import Summary
from tests.support.contents import run_contents
from tests.support.faults import clock_set_back, full_disk, in_child, read_only, whole
from tests.support.micro import micro_recipe, write_prompts
from tests.support.scripted import Say, Scripted

KINDS = pytest.mark.parametrize("real", [True, False], ids=["real", "injected"])


@pytest.fixture(scope="module")
def recipe(micro_model, tmp_path_factory):
    return micro_recipe(micro_model, write_prompts(tmp_path_factory.mktemp("prompts")), iterations=1).model_dump_json()


@pytest.fixture(scope="module")
def expected(recipe, tmp_path_factory):
    return in_child(whole, tmp_path_factory.mktemp("whole"), recipe)


def check(found, expected):
    assert found["again"] == ""
    assert found["contents"] == expected
    assert (found["left"], found["damaged"]) == ([], [])


@KINDS
@pytest.mark.parametrize("stage", ["1/explore", "1/regenerate", "1/update"])
def test_a_full_disk(stage, real, recipe, expected, tmp_path):
    found = in_child(full_disk, tmp_path, recipe, stage, real)
    assert "No space left on device" in found["said"]
    assert "/store/" in found["said"], "the file says which disk"
    assert "make room" in found["said"]
    check(found, expected)


@KINDS
@pytest.mark.parametrize("stage", ["1/explore", "1/update"])
def test_a_store_that_becomes_read_only(stage, real, recipe, expected, tmp_path):
    found = in_child(read_only, tmp_path, recipe, stage, real)
    assert "the same command goes on" in found["said"]
    check(found, expected)


@pytest.mark.parametrize("stage", ["1/explore", "1/evaluate"])
def test_a_clock_that_is_set_back(stage, recipe, expected, tmp_path):
    found = in_child(clock_set_back, tmp_path, recipe, stage)
    assert found["said"] == ""
    check(found, expected)
    store = Store.open(tmp_path / "store", create=False)
    summaries = [Summary.model_validate(raw) for raw in view_run(store, "run").summaries().values()]
    assert summaries[1].timestamp_ms < summaries[0].timestamp_ms


def by_content(asked):
    """The answer of a server that scores by an image's bytes."""
    shown = (hashlib.sha256(decode_image(image).tobytes()).digest() for image in asked.body["images"])
    return Say({"protocol": 1, "reward": "pixel", "version": "7", "scores": [digest[0] / 255 for digest in shown]})


def test_a_reward_server_that_hangs(micro_model, tmp_path):
    prompts = write_prompts(tmp_path)

    def go(url, root):
        options = {"url": url, "reward": "pixel", "version": "7", "retries": 1, "backoff": 0.01, "timeout": 1.0}
        spec = [{"name": "remote", "options": options}]
        # The address is no part of a reward's identity, but of a recipe: the same server comes back.
        with open_session(root, "run", micro_recipe(micro_model, prompts, iterations=1, rewards=spec)) as session:
            for _ in run_all(session):
                pass

    with Scripted(by_content).running() as server:
        go(server.url, tmp_path / "whole")
        server.steps[:] = [by_content, Say(wait=60.0)]
        server.asked.clear()
        with pytest.raises(Exception, match="1 s") as raised:
            go(server.url, tmp_path / "store")
        assert type(raised.value).__module__.startswith("solrl_tasks.")
        server.steps[:] = [by_content]
        go(server.url, tmp_path / "store")
    assert run_contents(tmp_path / "store", "run") == run_contents(tmp_path / "whole", "run")
