"""A recipe is frozen, knows its fields, and names what is wrong."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from solrl_tasks.config.load import RecipeError, load_recipe, parse_recipe
from solrl_tasks.config.recipe import Recipe

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_recipe_of_the_repository_is_valid(path):
    recipe = load_recipe(path)
    assert Recipe.model_validate(recipe.model_dump(mode="json")) == recipe


def test_a_recipe_cannot_change_after_validation():
    with pytest.raises(ValidationError, match="frozen"):
        Recipe().seed = 1


def test_overrides_reach_into_sections_and_none_means_the_recipes_value():
    recipe = parse_recipe({"explore": {"steps": 8}}, {"explore.candidates": 192, "explore.steps": None}, "here")
    assert (recipe.explore.steps, recipe.explore.candidates) == (8, 192)


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"explore": {"stepz": 4}}, "explore.stepz is not a known field"),
        ({"explore": {"steps": 0}}, "explore.steps: Input should be greater than or equal to 1"),
        ({"explore": {"steps": "many"}}, "found 'many'"),
        ({"select": {"keep": 100}, "explore": {"candidates": 96}}, "select.keep is 100"),
        ({"rewards": [{"name": "scene", "weight": 0}]}, "every weight is 0"),
        ({"explore": {"resolution": 8}}, "explore.resolution: Input should be greater than or equal to 16"),
        ({"regenerate": {"resolution": 32}}, "resolution is 32, but what is trained on and what is measured"),
        ({"evaluate": {"sampling": {"resolution": 32}}}, "Only explore.resolution can differ"),
        ({"rewards": [{"name": "scene"}, {"name": "scene"}]}, "stands twice"),
        ({"update": {"optimizer": {"lr": float("nan")}}}, "update.optimizer.lr"),
        ({"update": {"optimizer": {"betas": [0.9, 1.5]}}}, "update.optimizer.betas.1"),
    ],
)
def test_a_wrong_field_is_named_with_what_is_allowed(tree, words):
    with pytest.raises(RecipeError, match=words):
        parse_recipe(tree, {}, "here")


def test_a_missing_file_lists_its_siblings(tmp_path):
    (tmp_path / "other.yaml").write_text("seed: 1")
    with pytest.raises(RecipeError, match=r"does not exist: .* holds other\.yaml"):
        load_recipe(tmp_path / "absent.yaml")


def test_a_file_that_cannot_be_read_is_told_without_a_number_of_the_system(tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").write_text("seed: 1")
    (tmp_path / "latin.yaml").write_bytes("name: gr\u00fcn\n".encode("latin-1"))
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbfseed: 7")
    for name, words in {
        "": r"is a folder: name a file in it; .* holds bom.yaml, latin.yaml, mine.yaml",
        "mine.yaml/inner.yaml": r"inner.yaml does not exist",
        "latin.yaml": r"latin.yaml is not text in UTF-8: byte 8 \(line 1\) is 0xfc. Save it as UTF-8",
    }.items():
        with pytest.raises(RecipeError, match=words) as caught:
            load_recipe(tmp_path / name)
        assert "Errno" not in str(caught.value) and "codec" not in str(caught.value)
    assert load_recipe(tmp_path / "bom.yaml").seed == 7
    for text in ("", "  \n", "# only words\n"):
        (tmp_path / "mine.yaml").write_text(text)
        with pytest.raises(RecipeError, match=r"mine.yaml is empty: a recipe is a mapping .*docs/configuration.md"):
            load_recipe(tmp_path / "mine.yaml")

    def refused(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(RecipeError, match=r"mine.yaml may not be read by this user: .*chmod") as caught:
        load_recipe(tmp_path / "mine.yaml")
    assert "Errno" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["a: [", "- 1\n- 2", "seed: 1\nseed", "seed: 1\nseed: 2", "explore: &a {steps: *a}", "seed: " + "9" * 5000],
    ids=["open", "list", "half", "twice", "anchor in itself", "endless number"],
)
def test_a_file_that_is_no_recipe_is_named(tmp_path, text):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError, match=r"bad\.yaml"):
        load_recipe(path)
