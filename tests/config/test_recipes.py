"""The recipes in configs/: each is valid as it stands, without weights, network or prompts at hand."""

from pathlib import Path

import pytest

from solrl_tasks.config.extensions import build, find_extension, list_extensions
from solrl_tasks.config.load import load_recipe
from solrl_tasks.stages.session import prepare

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
ARCHITECTURE = {
    "flux-dev": "flux.1-dev",
    "flux-schnell": "flux.1-schnell",
    "sd3.5-large": "sd3.5-large",
    "sd3.5-medium": "sd3.5-medium",
    "sana": "sana-1.6b",
}
"""What stands in for the hub's model of the same configuration."""
RECIPES = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
LARGE = [name for name in RECIPES if not name.startswith("embedded")]
FULL = pytest.mark.parametrize("name", LARGE)


def model_of(name):
    """The recipe of the same model that follows the paper; the others differ in their objective."""
    return max((model for model in ARCHITECTURE if name.startswith(model)), key=len)


def recipe_of(name, **overrides):
    return load_recipe(CONFIGS / f"{name}.yaml", overrides)


def test_every_large_model_has_a_recipe():
    assert set(ARCHITECTURE) <= set(LARGE)


def test_every_objective_has_a_recipe_for_the_model_in_the_repository():
    found = {recipe_of(name).update.objective.name for name in RECIPES if name.startswith("embedded")}
    assert found == set(list_extensions("objective"))


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_are_named_after_their_file(name):
    assert recipe_of(name).name == name


@FULL
def test_options_prompts_and_counts_fit(name, tmp_path):
    texts = {"train": range(25_432), "heldout": range(-2048, 0)}
    for kind, numbers in texts.items():
        (tmp_path / f"{kind}.txt").write_text("".join(f"prompt {i}\n" for i in numbers), encoding="utf-8")
    prompts = {f"prompts.{kind}": f"{kind}.txt" for kind in texts}
    # Of the same shape and not from a hub: what is looked at here is the recipe.
    prompts["model.source"] = f"random:{ARCHITECTURE[model_of(name)]}"
    prepared = prepare(recipe_of(name, **prompts), tmp_path)
    assert (len(prepared.train), len(prepared.heldout)) == (25_432, 2048)


@FULL
def test_the_family_takes_the_model_section_and_the_samplers_its_grid(name):
    recipe = recipe_of(name)
    spec = recipe.model.model_copy(update={"source": f"random:{ARCHITECTURE[model_of(name)]}"})
    family = find_extension("family", spec.family)
    family._check(spec)
    channels, height, width = family.latent_shape_of(spec)
    assert channels in (16, 32)
    assert height == width == spec.resolution // (32 if name == "sana" else 8)
    for sampling in (recipe.explore, recipe.regenerate, recipe.evaluate.sampling):
        build("sampler", sampling.sampler, {}).check(family.grid_of(spec, sampling.steps))
    assert recipe.update.lora.targets in family.lora_presets
    assert recipe.update.times_per_sample <= recipe.regenerate.steps


@pytest.mark.parametrize("name", [name for name in RECIPES if name.startswith("embedded")])
def test_recipes_of_the_model_in_the_repository_can_be_run(name):
    recipe = recipe_of(name)
    prepare(recipe)
    plain = recipe_of("embedded")
    # One comparison: the same prompts, exploration and evaluation.
    for part in ("seed", "iterations", "model", "prompts", "explore"):
        assert getattr(recipe, part) == getattr(plain, part)
    assert recipe.evaluate.sampling == plain.evaluate.sampling


@pytest.mark.parametrize("name", sorted(ARCHITECTURE))
def test_what_the_paper_publishes_for_all_stands_in_all(name):
    recipe = recipe_of(name)
    assert (recipe.explore.candidates, recipe.select.keep, recipe.prompts.per_iteration) == (96, 24, 48)
    assert (recipe.update.lora.rank, recipe.update.lora.alpha, recipe.update.optimizer.lr) == (32, 64, 3e-4)
    assert (recipe.evaluate.every, recipe.evaluate.prompts, recipe.evaluate.seeds) == (20, 2048, 1)
