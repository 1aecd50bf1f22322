"""What is held out stays held out, whatever else is put into the set."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solrl_tasks.config.recipe import HeldoutSplit, PromptsSpec
from solrl_tasks.prompts.errors import PromptsError
from solrl_tasks.prompts.heldout import require_disjoint, split
from solrl_tasks.prompts.read import read_sets
from solrl_tasks.sampling.identity import candidate_seed
from solrl_tasks.sampling.prompts import Prompt, PromptSet

LINES = st.lists(st.sampled_from("abcdefghijkl"), min_size=1, max_size=30)
HALF = HeldoutSplit(fraction=0.5, seed=3)


def prompt_set(lines):
    return PromptSet(tuple(Prompt(line) for line in lines))


def sides(prompts):
    """The side of each text; a set that falls on one side alone is refused, and its sides are not known."""
    try:
        return {text: side for side, part in enumerate(split(prompts, HALF)) for text in part.texts}
    except PromptsError:
        return {}


@settings(deadline=None)
@given(LINES, st.sampled_from("abcdefghijklmn"), st.data())
def test_inserting_a_line_leaves_the_other_prompts_what_they_were(lines, line, data):
    at = data.draw(st.integers(0, len(lines)))
    before, after = prompt_set(lines), prompt_set([*lines[:at], line, *lines[at:]])
    added = set(after.keys) - set(before.keys)
    assert set(before.keys) <= set(after.keys) and len(added) == 1
    assert after.texts[after.keys.index(added.pop())] == line
    noise = {key: candidate_seed(5, key, 0) for key in before.keys}
    assert all(candidate_seed(5, key, 0) == seed for key, seed in noise.items())
    was, now = sides(before), sides(after)
    assert all(now[text] == side for text, side in was.items())


@settings(deadline=None)
@given(LINES)
def test_the_two_sides_are_disjoint_whole_and_in_order(lines):
    prompts = prompt_set(lines)
    try:
        train, heldout = split(prompts, HALF)
    except PromptsError:
        return
    require_disjoint(train, heldout)
    assert sorted([*train.keys, *heldout.keys]) == sorted(prompts.keys)
    for part in (train, heldout):
        places = [prompts.keys.index(key) for key in part.keys]
        assert places == sorted(places)


def test_equal_texts_are_on_one_side_whatever_their_metadata():
    prompts = PromptSet(tuple(Prompt(str(n // 3), {"n": n}) for n in range(300)))
    train, heldout = split(prompts, HALF)
    assert not set(train.texts) & set(heldout.texts)
    assert len(train) % 3 == len(heldout) % 3 == 0


def test_the_share_is_about_what_was_asked_for_and_the_seed_chooses():
    prompts = prompt_set([str(n) for n in range(4000)])
    chosen = {seed: set(split(prompts, HeldoutSplit(fraction=0.1, seed=seed))[1].texts) for seed in (0, 1)}
    assert all(abs(len(texts) - 400) < 60 for texts in chosen.values())
    assert len(chosen[0] & chosen[1]) < 80


def test_an_empty_side_is_refused():
    with pytest.raises(PromptsError, match=r"a fraction of 0\.001 .* of 2 prompts leaves no held-out prompt"):
        split(prompt_set("ab"), HeldoutSplit(fraction=0.001))


def test_shared_prompts_are_refused_by_name(tmp_path):
    (tmp_path / "train.txt").write_text("a cat\na dog\na bird\n" + "long " * 1000 + "\n")
    (tmp_path / "held.jsonl").write_text(
        '{"prompt": "a fish"}\n{"prompt": "a dog", "n": 1}\n{"prompt": "' + "long " * 1000 + '"}\n'
    )
    with pytest.raises(PromptsError, match=r"share 2 prompts, such as 'a dog', 'long long .*…'") as refused:
        read_sets(PromptsSpec(train="train.txt", heldout="held.jsonl"), tmp_path)
    assert len(str(refused.value)) < 500


def test_a_split_of_one_source_keeps_the_keys_of_the_whole(tmp_path):
    (tmp_path / "all.txt").write_text("".join(f"thing {n % 20}\n" for n in range(40)))
    train, heldout = read_sets(PromptsSpec(train="all.txt", heldout={"fraction": 0.3}), tmp_path)
    assert len(train) + len(heldout) == 40
    assert {key[-2:] for key in heldout.keys} == {"-0", "-1"}


def test_a_split_that_leaves_nothing_names_its_field(tmp_path):
    (tmp_path / "train.txt").write_text("a red circle\na blue square\n")
    (tmp_path / "heldout.txt").write_text("a green star\n")
    spec = PromptsSpec(train="train.txt", heldout="heldout.txt", without=HeldoutSplit(fraction=1e-9), per_iteration=1)
    with pytest.raises(PromptsError, match=r"^prompts\.without: a fraction"):
        read_sets(spec, tmp_path)
