import pytest
import torch

from solrl_tasks.scenes.grammar import COLOURS, HELDOUT_FORM, HELDOUT_THINGS, RELATIONS, all_prompts, parse
from solrl_tasks.scenes.layout import arrange, captions_of, draw_captions, prompt_at
from solrl_tasks.scenes.renderer import draw_prompts, render

SOME = [prompt.text for prompt in all_prompts()[::401]]


def test_the_same_seed_gives_the_same_pictures():
    first, again, other = draw_prompts(SOME, 1), draw_prompts(SOME, 1), draw_prompts(SOME, 2)
    assert first.dtype == torch.uint8
    assert first.shape == (len(SOME), 64, 64, 3)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_scene_does_not_depend_on_its_batch():
    scenes = arrange(captions_of([parse(text) for text in SOME]), torch.Generator().manual_seed(0))
    whole = render(scenes)
    alone = render(type(scenes)(scenes.thing[3:4], scenes.centre[3:4], scenes.radius[3:4], scenes.black[3:4]))
    assert torch.equal(whole[3:4], alone)


def test_background_and_colour_are_those_of_the_prompt():
    white, black = draw_prompts(["a red square", "a red square on black"], 4)
    assert white[0, 0].tolist() == [255, 255, 255]
    assert black[0, 0].tolist() == [0, 0, 0]
    for picture in (white, black):
        assert (picture == torch.tensor(COLOURS["red"])).all(-1).sum() > 100


def test_objects_keep_their_distance_and_the_relation():
    texts = [prompt.text for prompt in all_prompts() if prompt.form in RELATIONS][::97]
    prompts = [parse(text) for text in texts]
    scenes = arrange(captions_of(prompts), torch.Generator().manual_seed(3))
    delta = scenes.centre[:, 1] - scenes.centre[:, 0]
    apart = delta.norm(dim=-1) - scenes.radius[:, 0] - scenes.radius[:, 1]
    assert apart.min() > 0
    for prompt, (dx, dy) in zip(prompts, delta.tolist(), strict=True):
        ahead = {"left of": dx, "right of": -dx, "above": dy, "below": -dy}[prompt.form]
        assert ahead >= max(abs(dx), abs(dy)) - 1e-3


def test_pretraining_never_sees_what_is_held_out():
    captions = draw_captions(4000, torch.Generator().manual_seed(5))
    prompts = [prompt_at(int(index)) for index in captions.index()]
    assert not any(prompt.heldout for prompt in prompts)
    assert HELDOUT_FORM not in {prompt.form for prompt in prompts}
    assert HELDOUT_THINGS.isdisjoint(thing for prompt in prompts for thing in prompt.things)
    assert 0.3 < sum(prompt.black for prompt in prompts) / len(prompts) < 0.4


def test_a_size_that_is_none_is_refused():
    scenes = arrange(captions_of([parse("a red circle")]), torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="positive size"):
        render(scenes, 0)
