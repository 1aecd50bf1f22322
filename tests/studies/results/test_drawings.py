"""The pictures of the results: one look an arm, and only what can be told."""

import math

from solrl_tasks.analysis.plots import NEUTRAL, looks
from solrl_tasks.reports.page import Figure
from solrl_tasks.studies.results.comparison import find_results
from solrl_tasks.studies.results.drawings import draw, lines_of
from solrl_tasks.studies.results.races import race_blocks
from tests.support.arm_records import ARMS, ROLES, arm_record


def results(arms=ARMS):
    records = [
        arm_record(name, seed, [0.3 + rise * min(at, 5) + 0.001 * seed * min(at, 1) for at in range(11)])
        for name, rise in arms.items()
        for seed in (1, 2, 3)
    ]
    return find_results(records, ROLES, 10)


def test_an_arm_has_one_look_in_all_pictures_and_no_two_arms_have_the_same():
    found = results()
    lines = lines_of(found)
    seen: dict[str, set] = {}
    for these in lines.values():
        for line in these:
            seen.setdefault(line.label, set()).add(line.look)
    assert all(len(each) == 1 for each in seen.values()), seen
    assert len({next(iter(each)) for each in seen.values()}) == len(seen)
    assert [line.label for line in lines["direct"]][1] == "nvfp4-direct"
    assert lines["direct"][1].look == lines["controls-iterations"][3].look != lines["controls-iterations"][1].look
    assert [line.look for name in ("steps", "candidates") for line in lines[name]] == [NEUTRAL, NEUTRAL]
    assert set(draw(found)) == set(lines)


def test_an_arm_that_is_absent_keeps_the_places_of_those_before_it():
    found = results().model_copy(update={"absent": {"arm-x": "no units"}})
    lines = {line.label: line.look for line in lines_of(found)["controls-iterations"]}
    assert lines == {line.label: line.look for line in lines_of(results())["controls-iterations"]}


def test_more_names_than_colours_are_told_apart_by_their_strokes():
    many = looks(str(number) for number in range(30))
    assert len(set(many.values())) == 30
    assert many["0"].colour == many["8"].colour and many["0"].dash != many["8"].dash
    assert looks(["a", "b", "a"]).keys() == {"a", "b"}


def test_the_caption_of_speed_ups_claims_no_more_than_their_intervals():
    found = results()
    (figure,) = [block for block in race_blocks(found, draw(found)) if isinstance(block, Figure)]
    assert "resolve" not in figure.caption
    assert "one that holds 1 does not say which is cheaper" in figure.provenance.note
    told = lines_of(found)["speed-ups"]
    assert told and all(math.isfinite(value) for line in told for value in line.y)
