"""The flux family against diffusers' own pipeline, for the embedded kind and the FLUX.1-dev kind."""

import json
import shutil

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from safetensors.torch import load_file, save_file

from solrl_tasks.config.extensions import find_extension
from solrl_tasks.config.recipe import ModelSpec
from solrl_tasks.models.families import flux
from solrl_tasks.models.families.base import FamilyError
from solrl_tasks.models.families.flux import Flux, pack, unpack
from solrl_tasks.models.sources import SourceError
from solrl_tasks.sampling.identity import initial_noise
from solrl_tasks.sampling.samplers.euler import Euler

CPU = torch.device("cpu")
PROMPTS = ["a red circle", "two blue squares on black"]


def spec_of(folder, **changes):
    return ModelSpec(**{"source": str(folder), "resolution": 32, "dtype": "float32", **changes})


@pytest.fixture(scope="session")
def dev_like(micro_model, tmp_path_factory):
    """With what FLUX.1-dev has: guidance embedding, dynamic shift, scaled and shifted latents."""
    folder = tmp_path_factory.mktemp("models") / "dev"
    pipe = FluxPipeline.from_pretrained(micro_model, dtype=torch.float32)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        guided = FluxTransformer2DModel(**{**dict(pipe.transformer.config), "guidance_embeds": True})
    pipe.register_modules(
        transformer=guided,
        scheduler=FlowMatchEulerDiscreteScheduler(
            shift=3.0, use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15, base_image_seq_len=2
        ),
    )
    pipe.vae.register_to_config(scaling_factor=0.3611, shift_factor=0.1159)
    pipe.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session", params=["embedded-like", "dev-like"])
def folder(request, micro_model, dev_like):
    return micro_model if request.param == "embedded-like" else dev_like


@pytest.fixture(scope="session")
def family(folder):
    return Flux.load(spec_of(folder, guidance=3.5), CPU)


def reference_images(folder, noise, steps):
    pipe = FluxPipeline.from_pretrained(folder, dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    common = {
        "prompt": PROMPTS,
        "latents": pack(noise),
        "num_inference_steps": steps,
        "guidance_scale": 3.5,
        "height": 32,
        "width": 32,
        "max_sequence_length": 16,
    }
    latents = pipe(**common, output_type="latent").images
    return latents, pipe(**common, output_type="np").images


def test_the_family_is_found_by_name():
    assert find_extension("family", "flux") is Flux


def test_sampling_equals_the_pipeline(folder, family):
    noise = initial_noise([3, 4], family.latent_shape)
    conditioning = family.encode(PROMPTS)
    with torch.no_grad():
        x0 = Euler().sample(
            lambda x, t: family.velocity(family.transformer, x, t, conditioning), noise, family.sigmas(6)
        )
    latents, images = reference_images(folder, noise, 6)
    torch.testing.assert_close(x0, unpack(latents, family.latent_shape), rtol=0, atol=1e-4)
    decoded = family.decode(x0)
    assert decoded.images.dtype == np.uint8
    assert decoded.images.shape == (2, 32, 32, 3)
    assert decoded.finite.all()
    assert np.abs(decoded.images.astype(int) - (images * 255).round().astype(int)).max() <= 1
    assert decoded.images.std() > 0


def test_guidance_counts_only_where_the_model_has_it(folder, family):
    x = initial_noise([1], family.latent_shape)
    other = Flux.load(spec_of(folder, guidance=1.0), CPU)
    one, two = (f.velocity(f.transformer, x, 0.7, f.encode(PROMPTS[:1])) for f in (family, other))
    assert torch.equal(one, two) is (family._guided is False)


def test_the_grid_follows_the_scheduler(folder, family):
    scheduler = FlowMatchEulerDiscreteScheduler.from_pretrained(folder, subfolder="scheduler")
    mu = 0.5 + 0.65 * (4 - 2) / (4096 - 2)
    for steps in (1, 6, 10):
        scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=mu)
        assert family.sigmas(steps) == pytest.approx(scheduler.sigmas.tolist(), abs=2e-7)


def test_the_base_is_frozen(family):
    assert not family.transformer.training
    assert not any(p.requires_grad for p in family.transformer.parameters())
    assert {p.dtype for p in family.transformer.parameters()} == {torch.float32}


def test_scope_and_targets_cover_the_blocks(family):
    match = family.scope.resolve(family.transformer)
    assert len(match.replaced) == 12 + 5
    assert all("blocks." in path and "norm" not in path for path in match.replaced)
    assert match.skipped["proj_out"] == "final projection"
    assert match.skipped["norm_out.linear"].startswith("adaptive")
    assert family.lora_targets("all") == match.replaced
    attention = family.lora_targets("attention")
    assert len(attention) == 8 + 3
    assert "transformer_blocks.0.attn.to_out.0" in attention
    with pytest.raises(FamilyError, match="all and attention"):
        family.lora_targets("mlp")


def test_the_embedded_architecture_has_44_targets():
    from solrl_tasks.pretrain.architecture import EMBEDDED, build_pipeline

    transformer = build_pipeline(EMBEDDED).transformer
    assert len(flux.SCOPE.resolve(transformer).replaced) == 44


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"resolution": 40}, "model.resolution is 40: .* needs a multiple of 16"),
        ({"max_sequence_length": 600}, "at most 512"),
        ({"revision": "main"}, "model.revision"),
    ],
)
def test_recipes_that_do_not_fit_are_refused(micro_model, changes, message):
    with pytest.raises(ValueError, match=message):
        Flux.load(spec_of(micro_model, **changes), CPU)


@pytest.fixture
def own_copy(micro_model, tmp_path):
    return shutil.copytree(micro_model, tmp_path / "copy")


def edit_json(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("part", ["transformer", "vae", "text_encoder", "text_encoder_2"])
def test_absent_weights_are_not_made_up(own_copy, part):
    (path,) = (own_copy / part).glob("*.safetensors")
    weights = load_file(path)
    name = sorted(weights)[0]
    save_file({k: v for k, v in weights.items() if k != name}, path, metadata={"format": "pt"})
    with pytest.raises(SourceError, match=f"lacks weights.*{name}"):
        Flux.load(spec_of(own_copy), CPU).encode(PROMPTS)


def test_damaged_folders_are_named(own_copy):
    (own_copy / "vae" / "diffusion_pytorch_model.safetensors").write_bytes(b"torn")
    with pytest.raises(SourceError, match=r"copy.* cannot be loaded"):
        Flux.load(spec_of(own_copy), CPU)


def test_other_pipelines_are_refused(own_copy):
    edit_json(own_copy / "model_index.json", _class_name="SanaPipeline")
    with pytest.raises(FamilyError, match=r"is a SanaPipeline, but model\.family 'flux' runs a FluxPipeline"):
        Flux.load(spec_of(own_copy), CPU)


def test_unknown_scheduler_settings_are_refused(own_copy):
    edit_json(own_copy / "scheduler" / "scheduler_config.json", use_karras_sigmas=True)
    with pytest.raises(FamilyError, match="use_karras_sigmas"):
        Flux.load(spec_of(own_copy), CPU)


def test_loading_leaves_the_libraries_as_they_were(micro_model, capfd):
    import logging

    import diffusers
    import transformers

    def settings():
        bars = [lib.utils.logging.is_progress_bar_enabled() for lib in (diffusers, transformers)]
        return bars, [
            (logging.getLogger(n).level, len(logging.getLogger(n).handlers)) for n in ("diffusers", "transformers")
        ]

    before = settings()
    Flux.load(spec_of(micro_model), CPU)
    assert settings() == before
    assert "%|" not in capfd.readouterr().err
