"""What is refused when a run is created, and that the words name the field and what is allowed."""

from pathlib import Path
from typing import Any

import pytest
from prefect.utilities.schema_tools.validation import ValidationError, validate

from flows.deployments import make_deployments
from flows.parameters import FIELDS, read_recipe
from solrl_tasks.config.load import RecipeError
from solrl_tasks.config.recipe import Recipe


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return make_deployments()[0]._parameter_openapi_schema.model_dump(exclude_unset=True)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"keep": 1}, "'keep'. Failure reason: 1 is less than the minimum of 2"),
        ({"keep": "many"}, "'keep'. Failure reason: 'many' is not of type 'integer'"),
        ({"keep": 2.5}, "'keep'. Failure reason: 2.5 is not of type 'integer'"),
        ({"candidates": 200_000}, "200000 is greater than the maximum of 100000"),
        ({"explore_steps": 0}, "'explore_steps'. Failure reason: 0 is less than the minimum of 1"),
        ({"iterations": -3}, "'iterations'. Failure reason: -3 is less than the minimum of 1"),
        ({"engine": "fp2"}, "'fp2' is not one of ['bf16', 'fp8', 'nvfp4', 'nvfp4-emulated']"),
        ({"lr": 0}, "'lr'. Failure reason: 0 is less than or equal to the minimum of 0"),
        ({"run_id": "../up"}, "'run_id'. Failure reason: '../up' does not match"),
        ({"config": 3}, "'config'. Failure reason: 3 is not of type 'string'"),
        ({"keeep": 24}, "'keeep' was unexpected"),
    ],
)
def test_refused_at_creation(schema: dict[str, Any], parameters: dict[str, Any], words: str):
    with pytest.raises(ValidationError) as refused:
        validate(parameters, schema, raise_on_error=True)
    assert words in str(refused.value)


def test_accepted(schema: dict[str, Any]):
    given = {"run_id": "a-1", "iterations": 3, "explore_steps": 4, "candidates": 192, "keep": 24, "seed": 0}
    validate(given | {"engine": "bf16", "lr": 1e-3, "config": "configs/embedded.yaml"}, schema, raise_on_error=True)
    validate({}, schema, raise_on_error=True)


def test_the_run_form_finds_no_null_to_send_back(schema: dict[str, Any]):
    assert [name for name, rules in schema["properties"].items() if "default" in rules] == ["config"]
    assert all(rules.get("description") for rules in schema["properties"].values())


def test_the_deployments_and_where_they_are_found():
    train, study, evaluation, *others = make_deployments()
    assert (train.flow_name, train.name) == ("solrl", "train")
    assert (study.flow_name, study.name) == ("solrl-rank-fidelity", "default")
    assert (evaluation.flow_name, evaluation.name) == ("solrl-evaluate", "default")
    assert {(one.flow_name, one.name) for one in others} >= {
        ("solrl-controls", "default"),
        ("solrl-ablation", "default"),
        ("solrl-theory", "default"),
    }
    assert train.entrypoint == "flows.train.train"
    assert train.concurrency_limit is None, "the server's slots outlive a power cut"


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({}, "'run_id'"),
        ({"run_id": "../up"}, "'run_id'. Failure reason: '../up' does not match"),
        ({"run_id": "a", "role": "best"}, "'best' is not one of ['ema', 'current', 'old']"),
        ({"run_id": "a", "rewards": "scene"}, "'scene' is not of type 'array'"),
        ({"run_id": "a", "rewards": []}, "'rewards'"),
        ({"run_id": "a", "guidance_scale": 0.5}, "0.5 is less than the minimum of 1"),
        ({"run_id": "a", "iteration": -1}, "-1 is less than the minimum of 0"),
        ({"run_id": "a", "reward": ["scene"]}, "'reward' was unexpected"),
    ],
)
def test_an_evaluation_is_refused_at_creation(parameters: dict[str, Any], words: str):
    schema = make_deployments()[2]._parameter_openapi_schema.model_dump(exclude_unset=True)
    validate({"run_id": "a", "rewards": ["scene"], "role": "old", "iteration": 0}, schema, raise_on_error=True)
    with pytest.raises(ValidationError) as refused:
        validate(parameters, schema, raise_on_error=True)
    assert words in str(refused.value)


@pytest.mark.parametrize("parameter", sorted(FIELDS))
def test_ranges_are_those_of_the_recipe(schema: dict[str, Any], parameter: str, tmp_path: Path):
    """Whatever the schema lets through, the recipe takes as well."""
    rules = schema["properties"][parameter]["allOf"][0]
    low = rules.get("minimum", 1e-9)
    values = rules.get("enum") or [low, min(rules.get("maximum", 1), 2**53)]
    if rules["type"] == "string" and "enum" not in rules:
        values = ["x" * rules["minLength"]]
    (tmp_path / "r.yaml").write_text("workers: ray\nselect: {keep: 2}\nexplore: {candidates: 100000}\n")
    for value in values:
        recipe, base = read_recipe(str(tmp_path / "r.yaml"), {parameter: value})
        assert base == tmp_path
        assert lookup(recipe, FIELDS[parameter]) == value


def lookup(recipe: Recipe, field: str) -> object:
    value: object = recipe
    for name in field.split("."):
        value = getattr(value, name)
    return value


def test_nothing_given_is_the_recipe_itself(tmp_path: Path):
    (tmp_path / "r.yaml").write_text("name: mine\niterations: 3\n")
    recipe, _ = read_recipe(str(tmp_path / "r.yaml"), dict.fromkeys(FIELDS))
    assert (recipe.name, recipe.iterations, recipe.select.keep) == ("mine", 3, Recipe().select.keep)


def test_another_engine_leaves_the_options_of_the_first_behind(tmp_path: Path):
    engine = "explore: {engine: {name: nvfp4-emulated, options: {activation_scale: row}}}\n"
    (tmp_path / "r.yaml").write_text(engine)
    kept, _ = read_recipe(str(tmp_path / "r.yaml"), {"engine": "nvfp4-emulated"})
    other, _ = read_recipe(str(tmp_path / "r.yaml"), {"engine": "bf16"})
    assert kept.explore.engine.options == {"activation_scale": "row"}
    assert (other.explore.engine.name, other.explore.engine.options) == ("bf16", {})


@pytest.mark.parametrize("asked", [{"actors": 2}, {"ray_address": "head:6379"}, {"actors": 2, "workers": "inline"}])
def test_what_only_ray_heeds_is_refused_without_it(tmp_path: Path, asked: dict[str, object]):
    (tmp_path / "r.yaml").write_text("workers: {actors: 4, address: auto}\n")
    with pytest.raises(RecipeError, match=r"(actors 2|ray_address head:6379) would have no effect"):
        read_recipe(str(tmp_path / "r.yaml"), asked)
    recipe, _ = read_recipe(str(tmp_path / "r.yaml"), {**asked, "workers": "ray"})
    assert recipe.workers.kind == "ray"


def test_actors_that_a_file_names_wait_for_ray(tmp_path: Path):
    (tmp_path / "r.yaml").write_text("workers: {kind: ray, actors: 4}\n")
    recipe, _ = read_recipe(str(tmp_path / "r.yaml"), {"workers": "inline"})
    assert (recipe.workers.kind, recipe.workers.actors) == ("inline", 4)


def test_a_missing_config_says_what_there_is(tmp_path: Path):
    (tmp_path / "there.yaml").write_text("")
    with pytest.raises(RecipeError, match=r"does not exist: .* holds there.yaml"):
        read_recipe(str(tmp_path / "absent.yaml"), {})


def test_parameters_that_contradict_each_other_are_told_apart(tmp_path: Path):
    (tmp_path / "r.yaml").write_text("{}")
    with pytest.raises(RecipeError, match=r"select.keep is 48, more than explore.candidates \(24\)"):
        read_recipe(str(tmp_path / "r.yaml"), {"keep": 48, "candidates": 24})
