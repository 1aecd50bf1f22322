import pytest
import torch

from solrl_tasks.pretrain.data import (
    CaptionNoise,
    Corrupter,
    draw_images,
    pack,
    to_images,
    to_signal,
    token_table,
    unpack,
)
from solrl_tasks.pretrain.tokenizers import clip_tokenizer
from solrl_tasks.scenes.grammar import parse
from solrl_tasks.scenes.layout import captions_of, draw_captions, prompt_at


def texts(captions):
    return [prompt_at(int(index)).text for index in captions.index()]


def test_corrupted_captions_never_name_what_is_held_out():
    torch.manual_seed(0)
    captions = draw_captions(5000, torch.Generator().manual_seed(1))
    corrupted = Corrupter(CaptionNoise(), "cpu")(captions)
    assert not any(parse(text).heldout for text in texts(corrupted))
    changed = (captions.index() != corrupted.index()).float().mean()
    assert 0.35 < changed < 0.6


def test_no_noise_changes_nothing():
    captions = draw_captions(500, torch.Generator().manual_seed(1))
    silent = Corrupter(CaptionNoise(0, 0, 0, 0, 0, 0), "cpu")
    assert torch.equal(silent(captions).index(), captions.index())


@pytest.mark.parametrize(
    ("noise", "before", "after"),
    [
        (CaptionNoise(0, 0, 1, 0, 0, 0), "two red stars", {"three red stars"}),
        (CaptionNoise(0, 0, 1, 0, 0, 0), "two red stars and a blue ring", {"a red star and a blue ring"}),
        (CaptionNoise(0, 0, 0, 0, 1, 0), "a red star above a blue ring", {"a red star"}),
        (CaptionNoise(0, 0, 0, 0, 1, 0), "two red stars and a blue ring", {"two red stars"}),
        (CaptionNoise(0, 0, 0, 0, 0, 1), "a red star on black", {"a red star"}),
        (
            CaptionNoise(0, 0, 0, 1, 0, 0),
            "a red star above a blue ring",
            {f"a red star {relation} a blue ring" for relation in ("below", "left of", "right of")},
        ),
    ],
)
def test_each_kind_of_noise(noise, before, after):
    captions = captions_of([parse(before)] * 40)
    assert set(texts(Corrupter(noise, "cpu")(captions))) == after


def test_packing_is_undone_and_is_that_of_flux():
    from diffusers import FluxPipeline

    latents = torch.randn(2, 4, 6, 6)
    packed = pack(latents)
    assert torch.equal(unpack(packed), latents)
    assert torch.equal(packed, FluxPipeline._pack_latents(latents, 2, 4, 6, 6))


def test_pixels_survive_the_signal():
    images, captions = draw_images(5, 32, torch.Generator().manual_seed(0))
    assert images.shape == (5, 32, 32, 3)
    assert len(captions) == 5
    assert torch.equal(to_images(to_signal(images)), images)


def test_the_token_table_is_the_tokenizers():
    tokenizer = clip_tokenizer()
    table = token_table(tokenizer)
    text = "two red stars and a blue ring on black"
    row = table[int(captions_of([parse(text)]).index()[0])]
    assert row.tolist() == tokenizer(text, padding="max_length", max_length=16).input_ids
