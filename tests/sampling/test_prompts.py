"""Prompt sets keep their keys."""

from solrl_tasks.sampling.prompts import Prompt, PromptSet


def test_keys_name_content_and_occurrence():
    prompts = PromptSet((Prompt("a"), Prompt("b"), Prompt("a"), Prompt("a", {"n": 1})))
    contents, numbers = zip(*(key.rsplit("-", 1) for key in prompts.keys), strict=True)
    assert numbers == ("0", "0", "1", "0")
    assert contents[0] == contents[2]
    assert len(set(contents)) == 3
    assert all(len(content) >= 16 for content in contents)


def test_keys_do_not_depend_on_the_order_of_metadata():
    one, other = Prompt("a", {"x": 1, "y": [2, None]}), Prompt("a", {"y": [2, None], "x": 1})
    assert PromptSet((one,)).keys == PromptSet((other,)).keys


def test_a_subset_keeps_its_keys():
    prompts = PromptSet((Prompt("a"), Prompt("a"), Prompt("b")))
    subset = prompts.subset([2, 1])
    assert subset.texts == ("b", "a")
    assert subset.keys == (prompts.keys[2], prompts.keys[1])
    assert len(subset) == 2
    assert subset[0] == Prompt("b")
    assert subset.digest != prompts.digest
    assert subset.digest == prompts.subset([2, 1]).digest
    assert len(prompts.subset([])) == 0
