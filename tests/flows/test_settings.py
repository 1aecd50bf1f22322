"""Who decides where things go: options, then environment, then defaults."""

from pathlib import Path

import pytest

from flows.errors import UserError
from flows.settings import Settings, find_config, profile_url


def test_defaults_stay_on_loopback_and_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    settings = Settings.read(environ={})
    assert settings.home == tmp_path / ".solrl"
    assert settings.store_root == tmp_path / ".solrl" / "store"
    assert settings.prefect.url == "http://127.0.0.1:4200/api"
    assert settings.mlflow.url == "http://127.0.0.1:5000"
    assert settings.prefect.is_local and settings.mlflow.is_local


def test_option_beats_environment_beats_default(tmp_path: Path):
    env = {
        "SOLRL_HOME": str(tmp_path / "b"),
        "SOLRL_PREFECT_PORT": "4301",
        "PREFECT_API_URL": "http://127.0.0.1:1/api",
    }
    assert Settings.read(environ=env).home == tmp_path / "b"
    assert Settings.read(environ=env).prefect.url == "http://127.0.0.1:4301/api"
    chosen = Settings.read(tmp_path / "a", prefect_port=4302, environ=env)
    assert chosen.home == tmp_path / "a"
    assert chosen.prefect.url == "http://127.0.0.1:4302/api"
    assert chosen.prefect.chosen_by == "--prefect-port"


def test_a_given_address_keeps_its_origin():
    settings = Settings.read(
        environ={
            "PREFECT_API_URL": "https://prefect.example/api/",
            "SOLRL_MLFLOW_URL": "http://10.1.2.3:5000",
        }
    )
    assert settings.prefect.url == "https://prefect.example/api"
    assert (settings.prefect.origin, settings.prefect.chosen_by) == ("environment", "PREFECT_API_URL")
    assert not settings.prefect.is_local
    assert settings.mlflow.chosen_by == "SOLRL_MLFLOW_URL"
    assert settings.mlflow.port == 5000


def test_the_usual_address_given_by_prefect_toml_is_no_choice_of_the_users():
    assert Settings.read(environ={"PREFECT_API_URL": "http://127.0.0.1:4200/api"}).prefect.origin == "default"


def test_a_tracking_database_is_no_server():
    settings = Settings.read(environ={"MLFLOW_TRACKING_URI": "sqlite:///m.db"})
    assert not settings.mlflow.is_http and not settings.mlflow.is_local


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"SOLRL_PREFECT_PORT": "many"}, "SOLRL_PREFECT_PORT is 'many'"),
        ({"SOLRL_MLFLOW_PORT": "70000"}, "SOLRL_MLFLOW_PORT is '70000'"),
        ({"PREFECT_API_URL": "localhost"}, "PREFECT_API_URL is 'localhost'"),
        ({"PREFECT_API_URL": "http://[::1/api"}, "PREFECT_API_URL"),
        ({"PREFECT_API_URL": "sqlite:///x.db"}, "PREFECT_API_URL is 'sqlite:///x.db'"),
    ],
)
def test_an_unusable_address_is_refused_naming_the_variable(env: dict[str, str], words: str):
    with pytest.raises(UserError, match=words.replace("[", r"\[")):
        Settings.read(environ=env)


def test_children_get_the_same_settings_and_report_nothing_home(tmp_path: Path):
    settings = Settings.read(tmp_path, prefect_port=4302, mlflow_port=5302, environ={})
    env = settings.environment()
    again = Settings.read(environ=env)
    assert (again.home, again.prefect.url, again.mlflow.url) == (
        settings.home,
        settings.prefect.url,
        settings.mlflow.url,
    )
    assert again.prefect_home == settings.prefect_home == tmp_path / "prefect"
    assert env["DO_NOT_TRACK"] == env["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert env["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"


def test_a_profile_is_read_without_prefect(tmp_path: Path):
    text = 'active = "work"\n[profiles.work]\nPREFECT_API_URL = "http://10.0.0.1:4200/api"\n[profiles.plain]\n'
    (tmp_path / "profiles.toml").write_text(text)
    env = {"PREFECT_HOME": str(tmp_path)}
    assert profile_url(env) == ("work", "http://10.0.0.1:4200/api")
    assert profile_url({**env, "PREFECT_PROFILE": "plain"}) is None
    assert profile_url({"PREFECT_HOME": str(tmp_path / "none")}) is None
    (tmp_path / "profiles.toml").write_text("not toml [")
    assert profile_url(env) is None


def test_a_config_is_found_from_the_current_folder_then_from_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert find_config("pyproject.toml").is_absolute()
    (tmp_path / "pyproject.toml").write_text("")
    assert find_config("pyproject.toml") == Path("pyproject.toml")
    assert find_config("nowhere.yaml") == Path("nowhere.yaml")


@pytest.mark.parametrize("taken", ["file", "file/home", "nowhere"])
def test_a_home_that_can_be_no_folder_is_told(tmp_path: Path, taken: str):
    (tmp_path / "file").write_text("")
    (tmp_path / "nowhere").symlink_to(tmp_path / "absent" / "disk")
    with pytest.raises(UserError, match=f"{taken} cannot be the home: .* --home or SOLRL_HOME"):
        Settings.read(tmp_path / taken, environ={}).apply()
