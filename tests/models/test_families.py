"""Every family against its own diffusers pipeline, on tiny pipelines of the real classes."""

import inspect
import json
import re
import shutil
import subprocess
import sys

import diffusers
import numpy as np
import pytest
import torch

from solrl_tasks.config.extensions import find_extension, list_extensions
from solrl_tasks.models.families.base import Conditioning, FamilyError
from solrl_tasks.models.families.flux import pack, unpack
from solrl_tasks.models.grids import scheduler_grid
from solrl_tasks.models.random_pipeline import draw_part, small_parts
from solrl_tasks.models.random_weights import build_from, count, draw
from solrl_tasks.models.sources import ARCHITECTURES, EMBEDDED, fetch, read_config
from solrl_tasks.sampling.identity import initial_noise
from solrl_tasks.sampling.samplers.dpm2 import Dpm2
from solrl_tasks.sampling.samplers.euler import Euler
from tests.support.tiny import CPU, FAMILIES, FULL, full_spec, load, save_tiny, tiny_spec

PROMPTS = ["a red circle", "two blue squares on black"]
NEGATIVE = "a green ring"
EACH = pytest.mark.parametrize("name", FAMILIES)
GUIDED = {"guidance_scale": 3.0, "negative_prompt": NEGATIVE}


def load_folder(tiny_folder, **changes):
    name, folder = tiny_folder
    return load(tiny_spec(name, source=str(folder), dtype="float32", **changes))


def our_latents(family, noise, steps, sampler=Euler):
    conditioning = family.encode(PROMPTS)
    with torch.no_grad():
        return sampler().sample(
            lambda x, s: family.velocity(family.transformer, x, s, conditioning), noise, family.sigmas(steps)
        )


def their_call(name, family, noise, steps):
    """The pipeline's own call for the same images."""
    call = {
        "prompt": PROMPTS,
        "latents": pack(noise) if name == "flux" else noise,
        "num_inference_steps": steps,
        "height": 32,
        "width": 32,
        "max_sequence_length": 16,
        "guidance_scale": family.spec.guidance_scale,
    }
    if name == "flux":
        call |= {"guidance_scale": family.spec.guidance, "true_cfg_scale": family.spec.guidance_scale}
    if name == "sana":
        call |= {"use_resolution_binning": False, "complex_human_instruction": None}
    if family.negative_prompt is not None:
        call["negative_prompt"] = [NEGATIVE] * 2 if name != "sana" else NEGATIVE
    return call


def their_pipeline(tiny_folder):
    name, folder = tiny_folder
    pipe = getattr(diffusers, find_extension("family", name).pipeline_class).from_pretrained(
        folder, dtype=torch.float32
    )
    pipe.set_progress_bar_config(disable=True)
    if name == "sana":
        keep_times_whole(pipe.scheduler)
    return pipe


def keep_times_whole(scheduler):
    """SANA's scheduler cuts what the network is told to integers, of 1000; nothing is cut here."""
    original = scheduler.set_timesteps

    def set_timesteps(*args, **kwargs):
        original(*args, **kwargs)
        scheduler.timesteps = scheduler.sigmas[:-1] * 1000

    scheduler.set_timesteps = set_timesteps


def their_latents(pipe, name, family, noise, steps):
    latents = pipe(**their_call(name, family, noise, steps), output_type="latent").images
    return unpack(latents, family.latent_shape) if name == "flux" else latents


def test_the_families_are_found_by_name():
    assert set(FAMILIES) == set(list_extensions("family"))


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("guidance", [{"guidance": 3.5}, GUIDED], ids=["plain", "guided"])
def test_sampling_equals_the_pipeline(tiny_folder, guidance):
    name, _ = tiny_folder
    family = load_folder(tiny_folder, **guidance)
    noise = initial_noise([3, 4], family.latent_shape)
    pipe = their_pipeline(tiny_folder)
    if name == "sana":
        pipe.scheduler.register_to_config(solver_order=1)
    theirs = their_latents(pipe, name, family, noise, 6)
    ours = our_latents(family, noise, 6)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)
    images = pipe(**their_call(name, family, noise, 6), output_type="np").images
    decoded = family.decode(ours)
    assert decoded.finite.all()
    assert np.abs(decoded.images.astype(int) - (images * 255).round().astype(int)).max() <= 1
    assert decoded.images.std() > 1


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_dpm2_equals_the_solver_of_sana(tmp_path):
    sana = ("sana", save_tiny("sana", tmp_path / "sana"))
    family = load_folder(sana)
    noise = initial_noise([3, 4], family.latent_shape)
    theirs = their_latents(their_pipeline(sana), "sana", family, noise, 8)
    torch.testing.assert_close(our_latents(family, noise, 8, Dpm2), theirs, rtol=0, atol=1e-4)


def test_a_saved_pipeline_is_the_drawn_one(tiny_folder):
    name, _ = tiny_folder
    saved, drawn = load_folder(tiny_folder), load(tiny_spec(name, dtype="float32"))
    for part in ("transformer", "vae"):
        ours, theirs = (getattr(f._pipeline, part).state_dict() for f in (drawn, saved))
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[k], theirs[k]) and ours[k].dtype == theirs[k].dtype for k in ours)
    encoded = [family.encode(PROMPTS).tensors for family in (saved, drawn)]
    assert all(torch.equal(encoded[0][k], encoded[1][k]) for k in encoded[0])


@EACH
def test_prompts_matter_and_their_neighbours_do_not(name):
    family = load(tiny_spec(name, **GUIDED))
    both, alone = family.encode(PROMPTS), family.encode(PROMPTS[1:])
    assert all(torch.equal(both.take([1]).tensors[k], alone.tensors[k]) for k in alone.tensors)
    assert {t.dtype for t in both.tensors.values()} == {torch.float32}
    assert not torch.equal(both.tensors["embeds"][0], both.tensors["embeds"][1])


@EACH
def test_velocity_takes_a_level_a_row_and_passes_gradients(name):
    family = load(tiny_spec(name, dtype="float32", **GUIDED))
    x = initial_noise([1, 2], family.latent_shape).requires_grad_()
    conditioning = family.encode(PROMPTS)
    both = family.velocity(family.transformer, x, torch.tensor([0.9133, 0.25]), conditioning)
    for row, sigma in enumerate((0.9133, 0.25)):
        one = family.velocity(family.transformer, x[row : row + 1], sigma, conditioning.take([row]))
        torch.testing.assert_close(both[row : row + 1], one, rtol=0, atol=1e-5)
    near = family.velocity(family.transformer, x[:1], 0.9130, conditioning.take([0]))
    assert not torch.equal(near, both[:1])
    both.square().sum().backward()
    assert x.grad.abs().sum() > 0


@EACH
def test_guidance_is_the_formula(name):
    plain, guided = load(tiny_spec(name)), load(tiny_spec(name, **GUIDED))
    x = initial_noise([1, 2], plain.latent_shape)
    towards, against = (
        plain.velocity(plain.transformer, x, 0.6, plain.encode(texts)) for texts in (PROMPTS, [NEGATIVE] * 2)
    )
    found = guided.velocity(guided.transformer, x, 0.6, guided.encode(PROMPTS))
    torch.testing.assert_close(found, against + 3.0 * (towards - against), rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="needs a negative prompt, but the conditioning has none for embeds"):
        guided.velocity(guided.transformer, x, 0.6, plain.encode(PROMPTS))
    with pytest.raises(ValueError, match="2 latents have 1 rows"):
        plain.velocity(plain.transformer, x, 0.6, plain.encode(PROMPTS[:1]))


@EACH
def test_another_guidance_is_another_view_of_the_same_networks(name):
    plain, guided = load(tiny_spec(name)), load(tiny_spec(name, **GUIDED, guidance=3.5))
    viewed = load(tiny_spec(name, **GUIDED, guidance=3.5)).with_guidance(1.0, 1.0)
    x = initial_noise([1, 2], plain.latent_shape)
    for one, two in ((viewed, plain), (viewed.with_guidance(3.5, 3.0), guided)):
        assert one.negative_prompt == two.negative_prompt
        ours, theirs = (f.velocity(f.transformer, x, 0.6, f.encode(PROMPTS)) for f in (one, two))
        assert torch.equal(ours, theirs)
    assert viewed.with_guidance(2.0, 2.0).transformer is viewed.transformer


@EACH
def test_another_resolution_is_another_view_of_the_same_networks(name):
    small, large = (load(tiny_spec(name, resolution=side)) for side in (32, 64))
    x = {family: initial_noise([1, 2], family.latent_shape) for family in (small, large)}
    before = large.velocity(large.transformer, x[large], 0.6, large.encode(PROMPTS))
    viewed = large.at_resolution(32)
    assert viewed.transformer is large.transformer
    assert (viewed.spec, viewed.latent_shape) == (small.spec, small.latent_shape)
    assert viewed.sigmas(4) == small.sigmas(4)
    ours, theirs = (f.velocity(f.transformer, x[small], 0.6, f.encode(PROMPTS)) for f in (viewed, small))
    assert torch.equal(ours, theirs)
    ours, theirs = (f.decode(x[small]).images for f in (viewed, small))
    assert ours.shape == (2, 32, 32, 3) and np.array_equal(ours, theirs)
    assert torch.equal(large.velocity(large.transformer, x[large], 0.6, large.encode(PROMPTS)), before)
    assert viewed.with_guidance(1.0, 1.0).at_resolution(64).latent_shape == large.latent_shape
    with pytest.raises(FamilyError, match=r"model\.resolution is 30"):
        large.at_resolution(30)


@EACH
def test_bfloat16_computes_in_bfloat16_and_answers_in_float32(name):
    low, exact = load(tiny_spec(name, dtype="bfloat16")), load(tiny_spec(name, dtype="float32"))
    assert {p.dtype for p in low.transformer.parameters()} == {torch.bfloat16}
    x = initial_noise([1, 2], low.latent_shape)
    with torch.no_grad():
        a, b = (f.velocity(f.transformer, x, 0.5, f.encode(PROMPTS)) for f in (low, exact))
    assert a.dtype == torch.float32
    assert 0 < (a - b).norm() / b.norm() < 0.1


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


def scheduler_of(spec):
    config = json.loads((fetch(spec) / "scheduler" / "scheduler_config.json").read_text())
    return getattr(diffusers, config["_class_name"]).from_config(config)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("steps", [1, 2, 6, 10, 40])
@pytest.mark.parametrize("source", FULL)
def test_grids_equal_the_scheduler_of_the_pipeline(source, steps):
    spec = full_spec(source)
    scheduler = scheduler_of(spec)
    arguments = {"num_inference_steps": steps}
    if spec.family == "flux":
        arguments = {"sigmas": np.linspace(1.0, 1 / steps, steps)}
        if scheduler.config.use_dynamic_shifting:
            arguments["mu"] = 0.5 + 0.65 * (1024 - 256) / (4096 - 256)
    scheduler.set_timesteps(**arguments)
    grid = find_extension("family", spec.family).grid_of(spec, steps)
    assert grid == pytest.approx(scheduler.sigmas.tolist(), abs=3e-7)


def test_a_resolution_dependent_shift_of_sd3_equals_the_scheduler(tmp_path):
    changed = json.loads((ARCHITECTURES / "tiny-sd3" / "scheduler" / "scheduler_config.json").read_text())
    changed |= {"use_dynamic_shifting": True, "base_image_seq_len": 2, "base_shift": 0.5, "max_shift": 1.15}
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler.from_config(changed)
    scheduler.set_timesteps(10, mu=0.5 + 0.65 * (4 - 2) / (4096 - 2))
    assert scheduler_grid(changed, 4, given_levels=False)(10) == pytest.approx(scheduler.sigmas.tolist(), abs=3e-7)


@EACH
def test_a_shift_of_ones_own_replaces_the_grid(name):
    assert load(tiny_spec(name, shift=1.0)).sigmas(4) == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert load(tiny_spec(name, shift=3.0)).sigmas(2) == [1.0, 0.75, 0.0]


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


@pytest.mark.parametrize(
    ("scheduler", "message"),
    [
        ({"_class_name": "EulerDiscreteScheduler"}, "EulerDiscreteScheduler, whose sigma grid is not known"),
        ({"_class_name": "FlowMatchEulerDiscreteScheduler", "use_karras_sigmas": True}, "use_karras_sigmas"),
        ({"_class_name": "DPMSolverMultistepScheduler", "prediction_type": "flow_prediction"}, "use_flow_sigmas"),
        (
            {
                "_class_name": "DPMSolverMultistepScheduler",
                "prediction_type": "flow_prediction",
                "use_flow_sigmas": True,
                "use_beta_sigmas": True,
            },
            "use_beta_sigmas",
        ),
    ],
)
def test_schedulers_with_other_grids_are_refused(scheduler, message):
    with pytest.raises(FamilyError, match=message):
        scheduler_grid(scheduler, 4, given_levels=False)


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


def test_sd3_without_t5_sees_zeros_as_diffusers_does(tmp_path):
    family = load(tiny_spec("sd3", t5=False))
    with_t5 = load(tiny_spec("sd3"))
    ours, full = (f.encode(PROMPTS).tensors["embeds"] for f in (family, with_t5))
    assert torch.equal(ours[:, :16], full[:, :16])
    assert not ours[:, 16:].any()
    assert full[:, 16:].any()
    assert ours.shape == full.shape
    assert family.memory()["text"] < with_t5.memory()["text"]


def test_sd3_may_be_saved_without_t5(tmp_path):
    folder = save_tiny("sd3", tmp_path / "sd3")
    index = json.loads((folder / "model_index.json").read_text())
    for part in ("text_encoder_3", "tokenizer_3"):
        index[part] = [None, None]
        shutil.rmtree(folder / part)
    (folder / "model_index.json").write_text(json.dumps(index))
    saved, drawn = load(tiny_spec("sd3", source=str(folder))), load(tiny_spec("sd3", t5=False))
    assert torch.equal(saved.encode(PROMPTS).tensors["embeds"], drawn.encode(PROMPTS).tensors["embeds"])


def test_sana_masks_padding_and_takes_its_instruction_when_asked():
    plain, instructed = (load(tiny_spec("sana", complex_human_instruction=c, **GUIDED)) for c in (False, True))
    one, two = plain.encode(["red"]), instructed.encode(["red"])
    # <bos> and a byte a letter.
    assert one.tensors["mask"][0].tolist() == [1.0] * int(one.tensors["mask"].sum()) + [0.0] * (
        16 - int(one.tensors["mask"].sum())
    )
    assert 3 <= one.tensors["mask"].sum() <= 5
    assert not torch.equal(one.tensors["embeds"], two.tensors["embeds"])
    assert torch.equal(one.tensors["negative_embeds"], two.tensors["negative_embeds"])
    x = initial_noise([1], plain.latent_shape)
    changed = {**one.tensors, "embeds": one.tensors["embeds"].clone()}
    changed["embeds"][:, -1] += 5.0
    with torch.no_grad():
        same, other = (plain.velocity(plain.transformer, x, 0.5, c) for c in (one, Conditioning(changed)))
    torch.testing.assert_close(same, other, rtol=0, atol=1e-6)


def test_sana_instruction_equals_the_pipeline(tmp_path):
    family = load(tiny_spec("sana", complex_human_instruction=True))
    default = inspect.signature(diffusers.SanaPipeline.__call__).parameters["complex_human_instruction"].default
    ours = family.encode(["red"])
    theirs, mask, _, _ = family._pipeline.encode_prompt(
        "red", False, device=CPU, max_sequence_length=16, complex_human_instruction=default
    )
    assert torch.equal(ours.tensors["embeds"], theirs)
    assert torch.equal(ours.tensors["mask"], mask.float())
