"""Pools written as tables from the command line, and the example that reads them."""

import json
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyarrow import parquet

from tests.flows.conftest import Finished, Said

Solrl = Callable[..., Said]
ROOT = Path(__file__).parents[2]


def refs(solrl: Solrl, home: Path) -> dict[str, str]:
    """Keys of what the first iteration made."""
    shown = json.loads(solrl("runs", "show", "done", "--json", "--home", home).out)
    return {name: ref["key"] for name, ref in shown["iterations"][1]["refs"].items()}


def test_a_pool_is_written_as_a_table(solrl: Solrl, finished: Finished, tmp_path: Path):
    key = refs(solrl, finished.home)["explore"]
    said = solrl("pools", "export", key[:12], "--out", tmp_path / "pool.parquet", "--home", finished.home)
    assert said.code == 0, said.err
    assert "16 rows in" in said.out
    assert parquet.read_table(tmp_path / "pool.parquet").num_rows == 16


@pytest.mark.parametrize(
    ("key", "out", "words"),
    [
        ("zz", "x.parquet", "begins nothing; `solrl pools` lists the pools"),
        (None, ".", "is a folder: name a file"),
        (None, "no/where.parquet", "cannot be written"),
    ],
)
def test_mistakes_are_told(solrl: Solrl, finished: Finished, tmp_path: Path, key: str | None, out: str, words: str):
    key = key or refs(solrl, finished.home)["explore"]
    said = solrl("pools", "export", key, "--out", tmp_path / out, "--home", finished.home)
    assert said.code == 1 and words in " ".join(said.err.split())


def test_the_example_runs(solrl: Solrl, finished: Finished, tmp_path: Path):
    keys = refs(solrl, finished.home)
    shutil.copytree(finished.home / "store", tmp_path / "store")
    script = ROOT / "docs" / "examples" / "pool_analysis.py"
    given = [keys["explore"][:12], "--store", "store", "--samples", keys["regenerate"], "--out", "pool.parquet"]
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script), *given],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for words in ("2 prompts x 8 candidates, nvfp4-emulated, 2 steps", "0 invalid, 0 not computed yet", "best of    8"):
        assert words in done.stdout
    assert "best image of the first prompt" in done.stdout and "4 kept seeds a prompt" in done.stdout
    assert "16 rows in pool.parquet" in done.stdout


def test_a_listing_tells_pools_of_a_lower_resolution(solrl: Solrl, micro_config: Path, tmp_path: Path):
    from solrl_tasks.config.load import load_recipe
    from solrl_tasks.stages.iteration import policy_after
    from solrl_tasks.stages.plan import plan_explore
    from solrl_tasks.stages.session import open_session

    for side in (None, 16):
        recipe = load_recipe(micro_config, {"explore.resolution": side})
        with open_session(tmp_path / "home" / "store", f"run-{side}", recipe) as session:
            plan_explore(session, 1, policy_after(session, 0)).open(session)
    listed = solrl("pools", "--home", tmp_path / "home").out
    assert "2 at 16 px" in listed and "2 at 32 px" not in listed


@pytest.mark.parametrize(
    ("stage", "more", "words"),
    [
        ("regenerate", [], "is a key of samples, and one of pools is needed"),
        ("explore", ["--samples", "{explore}"], "is a key of pools, and one of samples is needed"),
        ("explore", ["--reward", "nope@1"], "no reward nope@1 in"),
        ("", [], "begins nothing"),
    ],
)
def test_the_example_tells_what_it_cannot_use(
    solrl: Solrl,
    finished: Finished,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    stage: str,
    more: list[str],
    words: str,
):
    keys = refs(solrl, finished.home) | {"": "zz"}
    given = [keys[stage], "--store", str(finished.home / "store"), *(word.format(**keys) for word in more)]
    monkeypatch.setattr(sys, "argv", ["pool_analysis.py", *given])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=words):
        runpy.run_path(str(ROOT / "docs" / "examples" / "pool_analysis.py"), run_name="__main__")
