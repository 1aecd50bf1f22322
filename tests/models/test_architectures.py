"""The architectures in the package: their sizes, layers and vocabularies."""

import json
import re

import diffusers
import pytest
import torch

from solrl_tasks.config.extensions import find_extension
from solrl_tasks.models.families.base import FamilyError
from solrl_tasks.models.random_pipeline import draw_part, small_parts
from solrl_tasks.models.random_weights import build_from, count, draw
from solrl_tasks.models.sources import ARCHITECTURES, EMBEDDED, fetch, read_config
from tests.support.tiny import (
    FULL,
    full_spec,
)

COUNTS = {
    "flux.1-dev": (11.90, 418, 418, 19 * 8 + 38 * 3, 19 * 4 + 38 * 3),
    "flux.1-schnell": (11.89, 418, 418, 19 * 8 + 38 * 3, 19 * 4 + 38 * 3),
    "sd3.5-large": (8.06, 453, 453, 38 * 8 - 1, 38 * 8 - 1),
    "sd3.5-medium": (2.24, 337, 337, 24 * 8 - 1 + 13 * 4, 24 * 8 - 1),
    "sana-1.6b": (1.60, 200, 200, 160, 160),
}
"""Billions of weights; layers replaced, adapted by all, attention, paper. 24 * 12 - 3 + 13 * 4 = 337."""


@pytest.mark.parametrize("source", FULL)
def test_full_size_architectures_are_what_they_are_named_after(source):
    billions, *layers = COUNTS[source]
    spec = full_spec(source)
    cls = find_extension("family", spec.family)
    config = read_config(fetch(spec), "transformer")
    config |= {"pos_embed_max_size": 2} if spec.family == "sd3" else {}  # a table, not weights, and slow to make
    transformer = draw(
        build_from(getattr(diffusers, config["_class_name"]), config), torch.bfloat16, torch.device("meta"), "x"
    )
    assert count(transformer) / 1e9 == pytest.approx(billions, abs=0.005)
    family = cls.__new__(cls)
    family.transformer = transformer
    match = cls.scope.resolve(transformer)
    assert [len(match.replaced), *(len(family.lora_targets(p)) for p in ("all", "attention", "paper"))] == layers
    is_kernel = [path for path in match.replaced if isinstance(transformer.get_submodule(path), torch.nn.Conv2d)]
    assert is_kernel == [path for path in match.replaced if re.fullmatch(cls.convolutions, path)]
    assert len(is_kernel) == (40 if spec.family == "sana" else 0)
    with pytest.raises(FamilyError, match="there is all and attention and paper"):
        family.lora_targets("mlp")


TEXT_BILLIONS = {
    ("flux.1-dev", "text_encoder"): 0.123,
    ("flux.1-dev", "text_encoder_2"): 4.762,
    ("sd3.5-large", "text_encoder_2"): 0.695,
    ("sd3.5-large", "text_encoder_3"): 4.762,
    ("sana-1.6b", "text_encoder"): 2.614,
    ("sana-1.6b", "vae"): 0.312,
    ("sd3.5-medium", "vae"): 0.084,
}


@pytest.mark.parametrize(("source", "part"), TEXT_BILLIONS)
def test_the_other_parts_have_their_size(source, part):
    network = draw_part(fetch(full_spec(source)), part, torch.bfloat16, torch.device("meta"))
    assert count(network) / 1e9 == pytest.approx(TEXT_BILLIONS[source, part], abs=0.001)


@pytest.mark.parametrize("source", [p.name for p in sorted(ARCHITECTURES.iterdir()) if p.is_dir()])
def test_borrowed_tokenizers_stay_within_the_vocabulary(source):
    folder = ARCHITECTURES / source
    for name, tokenizer in small_parts(folder).items():
        if name.startswith("tokenizer"):
            encoder = json.loads((folder / name.replace("tokenizer", "text_encoder") / "config.json").read_text())
            assert len(tokenizer) <= encoder["vocab_size"]
            if "CLIP" in type(tokenizer).__name__:
                assert tokenizer.eos_token_id == encoder["eos_token_id"]
    assert (EMBEDDED / "tokenizer" / "tokenizer.json").is_file()
