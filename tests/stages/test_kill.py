"""A run that is killed anywhere goes on, and ends as one that was never interrupted.

Children are killed by SIGKILL at the events of ``tests/support/killing.py``, which also has a longer random test.
"""

import os
import random
import re

import pytest

from tests.support.contents import run_contents
from tests.support.killing import (
    Child,
    Kill,
    check_kill_left_no_damage,
    check_little_was_redone,
    leftovers,
    random_kills,
    run_child,
)
from tests.support.micro import micro_recipe, write_prompts
from tests.support.wholeness import check_whole

RANDOM_KILLS = 24


@pytest.fixture(scope="module")
def recipe(micro_model, tmp_path_factory):
    """One iteration with an audit."""
    return micro_recipe(micro_model, write_prompts(tmp_path_factory.mktemp("prompts")), iterations=1)


@pytest.fixture(scope="module")
def whole(recipe, tmp_path_factory):
    """An uninterrupted run: what it did, and what it made."""
    root = tmp_path_factory.mktemp("whole") / "store"
    attempt = run_child(root, "run", recipe)
    return attempt, run_contents(root, "run")


# A number counts from the start of the child: within the first block, so that a second kill meets it again.
PLACES = {
    "open": [
        Kill(r"0/open/fsync store\.json"),
        Kill(r"0/open/replace store\.json", after=True),
        Kill(r"0/open/replace runs/run/config\.json"),
        Kill(r"0/open/replace runs/run/config\.json", after=True),
        Kill(r"0/open/rename policies/KEY"),
    ],
    "baseline": [
        Kill(r"0/evaluate/begin"),
        Kill(r"0/evaluate/forward", 2),
        Kill(r"0/evaluate/end"),
        Kill(r"0/summary/replace .*summary\.json"),
        Kill(r"0/summary/replace .*summary\.json", after=True),
    ],
    "quantize": [
        Kill(r"1/quantize/begin"),
        Kill(r"1/quantize/rename pools/KEY"),
        Kill(r"1/quantize/replace pools/KEY/data.zarr/zarr\.json", after=True),
        Kill(r"1/quantize/fsync .*spent\.jsonl", after=True),
        Kill(r"1/quantize/end"),
    ],
    "explore": [
        Kill(r"1/explore/begin"),
        Kill(r"1/explore/forward", 2),
        Kill(r"1/explore/score"),
        Kill(r"1/explore/rename .*/images", after=True),
        Kill(r"1/explore/replace .*/rewards/.*/values/c/0/1", after=True),  # values without their mark
        Kill(r"1/explore/replace .*/rewards/.*/ledger/c/1/0/0"),
        Kill(r"1/explore/replace .*/rewards/.*/ledger/c/1/0/0", after=True),  # marked, not in the journal
        Kill(r"1/explore/end"),
    ],
    "select": [
        Kill(r"1/select/begin"),
        Kill(r"1/select/fsync .*manifest\.json"),
        Kill(r"1/select/rename selections/KEY"),
        Kill(r"1/select/rename selections/KEY", after=True),
        Kill(r"1/select/end"),
        Kill(r"1/between/replace .*refs\.json", 3, after=True),
    ],
    "regenerate": [
        Kill(r"1/regenerate/begin"),
        Kill(r"1/regenerate/forward", 3),
        Kill(r"1/regenerate/decode"),
        Kill(r"1/regenerate/replace .*/latents/values/c/0/0/0/0/0", after=True),
        Kill(r"1/regenerate/replace .*/latents/ledger/c/1/0/0", after=True),
        Kill(r"1/regenerate/end"),
    ],
    "audit": [
        Kill(r"1/audit/begin"),
        Kill(r"1/audit/forward", 3),
        Kill(r"1/audit/replace .*/latents/ledger/c/0/1/0"),
        Kill(r"1/audit/end"),
    ],
    "update": [
        Kill(r"1/update/begin"),
        Kill(r"1/update/forward", 3),
        Kill(r"1/update/optimizer step", 1, after=True),
        Kill(r"1/update/optimizer step", 2),
        Kill(r"1/update/fsync .*optimizer\.safetensors"),
        Kill(r"1/update/rename policies/KEY"),
        Kill(r"1/update/rename policies/KEY", after=True),
        Kill(r"1/update/end"),
    ],
    "evaluate": [
        Kill(r"1/evaluate/begin"),
        Kill(r"1/evaluate/forward", 2),
        Kill(r"1/evaluate/replace .*/images/values/c/1/0", after=True),
        Kill(r"1/evaluate/rename evaluations/KEY"),
        Kill(r"1/evaluate/end"),
    ],
    "summary": [
        Kill(r"1/summary/replace .*refs\.json"),
        Kill(r"1/summary/replace .*grid\.png", after=True),
        Kill(r"1/summary/fsync .*summary\.json"),
        Kill(r"1/summary/replace .*summary\.json"),
        Kill(r"1/summary/replace .*summary\.json", after=True),
    ],
}


@pytest.mark.parametrize("stage", PLACES)
def test_killed_at_place_after_place_and_twice_in_a_row_it_ends_the_same(stage, recipe, whole, tmp_path):
    root = tmp_path / "store"
    attempts = []
    places = PLACES[stage]
    again = [kill for kill in places if not kill.after][:2]
    for kill in places:
        for _ in range(2 if kill in again else 1):
            attempts.append(run_child(root, "run", recipe, kill))
            assert attempts[-1].killed, f"no such event: {kill}"
            assert re.match(kill.pattern, attempts[-1].events[-1])
            check_kill_left_no_damage(root, attempts[-1])
    attempts.append(run_child(root, "run", recipe))
    check_kill_left_no_damage(root, attempts[-1])
    assert run_contents(root, "run") == whole[1]
    assert leftovers(root) == []
    check_little_was_redone(attempts, whole[0], recipe)


def test_every_stage_has_places_and_events(whole):
    names = {label.split("/")[1] for label in whole[0].events}
    assert names == {*PLACES, "between"} - {"baseline"}
    for stage in ("explore", "regenerate", "audit", "evaluate"):
        assert whole[0].count(rf"1/{stage}/forward") and whole[0].count(rf"1/{stage}/replace .*ledger")
    assert whole[0].count(r"1/update/optimizer step") == 2


def test_values_are_on_the_disk_before_their_mark(whole):
    labels = [label for label in whole[0].events if label.startswith("1/explore/replace") and "/c/" in label]
    for values, mark in zip(labels[::2], labels[1::2], strict=True):
        assert "/values/" in values and mark == re.sub(r"/values/c/(\d+)/(\d+).*", r"/ledger/c/\1/\2/0", values)


@pytest.mark.slow
def test_killed_at_random_it_ends_the_same(micro_model, tmp_path):
    seed = int(os.environ.get("KILL_SEED", random.SystemRandom().randrange(2**32)))
    print(f"KILL_SEED={seed}")
    recipe = micro_recipe(micro_model, write_prompts(tmp_path))
    fallen = random_kills(tmp_path, recipe, RANDOM_KILLS, random.Random(seed), print)
    assert sum(fallen.values()) == RANDOM_KILLS


def test_an_orphan_of_another_machine_does_not_stop_a_run(recipe, whole, tmp_path):
    root = tmp_path / "store"
    run_child(root, "run", recipe, Kill(r"1/explore/forward"))
    stray = root / "runs" / "run" / ".config.json.0123abcd-1-1-0.tmp"
    stray.write_text("half")
    run_child(root, "run", recipe)
    assert run_contents(root, "run") == whole[1]


def test_killed_from_outside_at_any_moment(recipe, whole, tmp_path):
    root = tmp_path / "store"
    for pattern in (r"1/explore/score", r"1/update/forward"):
        child = Child(root, "run", recipe)
        assert child.seen(pattern)
        child.kill()
        check_kill_left_no_damage(root, child.wait())
    run_child(root, "run", recipe)
    assert run_contents(root, "run") == whole[1]
    check_whole(root, "run", recipe)
