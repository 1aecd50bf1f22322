import pytest

from solrl_tasks.rewards.asked import Asked, Item, UnaskedError, parse_asked


def test_the_six_kinds_of_geneval_are_read():
    assert parse_asked({"tag": "single_object", "include": [{"class": "bench", "count": 1}]}) == Asked((Item("bench"),))
    counted = {"include": [{"class": "clock", "count": 4}], "exclude": [{"class": "clock", "count": 5}]}
    assert parse_asked(counted) == Asked((Item("clock", 4),), (("clock", 5),))
    bound = {"include": [{"class": "wine glass", "color": "purple"}, {"class": "apple", "color": "black"}]}
    assert parse_asked(bound) == Asked((Item("wine glass", colour="purple"), Item("apple", colour="black")))
    assert parse_asked(bound).coloured == {"wine glass", "apple"}
    placed = {"include": [{"class": "dog"}, {"class": "tie", "position": ["above", 0]}]}
    assert parse_asked(placed) == Asked((Item("dog"), Item("tie", relation="above", target=0)))
    assert parse_asked({**counted, **placed}).names == ("dog", "tie", "clock")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, 'has no metadata "include": name a prompts file of JSON lines'),
        ({"include": []}, '"include" is empty'),
        ({"include": "dog"}, "\"include\" must be a list of objects, found 'dog'"),
        ({"include": ["dog"]}, '"include" must be a list of objects'),
        ({"include": [{"class": "dog"}], "exclude": {"class": "cat"}}, '"exclude" must be a list of objects'),
        (
            {"include": [{"class": "dog", "colour": "red"}]},
            r"include\[0\] has the unknown key colour: allowed are cla",
        ),
        (
            {"include": [{"class": "dog"}], "exclude": [{"class": "cat", "color": "red"}]},
            r"exclude\[0\] has the unknown",
        ),
        ({"include": [{"count": 1}]}, r"include\[0\]\.class is None"),
        ({"include": [{"class": " "}]}, r"include\[0\]\.class is ' '"),
        (
            {"include": [{"class": "dog", "count": 0}]},
            r"include\[0\]\.count is 0: it must be a whole number from",
        ),
        ({"include": [{"class": "dog", "count": True}]}, r"include\[0\]\.count is True"),
        ({"include": [{"class": "dog", "count": 17}]}, r"include\[0\]\.count is 17"),
        (
            {"include": [{"class": "dog", "color": "teal"}]},
            r"include\[0\]\.color is 'teal': colours told apart are red",
        ),
        ({"include": [{"class": "dog", "position": "above"}]}, r"include\[0\]\.position is 'above'"),
        ({"include": [{"class": "dog", "position": ["over", 1]}]}, "left of, right of, above, below"),
        ({"include": [{"class": "dog", "position": ["above", 0]}]}, r"points to entry 0: it must be another one"),
        ({"include": [{"class": "dog", "position": ["above", 1]}]}, r"points to entry 1"),
        ({"include": [{"class": "dog", "position": ["above", -1]}, {"class": "cat"}]}, r"points to entry -1"),
    ],
)
def test_metadata_that_do_not_say_what_to_look_for_are_refused(metadata, message):
    with pytest.raises(UnaskedError, match=message):
        parse_asked(metadata)
