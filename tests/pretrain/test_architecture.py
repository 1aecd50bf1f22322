import dataclasses

import numpy as np
import pytest
import torch
from diffusers import FluxPipeline

from solrl_tasks.pretrain.architecture import EMBEDDED, MICRO, SIZES, build_pipeline
from solrl_tasks.pretrain.tokenizers import MAX_TOKENS, clip_tokenizer, t5_tokenizer
from solrl_tasks.scenes.grammar import all_prompts, words


def pictures(pipeline, size, prompts=("two green stars and a blue ring on black",), steps=3):
    out = pipeline(
        list(prompts),
        height=size.image,
        width=size.image,
        num_inference_steps=steps,
        guidance_scale=0.0,
        max_sequence_length=MAX_TOKENS,
        generator=torch.Generator().manual_seed(0),
        output_type="np",
    )
    return np.asarray(out.images)


def test_every_word_is_one_token():
    clip, t5 = clip_tokenizer(), t5_tokenizer()
    for word in words():
        assert len(clip(word).input_ids) == 3
        assert len(t5(word).input_ids) == 2
    clip_ids = {tuple(clip(word).input_ids) for word in words()}
    assert len(clip_ids) == len({tuple(t5(word).input_ids) for word in words()}) == len(words())


def test_every_prompt_fits():
    longest = max((prompt.text for prompt in all_prompts()), key=lambda text: len(text.split()))
    assert len(clip_tokenizer()(longest).input_ids) <= MAX_TOKENS
    assert len(t5_tokenizer()(longest).input_ids) <= MAX_TOKENS


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_linear_layers_fit_nvfp4_blocks(size):
    transformer = build_pipeline(size).transformer
    linear = [module for module in transformer.modules() if isinstance(module, torch.nn.Linear)]
    assert linear
    assert all(module.in_features % 16 == 0 for module in linear)


def test_a_pipeline_is_a_function_of_its_seed():
    state = torch.random.get_rng_state()
    first, again, other = build_pipeline(MICRO), build_pipeline(MICRO), build_pipeline(MICRO, seed=1)
    assert torch.equal(state, torch.random.get_rng_state())
    for a, b, c in zip(*(pipe.transformer.parameters() for pipe in (first, again, other)), strict=True):
        assert torch.equal(a, b)
        assert a.ndim < 2 or not torch.equal(a, c)


def test_saved_and_loaded_it_draws_the_same_pictures(tmp_path):
    pipeline = build_pipeline(MICRO)
    pipeline.save_pretrained(tmp_path)
    loaded = FluxPipeline.from_pretrained(tmp_path, local_files_only=True)
    loaded.set_progress_bar_config(disable=True)
    for part in ("transformer", "vae", "text_encoder", "text_encoder_2"):
        before, after = (getattr(pipe, part).state_dict() for pipe in (pipeline, loaded))
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)
    # Kernels sum in another order where the weights lie at another address.
    np.testing.assert_allclose(pictures(pipeline, MICRO), pictures(loaded, MICRO), atol=1e-5)


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="rope axes"):
        dataclasses.replace(MICRO, rope_axes=(4, 4, 4))
    with pytest.raises(ValueError, match="do not divide"):
        dataclasses.replace(MICRO, image=40)
    with pytest.raises(ValueError, match="multiple of 16"):
        dataclasses.replace(EMBEDDED, text_width=40)
