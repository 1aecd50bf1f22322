import pytest
from hypothesis import given
from hypothesis import strategies as st

from solrl_tasks.scenes.grammar import (
    HELDOUT_THINGS,
    KINDS,
    THINGS,
    Prompt,
    Thing,
    all_prompts,
    heldout_prompts,
    parse,
    training_prompts,
    words,
)
from solrl_tasks.scenes.layout import CAPTIONS, captions_of, prompt_at


def test_every_prompt_reads_back():
    prompts = all_prompts()
    assert len(prompts) == len({prompt.text for prompt in prompts}) == 15408
    for prompt in prompts:
        assert parse(prompt.text) == prompt


@given(st.sampled_from(all_prompts()))
def test_caption_numbers_read_back(prompt):
    index = int(captions_of([prompt]).index()[0])
    assert 0 <= index < CAPTIONS
    assert prompt_at(index) == prompt


def test_case_space_and_full_stop_do_not_matter():
    assert parse("  A Red  circle ON black. ") == Prompt("single", Thing("red", "circle"), None, True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a cat",
        "a red circles",
        "two red circle",
        "a orange star",
        "three red circles and a blue square",
        "two red circles left of a blue square",
        "five red circles",
        "a red circle on white",
    ],
)
def test_what_the_grammar_cannot_say_is_refused_by_name(text):
    with pytest.raises(ValueError, match="cannot read the prompt") as caught:
        parse(text)
    assert repr(text) in str(caught.value)
    assert "two red circles and a blue square" in str(caught.value)


def test_forms_and_things_must_fit():
    with pytest.raises(ValueError, match="takes two things"):
        Prompt("mixed", THINGS[0])
    with pytest.raises(ValueError, match="unknown form"):
        Prompt("five", THINGS[0])


def test_one_pair_a_colour_and_the_number_four_are_held_out():
    assert len(HELDOUT_THINGS) == len({thing.colour for thing in HELDOUT_THINGS}) == 6
    assert parse("four red circles").heldout
    assert parse("a blue star left of a red ring").heldout
    assert not parse("a blue star left of a red star").heldout


def test_the_things_asked_for_are_counted():
    assert len(parse("four red stars").things) == 4
    assert [thing.colour for thing in parse("two red stars and a blue ring").things] == ["red", "red", "blue"]


@pytest.mark.parametrize("count", [16, 256])
def test_the_split_is_disjoint_balanced_and_fixed(count):
    train, evaluation = training_prompts(count), heldout_prompts(count)
    assert len(set(train)) == len(set(evaluation)) == count
    assert set(train).isdisjoint(evaluation)
    assert train == training_prompts(count)
    for side in (train, evaluation):
        assert sum(parse(text).heldout for text in side) == count // 2
        assert {parse(text).kind for text in side} == set(KINDS)


def test_sides_stay_disjoint_at_any_size():
    assert set(training_prompts(4000)).isdisjoint(heldout_prompts(1500))


def test_more_prompts_than_there_are_is_an_error():
    with pytest.raises(ValueError, match="prompts of 99999"):
        training_prompts(99999)


def test_words_cover_every_prompt():
    known = set(words())
    assert all(known.issuperset(prompt.text.split()) for prompt in all_prompts())
