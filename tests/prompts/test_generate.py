"""Made prompts are different, reproducible, and say of themselves what their pictures must show."""

import json
from collections import Counter

import pytest

from solrl_tasks.prompts.composition import CLASS_NAMES, COLOURS, NUMBERS, RELATIONS
from solrl_tasks.prompts.errors import PromptsError
from solrl_tasks.prompts.generate import KINDS, generate
from solrl_tasks.prompts.read import read_prompts
from solrl_tasks.rewards.asked import parse_asked
from solrl_tasks.rewards.lettering import quoted

kinds = pytest.mark.parametrize("kind", sorted(KINDS))


@kinds
def test_prompts_are_different_and_the_same_again(kind, tmp_path):
    records = generate(kind, 200, seed=4)
    assert len({record["prompt"] for record in records}) == 200
    assert generate(kind, 200, seed=4) == records
    assert generate(kind, 50, seed=4) == records[:50]
    assert generate(kind, 50, seed=5) != records[:50]
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert read_prompts(str(path)).texts == tuple(record["prompt"] for record in records)


def test_every_form_of_composition_has_its_share():
    tags = Counter(record["tag"] for record in generate("composition", 240, seed=0))
    assert set(tags) == {"single_object", "two_object", "counting", "colors", "position", "color_attr"}
    assert set(tags.values()) == {40}


def test_a_form_that_is_exhausted_leaves_the_rest_to_the_others():
    tags = Counter(record["tag"] for record in generate("composition", 900, seed=0))
    assert tags["single_object"] <= len(CLASS_NAMES) == 80
    assert tags["color_attr"] > 150
    with pytest.raises(PromptsError, match="100000 prompts of kind ocr asked for, but only"):
        generate("ocr", 100_000, seed=0)


def test_what_must_be_seen_is_what_is_said():
    for record in generate("composition", 400, seed=1):
        said, include = record["prompt"], record["include"]
        assert all(entry["class"] in CLASS_NAMES for entry in include)
        assert len({entry["class"] for entry in include}) == len(include)
        for entry in include:
            assert "color" not in entry or (entry["color"] in COLOURS and entry["color"] in said)
        if record["tag"] == "counting":
            count = include[0]["count"]
            assert f" {NUMBERS[count]} " in said
            assert record["exclude"] == [{"class": include[0]["class"], "count": count + 1}]
        else:
            assert all(entry["count"] == 1 and entry["class"] in said for entry in include)
            assert "exclude" not in record
        if record["tag"] == "position":
            relation, to = include[1]["position"]
            assert relation in RELATIONS and to == 0
            before, after = said.split(f" {relation} ")
            assert before.endswith(include[1]["class"]) and after.endswith(include[0]["class"])


def test_written_words_are_those_that_the_reward_reads():
    for record in generate("ocr", 200, seed=2):
        assert quoted(record["prompt"]) == (record["text"],)


def test_what_must_be_seen_is_read_by_the_reward_that_looks_for_it():
    for record in generate("composition", 240, seed=3):
        asked = parse_asked({name: value for name, value in record.items() if name != "prompt"})
        assert [item.name for item in asked.include] == [entry["class"] for entry in record["include"]]
