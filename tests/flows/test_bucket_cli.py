"""The commands, with a store in a bucket that SOLRL_STORE names."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.console import shown_command
from flows.errors import UserError
from flows.settings import Settings
from solrl_tasks.store.object_path import ObjectPath
from solrl_tasks.store.root import Store
from tests.flows.conftest import Said
from tests.support.killing import Kill, run_child
from tests.support.micro import micro_recipe, write_prompts
from tests.support.s3 import S3Server, serving, speaking_to

Solrl = Callable[..., Said]


@pytest.fixture(scope="module")
def server():
    with serving() as found:
        yield found


@pytest.fixture(scope="module")
def url(server: S3Server, micro_model: Path, tmp_path_factory: pytest.TempPathFactory):
    """A bucket with a finished run, and one that was killed."""
    folder = tmp_path_factory.mktemp("bucket")
    recipe = micro_recipe(micro_model, write_prompts(folder), iterations=1)
    with pytest.MonkeyPatch.context() as patch, speaking_to(server) as found:
        patch.setenv("SOLRL_HOME", str(folder / "home"))
        run_child(found, "done", recipe)
        run_child(found, "killed", recipe, Kill(r"1/between"))
        patch.setenv("SOLRL_STORE", found)
        yield found


@pytest.fixture
def home(url: str, tmp_path: Path) -> Path:
    return tmp_path / "home"


def said(solrl: Solrl, *words: object) -> str:
    answer = solrl(*words)
    assert answer.code == 0, answer.err
    return answer.out


def test_runs_pools_and_reports_are_shown(solrl: Solrl, home: Path, url: str):
    listed = said(solrl, "runs", "--home", home)
    assert "done" in listed and "finished" in listed and "interrupted" in listed
    shown = said(solrl, "runs", "show", "done", "--home", home)
    assert f"{url}/runs/done/iterations/0001/" in shown.replace("\n", "")
    assert "3 pools" in said(solrl, "pools", "--home", home)
    key = next((Store(url).root / "pools").iterdir()).name
    assert key[:12] in said(solrl, "pools", "show", key[:12], "--home", home)
    told = said(solrl, "report", "done", "--home", home).replace("\n", "")
    assert (
        f"{url}/runs/done/report/report.html" in told
        and f"`{shown_command('solrl')} report done --out FOLDER` writes a copy" in told
    )
    out = home / "copy"
    assert "writes a copy" not in said(solrl, "report", "done", "--out", out, "--home", home)
    assert (out / "report.html").is_file()
    assert not (home / "store").exists()


def test_an_adapter_and_a_table_leave_the_bucket(solrl: Solrl, home: Path, tmp_path: Path, url: str):
    said(solrl, "export", "done", tmp_path / "adapter", "--home", home)
    assert list((tmp_path / "adapter").glob("*.safetensors"))
    refs = json.loads(said(solrl, "runs", "show", "done", "--json", "--home", home))["iterations"][1]["refs"]
    said(solrl, "pools", "export", refs["explore"]["key"], "--out", tmp_path / "pool.parquet", "--home", home)
    assert (tmp_path / "pool.parquet").is_file()


def test_garbage_is_planned_and_what_runs_use_stays(solrl: Solrl, home: Path, url: str):
    before = {entry.key for entry in ObjectPath.of(url).entries()}
    said(solrl, "pools", "gc", "--delete", "--home", home)
    assert {key for key in before if not key.startswith("locks/")} <= {e.key for e in ObjectPath.of(url).entries()}


def test_the_doctor_tells_of_bucket_and_leases(solrl: Solrl, home: Path, url: str, server: S3Server):
    out = said(solrl, "doctor", "--home", home)
    assert f"Store {url}" in out
    assert f"at {server.url}, with conditional writes; leases of 4 s" in out
    assert "killed: interrupted" in out


def test_a_bucket_that_is_not_there_is_told(solrl: Solrl, home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SOLRL_STORE", "s3://no-such-bucket/x")
    answer = solrl("runs", "--home", home)
    assert answer.code == 1 and "NoSuchBucket" in answer.err and "Traceback" not in answer.err


def test_a_place_without_a_store_is_told_by_what_names_it(
    solrl: Solrl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SOLRL_STORE", str(tmp_path / "store"))
    assert "name another by SOLRL_STORE" in solrl("runs", "--home", tmp_path).err
    monkeypatch.delenv("SOLRL_STORE", raising=False)
    assert "name another home with --home or SOLRL_HOME" in solrl("runs", "--home", tmp_path).err


def test_a_store_without_its_marker_is_not_taken_for_none(
    solrl: Solrl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("SOLRL_STORE", raising=False)
    for name in ("runs", "pools"):
        (tmp_path / "store" / name).mkdir(parents=True)
    assert "has lost its store.json: put it back from a copy" in solrl("runs", "--home", tmp_path).err
    out = solrl("doctor", "--home", tmp_path).out
    assert "has lost its store.json: put it back from a copy" in out and "nothing yet" not in out


def test_settings_take_a_folder_or_a_bucket(tmp_path: Path):
    given = Settings.read(tmp_path, environ={"SOLRL_STORE": "s3://some-bucket/a/"})
    assert str(given.store_root) == "s3://some-bucket/a" and given.environment()["SOLRL_STORE"] == "s3://some-bucket/a"
    assert Settings.read(tmp_path, environ={"SOLRL_STORE": str(tmp_path / "x")}).store_root == tmp_path / "x"
    assert Settings.read(tmp_path, environ={}).store_root == tmp_path / "store"
    with pytest.raises(UserError, match=r"SOLRL_STORE: .*s3://bucket/prefix"):
        Settings.read(tmp_path, environ={"SOLRL_STORE": "gs://bucket/x"})
