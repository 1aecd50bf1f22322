"""What is known of a family by its recipe alone, and which recipes are refused."""

import subprocess
import sys

import pytest

from solrl_tasks.config.extensions import list_extensions
from tests.support.tiny import EACH, FAMILIES, load, tiny_spec


def test_the_families_are_found_by_name():
    assert set(FAMILIES) == set(list_extensions("family"))


@EACH
def test_what_can_be_known_without_loading(name, monkeypatch):
    family = load(tiny_spec(name))
    monkeypatch.setattr("solrl_tasks.models.families.pipeline.load_pipeline", None)
    cls, spec = type(family), family.spec
    assert cls.latent_shape_of(spec) == family.latent_shape
    precise = {"text": "float32", "transformer": "float32", "vae": "float32", "decode": "eager"}
    assert cls.numerics(spec, "cpu") == precise
    assert cls.numerics(spec, "sm_90")["vae"].startswith("bfloat16")
    assert [cls.grid_of(spec, steps) for steps in (1, 6)] == [family.sigmas(steps) for steps in (1, 6)]
    assert cls.text_key(spec, "cpu") == cls.text_key(spec.model_copy(update={"text_encoders": "keep"}), "cpu")


def test_naming_families_does_not_import_the_libraries():
    code = (
        "import sys; from tests.support.tiny import FAMILIES, tiny_spec\n"
        "from solrl_tasks.config.extensions import find_extension\n"
        "for name in FAMILIES:\n"
        "    family = find_extension('family', name)\n"
        "    print(family.numerics(tiny_spec(name), 'sm_90'), family.grid_of(tiny_spec(name), 4))\n"
        "assert not {'diffusers', 'transformers', 'peft', 'accelerate'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout.count("'transformer': 'bfloat16'") == 3


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("sd3", {"resolution": 40}, "model.resolution is 40: .* needs a multiple of 16"),
        ("sd3", {"resolution": 160}, "has positions for at most 128"),
        ("sana", {"resolution": 34}, "model.resolution is 34: .* needs a multiple of 4"),
        ("flux", {"max_sequence_length": 600}, "flux takes at most 512"),
        ("sd3", {"max_sequence_length": 600}, "sd3 takes at most 512"),
        ("flux", {"t5": False}, "model.t5 is False, which the flux family does not have"),
        ("sana", {"t5": False}, "model.t5 is False, which the sana family does not have"),
        ("sd3", {"complex_human_instruction": True}, "which the sd3 family does not have"),
        ("sd3", {"source": "random:tiny-sana"}, "is a SanaPipeline, but model.family 'sd3' runs a Stable"),
        ("sana", {"source": "random:tiny-none"}, "no such architecture; known are flux.1-dev, .*tiny-sd3"),
        ("sana", {"revision": "main"}, "model.revision"),
    ],
)
def test_recipes_that_do_not_fit_are_refused(name, changes, message):
    with pytest.raises(ValueError, match=message):
        load(tiny_spec(name, **changes))


def test_a_negative_prompt_without_guidance_is_refused():
    with pytest.raises(ValueError, match="guidance_scale 1 is no guidance"):
        tiny_spec("sd3", negative_prompt="blurry")
