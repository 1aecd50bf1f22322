import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solrl_tasks.rewards.lettering import Lettering, UnquotedError, edit_distance, likeness, normalised, quoted

PLAIN = Lettering()
INSIDE = Lettering(surplus="ignore")
WORDS = st.text(alphabet="ab ", max_size=7)


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ('a sign that says "OPEN"', ("OPEN",)),
        ('"A" over "B" by "C"', ("A", "B", "C")),
        ("a card with “Grand Opening”", ("Grand Opening",)),
        ("ein Schild „Achtung“ und „Halt”", ("Achtung", "Halt")),
        ("un panneau «Sortie»", ("Sortie",)),
        ("a banner 「祝」 and 『福』", ("祝", "福")),
        ('a shirt with "don\'t panic"', ("don't panic",)),
        ('a speech bubble “he said "hi"”', ('he said "hi"',)),
        ('blank around: " x "', (" x ",)),
        ("the dogs' bowl isn't 'mine' but \"yours\"", ("yours",)),
    ],
)
def test_double_marks_quote(prompt, texts):
    assert quoted(prompt) == texts


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("a sign 'OPEN'", ("OPEN",)),
        ("'OPEN' on a door", ("OPEN",)),
        ("the dogs' bowl that says 'don't bark'", ("don't bark",)),
        ("a sign \u2018CLOSED\u2019 in curly marks, isn\u2019t it", ("CLOSED",)),
        ("it's \"A\" and 'B'", ("A", "B")),
    ],
)
def test_single_marks_quote_when_asked(prompt, texts):
    assert quoted(prompt, single_quotes=True) == texts


@pytest.mark.parametrize(
    ("prompt", "single", "message"),
    [
        ("a sign that says OPEN", False, "quotes no text.*single quotes count only with the option"),
        ("a sign 'OPEN'", False, "quotes no text"),
        ("the dogs' bowl isn't full", True, "quotes no text: put the words"),
        ('a sign ""', False, "quotes a blank text"),
        ('a sign "A" and "  "', False, "quotes a blank text"),
        ('a 12" pizza', False, 'opens a quote with " that nothing closes'),
        ("a sign “OPEN", False, "opens a quote with “ that nothing closes"),
        ("", False, "quotes no text"),
    ],
)
def test_a_prompt_without_words_to_write_is_refused(prompt, single, message):
    with pytest.raises(UnquotedError, match=message):
        quoted(prompt, single)


@pytest.mark.parametrize(
    ("found", "wanted", "whole", "inside"),
    [
        ("", "", 0, 0),
        ("", "abc", 3, 3),
        ("abc", "", 3, 0),
        ("kitten", "sitting", 3, 3),
        ("flaw", "lawn", 2, 1),
        ("xxabcxx", "abc", 4, 0),
        ("xxabxx", "abc", 4, 1),
        ("xyz", "abc", 3, 3),
        ("acb", "abc", 2, 1),
    ],
)
def test_known_distances(found, wanted, whole, inside):
    assert edit_distance(found, wanted) == whole
    assert edit_distance(found, wanted, inside=True) == inside


def by_recursion(a, b):
    if not a or not b:
        return len(a) + len(b)
    return min(by_recursion(a[1:], b) + 1, by_recursion(a, b[1:]) + 1, by_recursion(a[1:], b[1:]) + (a[0] != b[0]))


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="ab", max_size=5), st.text(alphabet="ab", max_size=5))
def test_the_distance_is_that_of_its_definition(a, b):
    assert edit_distance(a, b) == edit_distance(b, a) == by_recursion(a, b)
    stretches = [a[i:j] for i, j in itertools.combinations(range(len(a) + 1), 2)] + [""]
    assert edit_distance(a, b, inside=True) == min(by_recursion(stretch, b) for stretch in stretches)


@settings(max_examples=60, deadline=None)
@given(WORDS, WORDS.filter(str.strip), st.sampled_from([PLAIN, INSIDE, Lettering(spacing="single")]))
def test_likeness_is_1_for_equal_texts_alone_and_never_leaves_0_to_1(found, wanted, rules):
    value = likeness([found], [wanted], rules)
    assert 0 <= value <= 1
    same = normalised(wanted, rules) == normalised(found, rules)
    inside = rules is INSIDE and normalised(wanted, rules) in normalised(found, rules)
    assert (value == 1) == (same or inside)


@pytest.mark.parametrize(
    ("rules", "text", "expected"),
    [
        ({}, "Grand  Opening!", "grandopening!"),
        ({"case": "match"}, "Grand Opening", "GrandOpening"),
        ({"spacing": "single"}, "  Grand \n Opening ", "grand opening"),
        ({"punctuation": "ignore"}, "Don't, stop - 24/7!", "dontstop247"),
        ({}, "STRASSE", "strasse"),
        ({}, "Straße", "strasse"),
        ({}, "don\u2019t", "don't"),
        ({}, "\uff2f\uff30\uff25\uff2e", "open"),
        ({"punctuation": "ignore"}, "cafe\u0301", "café"),
    ],
)
def test_the_rules_of_comparison(rules, text, expected):
    assert normalised(text, Lettering(**rules)) == expected


def test_likeness_by_hand():
    assert likeness(["Hello", "World"], ["hello world"], PLAIN) == 1
    assert likeness(["hello world"], ["Hello World"], Lettering(case="match")) == pytest.approx(1 - 2 / 10)
    assert likeness(["helloworld"], ["hello world"], Lettering(spacing="single")) == pytest.approx(1 - 1 / 11)
    assert likeness(["OPFN"], ["OPEN"], PLAIN) == 0.75
    assert likeness(["OPEN DAILY"], ["OPEN"], PLAIN) == pytest.approx(1 - 5 / 9)
    assert likeness(["OPEN DAILY"], ["OPEN"], INSIDE) == 1
    assert likeness([], ["OPEN"], PLAIN) == likeness([], ["OPEN"], INSIDE) == 0
    assert likeness(["xyz"], ["abc"], PLAIN) == 0


def test_several_texts_may_stand_in_any_order():
    assert likeness(["RIGHT", "LEFT"], ["left", "right"], PLAIN) == 1
    assert likeness(["RIGHT", "LEFT"], ["left", "right"], Lettering(spacing="single")) == 1
    # One of two texts missing: 4 of 9 letters.
    assert likeness(["RIGHT"], ["left", "right"], PLAIN) == pytest.approx(1 - 4 / 9)
    assert likeness(["RIGHT"], ["ab", "right"], INSIDE) == pytest.approx(1 - 2 / 7)
    five = ["a", "b", "c", "d", "e"]
    assert likeness(["a b c d e"], five, PLAIN) == 1
    assert likeness(["e d c b a"], five, PLAIN) < 1


def test_a_text_with_nothing_to_compare_is_refused():
    with pytest.raises(UnquotedError, match=r"\['!!'\] one has no letter left"):
        likeness(["x"], ["!!"], Lettering(punctuation="ignore"))
