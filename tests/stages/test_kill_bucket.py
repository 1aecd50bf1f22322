"""A run whose store is in a bucket, killed anywhere, ends as an uninterrupted one whose store is a folder.

Children are killed by SIGKILL at requests to a server of the S3 protocol, as ``test_kill`` does at writes of files.
"""

import re
from pathlib import Path

import pytest

from solrl_tasks.config.recipe import Recipe
from tests.support.contents import run_contents
from tests.support.killing import (
    Attempt,
    Child,
    Kill,
    check_kill_left_no_damage,
    check_little_was_redone,
    run_child,
)
from tests.support.micro import micro_recipe, write_prompts
from tests.support.s3 import S3Server, serving, speaking_to
from tests.support.wholeness import check_whole


@pytest.fixture(scope="module")
def server():
    with serving() as found:
        yield found


@pytest.fixture(scope="module")
def recipe(micro_model, tmp_path_factory) -> Recipe:
    """One iteration with an audit."""
    return micro_recipe(micro_model, write_prompts(tmp_path_factory.mktemp("prompts")), iterations=1)


@pytest.fixture(scope="module")
def whole(recipe, tmp_path_factory) -> tuple[Attempt, dict[str, object]]:
    """An uninterrupted run in a folder: what it did, and what it made."""
    root = tmp_path_factory.mktemp("whole") / "store"
    return run_child(root, "run", recipe), run_contents(root, "run")


@pytest.fixture
def url(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SOLRL_HOME", str(tmp_path / "home"))
    with speaking_to(server, lease=20.0) as found:
        yield found


PLACES = {
    "open": [
        Kill(r"0/open/put store\.json"),
        Kill(r"0/open/put store\.json", after=True),
        Kill(r"0/open/put runs/run/lock", after=True),
        Kill(r"0/open/put locks/store\.lock\.shared/TOKEN", after=True),
        Kill(r"0/open/put runs/run/config\.json"),
        Kill(r"0/open/put runs/run/config\.json", after=True),
        Kill(r"0/open/put policies/KEY/current\.safetensors", after=True),
        Kill(r"0/open/put policies/KEY/manifest\.json"),
    ],
    "baseline": [
        Kill(r"0/evaluate/forward", 2),
        Kill(r"0/evaluate/put evaluations/KEY/manifest\.json"),
        Kill(r"0/summary/put runs/run/iterations/0000/summary\.json"),
        Kill(r"0/summary/put runs/run/iterations/0000/summary\.json", after=True),
    ],
    "explore": [
        Kill(r"1/quantize/put pools/KEY/spec\.json"),
        Kill(r"1/quantize/put pools/KEY/data\.zarr/zarr\.json", after=True),
        Kill(r"1/quantize/put runs/run/spent\.jsonl/ENTRY\.json", after=True),
        Kill(r"1/explore/forward", 2),
        Kill(r"1/explore/put locks/pools-KEY\.lock", after=True),
        Kill(r"1/explore/put pools/KEY/data\.zarr/rewards/.*/values/zarr\.json", after=True),
        Kill(r"1/explore/put pools/KEY/data\.zarr/rewards/[^/]*/zarr\.json"),
        Kill(r"1/explore/put .*/rewards/.*/values/c/0/1", after=True),
        Kill(r"1/explore/put .*/rewards/.*/ledger/c/1/0/0"),
        Kill(r"1/explore/put .*/rewards/.*/ledger/c/1/0/0", after=True),
        Kill(r"1/explore/end"),
    ],
    "select": [
        Kill(r"1/select/put selections/KEY/manifest\.json"),
        Kill(r"1/select/put selections/KEY/manifest\.json", after=True),
        Kill(r"1/between/put runs/run/iterations/0001/refs\.json", 3, after=True),
    ],
    "regenerate": [
        Kill(r"1/regenerate/put samples/KEY/spec\.json", after=True),
        Kill(r"1/regenerate/forward", 3),
        Kill(r"1/regenerate/put .*/latents/values/c/0/0/0/0/0", after=True),
        Kill(r"1/regenerate/put .*/latents/ledger/c/1/0/0", after=True),
        Kill(r"1/audit/put .*/latents/ledger/c/0/1/0"),
    ],
    "update": [
        Kill(r"1/update/forward", 3),
        Kill(r"1/update/put policies/KEY/current\.safetensors", after=True),
        Kill(r"1/update/put policies/KEY/optimizer\.safetensors"),
        Kill(r"1/update/put policies/KEY/manifest\.json"),
        Kill(r"1/update/put policies/KEY/manifest\.json", after=True),
    ],
    "evaluate": [
        Kill(r"1/evaluate/put .*/images/values/c/1/0", after=True),
        Kill(r"1/evaluate/put evaluations/KEY/manifest\.json", after=True),
        Kill(r"1/summary/put runs/run/iterations/0001/grid\.png", after=True),
        Kill(r"1/summary/put runs/run/iterations/0001/summary\.json"),
        Kill(r"1/summary/put runs/run/iterations/0001/summary\.json", after=True),
    ],
}


@pytest.mark.parametrize("stage", PLACES)
def test_killed_at_request_after_request_it_ends_as_one_in_a_folder(stage, recipe, whole, url):
    attempts = []
    for kill in PLACES[stage]:
        attempts.append(run_child(url, "run", recipe, kill))
        assert attempts[-1].killed, f"no such event: {kill}"
        assert re.match(kill.pattern, attempts[-1].events[-1])
        check_kill_left_no_damage(url, attempts[-1])
    attempts.append(run_child(url, "run", recipe))
    check_kill_left_no_damage(url, attempts[-1])
    assert run_contents(url, "run") == whole[1]
    check_little_was_redone(attempts, whole[0], recipe)
    check_whole(url, "run", recipe)


def test_two_runs_at_once_share_a_pool_and_pay_for_it_once(recipe, whole, url):
    children = [Child(url, run_id, recipe) for run_id in ("run", "other")]
    attempts = [child.wait() for child in children]
    assert not [attempt.error for attempt in attempts if attempt.error]
    assert run_contents(url, "run") == run_contents(url, "other") == whole[1]
    for stage in ("explore", "regenerate", "audit", "evaluate"):
        pattern = rf"1/{stage}/forward"
        assert sum(attempt.count(pattern) for attempt in attempts) == whole[0].count(pattern)


def test_one_of_two_is_killed_and_the_other_goes_on_with_its_blocks(recipe, whole, url):
    victim = Child(url, "victim", recipe, pause=0.02)
    assert victim.seen(r"1/explore/put .*/ledger/c/0/0/0")
    other = Child(url, "run", recipe)
    victim.kill()
    victim.wait()
    assert not other.wait().error
    assert run_contents(url, "run") == whole[1]


def test_a_server_that_stumbles_is_waited_for(recipe, whole, url, server):
    child = Child(url, "run", recipe)
    for pattern in (r"1/explore/forward", r"1/update/forward"):
        assert child.seen(pattern)
        server.failing = 4
    attempt = child.wait()
    assert not attempt.error, attempt.error
    assert run_contents(url, "run") == whole[1]


def test_a_server_that_goes_away_ends_the_run_and_it_goes_on_later(recipe, whole, url, server, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("SOLRL_STORE_TIMEOUT", "1")
        child = Child(url, "run", recipe)
        assert child.seen(r"1/explore/forward")
        server.failing = 10**6
        attempt = child.wait()
    server.calm()
    assert "UnreachableError" in attempt.error and "the same command goes on from there" in attempt.error
    run_child(url, "run", recipe)
    assert run_contents(url, "run") == whole[1]
