"""What README and docs say is so: files, commands, fields, metrics and examples are checked against the code."""

import json
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, get_args

import pytest
import yaml

from solrl_tasks.config.base import Frozen
from solrl_tasks.config.extensions import KINDS, list_extensions
from solrl_tasks.config.load import parse_recipe
from solrl_tasks.config.recipe import Recipe
from tests.support.micro import micro_recipe, write_prompts

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in [ROOT / "README.md", *DOCS.glob("*.md")]
}
OURS = ("solrl_tasks", "flows", "configs", "benchmarks", "tests", "docs")
each_page = pytest.mark.parametrize("page", sorted(PAGES))


def fences(page: str, language: str) -> list[str]:
    """The fenced blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGES[page], re.DOTALL | re.MULTILINE)


def prose(page: str) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", PAGES[page], flags=re.DOTALL | re.MULTILINE)


def inline_code(page: str) -> list[str]:
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose(page))]


def commands(page: str) -> list[list[str]]:
    """Every command line of a page, as words: those of shell blocks, indented ones and inline ones."""
    lines = [line for block in fences(page, "bash") for line in block.splitlines()]
    programs = ("solrl ", "prefect deployment run ", "python ", "make ")
    lines += [code for code in inline_code(page) if code.startswith(programs)]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def table(page: str, first: str) -> list[list[str]]:
    """The cells of all tables of a page whose first heading is ``first``."""
    rows, inside = [], False
    for line in prose(page).splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if not line.startswith("|"):
            inside = False
        elif cells[0] == first:
            inside = True
        elif inside and not cells[0].startswith("---"):
            rows.append([cell.rstrip(" |").strip() for cell in cells])
    return rows


def code(cell: str) -> str:
    """The first code in a cell, or the cell itself."""
    found = re.search(r"`([^`]*)`", cell)
    return found[1] if found else cell


# Files


def slugs(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@each_page
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith("http") or target.endswith(".png"):
            continue
        name, _, anchor = target.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        assert path.exists(), f"{page} links to {target}"
        assert not anchor or anchor in slugs(path.read_text("utf-8")), f"{page} links to {target}"


@each_page
def test_pictures_are_there(page):
    for target in re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", prose(page)):
        assert ((ROOT / page).parent / target).is_file(), f"{page} shows {target}"


def is_there(name: str) -> bool:
    """Whether a dotted name is that of a module, or of something in one."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        parent, _, last = name.rpartition(".")
        return is_there(parent) and hasattr(import_module(parent), last)


@each_page
def test_files_and_modules_exist(page):
    text = PAGES[page]
    for name in re.findall(rf"(?<![\w/.-])(?:{'|'.join(OURS)})/[\w./-]*\w", text):
        if not name.startswith("docs/images/"):
            assert (ROOT / name).exists(), f"{page} names {name}"
    for name in re.findall(r"\b(?:solrl_tasks|flows|tests)(?:\.\w+)+", text):
        module = re.sub(r"\.(md|py)$", "", name)
        assert is_there(module), f"{page} names {name}"


# Faults


def test_every_fault_has_its_test_and_every_test_of_faults_its_line():
    rows = table("docs/operations.md", "fault")
    named = {code(row[2]) for row in rows}
    for row in rows:
        assert len(row) == 5 and all(row), row
        assert re.match("real|injected", row[1]), f"{row[0]}: real or injected?"
        path, _, name = code(row[2]).partition("::")
        assert f"def {name}" in (ROOT / path).read_text("utf-8"), row[2]
    for path in ("tests/stages/test_faults.py", "tests/flows/test_faults.py"):
        tests = re.findall(r"^def (test_\w+)", (ROOT / path).read_text("utf-8"), re.MULTILINE)
        assert {f"{path}::{name}" for name in tests} <= named


# Commands


def parse(words: list[str]) -> str:
    """Let the command line parse words as it would, without running anything; returns the command's path."""
    import typer

    from flows.cli import app

    command: Any = typer.main.get_command(app)
    rest, path = words[1:], "solrl"
    while True:
        context = command.make_context(path, list(rest))
        rest = [*getattr(context, "_protected_args", []), *context.args]
        if not hasattr(command, "commands") or not rest:
            return path
        name, command, rest = command.resolve_command(context, rest)
        assert command is not None, f"{path} has no command {name}"
        path += f" {name}"


@each_page
def test_commands_are_known(page):
    for words in commands(page):
        if words[0] == "solrl":
            parse(words)


def test_the_check_of_commands_finds_mistakes():
    for wrong in (
        "solrl rnus",
        "solrl runs shwo x",
        "solrl up --port 3",
        "solrl export x",
        "solrl demo --iterations 0",
    ):
        with pytest.raises(Exception, match=r".+"):
            parse(wrong.split())


def test_every_command_is_documented():
    import typer

    from flows.cli import app

    named = {parse(words) for page in PAGES for words in commands(page) if words[0] == "solrl"}

    def leaves(command: Any, path: str) -> Iterator[str]:
        if not hasattr(command, "commands") or command.invoke_without_command:
            yield path
        for name, inner in getattr(command, "commands", {}).items():
            yield from leaves(inner, f"{path} {name}")

    assert set(leaves(typer.main.get_command(app), "solrl")) <= named


def deployments(page: str) -> dict[str, Any]:
    """Flows by the names of their deployments: those that are served, and those that a page makes by entry point."""
    from flows.deployments import DEPLOYMENTS

    made = {}
    for words in commands(page):
        if words[:3] == ["prefect", "--no-prompt", "deploy"] and not words[3].startswith("-"):
            flow = resolve_name(words[3])
            made[f"{flow.name}/{words[words.index('--name') + 1]}"] = flow
            assert "--pool" in words, f"{shlex.join(words)}: Prefect would ask for a pool"
    return DEPLOYMENTS | made


@each_page
def test_deployments_take_what_is_given(page):
    known = deployments(page)
    for words in commands(page):
        if words[:3] == ["prefect", "deployment", "run"]:
            given = [pair for option, pair in pairwise(words) if option == "-p"]
            names = {pair.partition("=")[0] for pair in given}
            assert names <= set(known[words[3]].parameters.properties), shlex.join(words)


@each_page
def test_scripts_and_targets_take_what_is_given(page):
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for words in commands(page):
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE), shlex.join(words)
        if words[0] == "python" and words[1].endswith(".py"):
            source = (ROOT / words[1]).read_text("utf-8")
            assert all(f'"{word}"' in source for word in words if word.startswith("--")), shlex.join(words)
        if words[:2] == ["python", "-m"]:
            assert find_spec(words[2]), shlex.join(words)


# Configuration


def walk(model: type[Frozen], value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and defaults of a model's fields.

    Entries of a list stand under ``name[]``, and what may stand in the place of a plain value under ``name``.
    """
    for name, field in model.model_fields.items():
        path = f"{prefix}{name}"
        default = getattr(value, name) if value is not None else field.get_default(call_default_factory=True)
        entries = [a for a in get_args(field.annotation) if isinstance(a, type) and issubclass(a, Frozen)]
        if isinstance(default, Frozen):
            yield from walk(type(default), default, f"{path}.")
        elif isinstance(default, tuple) and entries:
            yield path, [item.name for item in default]
            yield from walk(entries[0], None, f"{path}[].")
        elif entries:
            yield path, default
            for entry in entries:
                yield from walk(entry, None, f"{path}.")
        else:
            yield path, default


def shown_default(cell: str, like: Any) -> Any:
    value = yaml.safe_load(code(cell))
    return float(value) if isinstance(like, float) else tuple(value) if isinstance(like, tuple) else value


def test_every_field_is_documented_with_its_default():
    fields = dict(walk(Recipe, Recipe()))
    rows = {code(row[0]): row for row in table("docs/configuration.md", "field")}
    assert set(rows) == set(fields)
    for name, default in fields.items():
        required = "Undefined" in str(default)
        shown = rows[name][1] if required else shown_default(rows[name][1], default)
        assert shown == ("required" if required else default), name
        assert len(rows[name]) == 5, name


def test_every_option_of_an_extension_is_documented_with_its_default():
    documented = {(code(r[0]), code(r[1])): r[2] for r in table("docs/configuration.md", "extension")}
    options = {
        (name, option): field.default
        for kind in KINDS
        for name, extension in list_extensions(kind).items()
        if hasattr(extension, "Options")
        for option, field in extension.Options.model_fields.items()
    }
    assert set(documented) == set(options)
    for key, default in options.items():
        required = "Undefined" in str(default)
        shown = documented[key] if required else shown_default(documented[key], default)
        assert shown == ("required" if required else default), key


def test_every_parameter_of_the_deployments_is_documented():
    from flows.evaluate import evaluate
    from flows.parameters import FIELDS
    from flows.rank_fidelity import rank_fidelity
    from flows.theory import theory
    from flows.train import train

    rows = {code(row[0]): row[1] for row in table("docs/configuration.md", "parameter")}
    assert set(rows) == set(train.parameters.properties)
    assert all(code(rows[name]) == field for name, field in FIELDS.items())
    study = {code(row[0]) for row in table("docs/studies.md", "parameter")}
    assert study == set(rank_fidelity.parameters.properties)
    gains = {name for row in table("docs/theory.md", "parameter") for name in re.findall(r"`(\w+)`", row[0])}
    assert gains == set(theory.parameters.properties)
    evaluation = {code(row[0]) for row in table("docs/evaluation.md", "parameter")}
    assert evaluation == set(evaluate.parameters.properties)


@each_page
def test_recipes_in_examples_are_valid(page):
    for block in fences(page, "yaml"):
        parse_recipe(yaml.safe_load(block), {}, page)


# Metrics and keys


OTHERS: dict[str, dict[str, Any]] = {
    "ram": {},
    "awm": {},
    "adjoint-matching": {"rewards": [{"name": "brightness"}], "update__advantage": "kept"},
    "grpo": {"update__objective__options": {"kl_weight": 0.1}, "update__old": {"schedule": "copy"}},
}
"""What an iteration with an objective other than the default takes besides its name."""


@pytest.fixture(scope="module")
def micro(micro_model, tmp_path_factory):
    """Metric names of a baseline, an audited iteration with two rewards and an iteration with each other objective, and
    the specs of all that they stored."""
    from solrl_tasks.stages.iteration import run_step
    from solrl_tasks.stages.session import open_session

    assert {"nft", *OTHERS} == set(list_extensions("objective"))

    folder = tmp_path_factory.mktemp("docs")
    rewards = [{"name": "colourfulness"}, {"name": "tests.support.rewards:darkness"}]
    changes = {"rewards": rewards, "audit__every": 1, "update__advantage": "pool"}
    recipe = micro_recipe(micro_model, write_prompts(folder), explore__resolution=16, **changes)
    with open_session(folder / "store", "docs", recipe) as session:
        metrics = {name for step in (0, 1) for name in run_step(session, step).metrics}
    for name, more in OTHERS.items():
        plain = {**changes, "audit__every": 0, "evaluate__every": 0, "update__objective__name": name, **more}
        recipe = micro_recipe(micro_model, write_prompts(folder), **plain)
        with open_session(folder / "store", f"docs-{name}", recipe) as session:
            metrics |= set(run_step(session, 1).metrics)
    return metrics, {kind: stored_specs(folder / "store" / kind) for kind in KEYED}


KEYED = {
    "pools": "pool",
    "selections": "selection",
    "samples": "samples",
    "policies": "policy",
    "evaluations": "evaluation",
}


def stored_specs(folder: Path) -> set[str]:
    """The fields of all specs of one kind of object."""
    files = [*folder.glob("*/spec.json"), *folder.glob("*/manifest.json")]
    return {name for path in files for name in json.loads(path.read_text("utf-8"))["content"]["spec"]} - {"kind"}


def test_every_metric_is_documented_and_every_documented_one_exists(micro):
    found = re.findall(r"`([a-z_]+/[a-z0-9_<>]+)`", prose("docs/metrics.md"))
    patterns = {name: re.compile(re.sub(r"<\w+>", r"[\\w.:-]+", name)) for name in found}
    unknown = {name for name in micro[0] if not any(pattern.fullmatch(name) for pattern in patterns.values())}
    unseen = {name for name, pattern in patterns.items() if not any(map(pattern.fullmatch, micro[0]))}
    assert (unknown, unseen) == (set(), set())


def test_what_is_in_a_key_is_documented(micro):
    rows = {row[0]: row[1] for row in table("docs/resume.md", "object")}
    for kind, name in KEYED.items():
        documented = set(re.sub(r" \([^)]*\)", "", rows[name]).split(", "))
        # The first policy has no parent; what it has instead is described in the text.
        assert documented == micro[1][kind] - ({"base", "lora"} if kind == "policies" else set()), kind


# Examples


def merge(into: dict[str, Any], tree: dict[str, Any]) -> dict[str, Any]:
    for name, value in tree.items():
        into[name] = merge(into.get(name, {}), value) if isinstance(value, dict) else value
    return into


def examples(folder: Path) -> dict[str, Any]:
    """Write the modules of the how-tos; returns all their recipes as one tree."""
    for block in fences("docs/extending.md", "python"):
        name = re.match(r"# (\w+\.py)\n", block)
        assert name, "a how-to names its module in the first line"
        (folder / name[1]).write_text(block, encoding="utf-8")
    tree: dict[str, Any] = {}
    for block in fences("docs/extending.md", "yaml"):
        merge(tree, yaml.safe_load(block))
    return tree


def test_the_examples_of_extensions_run_together(micro_model, tmp_path, monkeypatch):
    from solrl_tasks.stages.iteration import run_step
    from solrl_tasks.stages.session import open_session

    tree = examples(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    plain = micro_recipe(micro_model, write_prompts(tmp_path)).model_dump(mode="json")
    plain["update"]["objective"]["options"] = {}
    recipe = parse_recipe(merge(plain, tree), {}, "docs/extending.md")
    with open_session(tmp_path / "store", "examples", recipe) as session:
        metrics = [run_step(session, step).metrics for step in (0, 1)][1]
        assert session.worker.record(recipe.explore.engine).name == "rounded-weights"
        family = session.worker._device.family  # type: ignore[attr-defined]
        assert family.name == "shifted-flux"
    assert {"train/weight", "reward/proxy_my_rewards:redness", "reward/proxy_colourfulness"} <= set(metrics)
    named = json.dumps(tree)
    for kind in ("rewards", "features", "samplers", "engines", "rules", "objectives", "families"):
        assert f"my_{kind}:" in named


def test_the_kinds_of_extensions_are_documented():
    rows = {row[0]: (code(row[1]), code(row[2])) for row in table("docs/extending.md", "kind")}
    assert rows == KINDS


def test_the_reward_of_the_readme_runs(tmp_path, monkeypatch):
    import numpy as np

    from solrl_tasks.config.recipe import RewardSpec
    from solrl_tasks.rewards.scoring import make_reward, score

    (block,) = fences("README.md", "python")
    (tmp_path / "readme_rewards.py").write_text(block, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    reward = make_reward(RewardSpec(name="readme_rewards:redness"))
    images = np.full((2, 4, 4, 3), 255, dtype=np.uint8)
    assert score(reward, images, ["a", "b"], [{}, {}]).values.tolist() == [1.0, 1.0]


def test_the_readme_is_short():
    assert len(PAGES["README.md"].splitlines()) <= 150 + len(fences("README.md", "text")[0].splitlines())
