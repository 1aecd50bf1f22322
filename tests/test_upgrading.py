"""docs/upgrading.md names fields of the recipe and what older runs are completed with: both are those of the code."""

import re
from pathlib import Path

import pytest
import yaml

from solrl_tasks.config.recipe import Recipe

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "upgrading.md").read_text("utf-8")
ROWS = re.findall(r"^\| (`[^|]+`) \| ([^|]+) \|$", PAGE.split("## Recipes that got fields")[1].split("##")[0], re.M)
PLAIN = {"null": None, "false": False, "true": True, "empty": "", "1.0": 1.0}


def default_of(field):
    """What a recipe has that says nothing of it."""
    written = yaml.safe_load((ROOT / "configs" / "embedded.yaml").read_text("utf-8"))
    del written["evaluate"]["store_images"]
    found = Recipe.model_validate(written)
    for part in field.split("."):
        found = getattr(found, part.removesuffix("[]"))
        found = found[0] if part.endswith("[]") else found
    return getattr(found, "name", found)


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for fields, value in ROWS for field in re.findall(r"`([^`]+)`", fields)]
)
def test_runs_are_completed_with_what_the_page_says(field, value):
    said = re.split(r"[:\s]", value.strip())[0].strip("`")
    assert default_of(field) == PLAIN.get(said, said)


def test_the_page_has_a_table():
    assert len(ROWS) > 10
