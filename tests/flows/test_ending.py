"""How flows end that cannot begin, or fail: with the reason, in the log first, and before anything is looked up."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.exceptions import FailedRun, ParameterTypeError

from flows import ending
from flows.deployments import DEPLOYMENTS
from flows.ending import failed, failed_by
from flows.errors import UserError
from flows.parameters import read_usable
from tests.flows.conftest import Said

Solrl = Callable[..., Said]


@pytest.fixture
def unusable(micro_config: Path, tmp_path: Path) -> Path:
    """A recipe that no field by itself is wrong in: its resolution does not divide the model's."""
    tree = yaml.safe_load(micro_config.read_text())
    tree["explore"]["resolution"] = 24
    path = tmp_path / "unusable.yaml"
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    return path


@pytest.mark.parametrize("command", [("train", "{config}"), ("demo", "--config", "{config}")])
def test_a_recipe_that_cannot_be_used_waits_for_no_server(
    solrl: Solrl, unusable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
):
    def looked_up(*_: Any) -> Any:
        pytest.fail("servers were looked up")

    monkeypatch.setattr("flows.commands.demo.running_servers", looked_up)
    said = solrl(*(word.format(config=unusable) for word in command), "--home", tmp_path / "home")
    assert said.code == 1 and "explore.resolution is 24" in said.err and "it can be 32, 16" in said.err
    assert not (tmp_path / "home" / "store").exists()


@pytest.mark.parametrize(
    "study",
    [("controls",), ("ablation", "--vary", "select.keep=6"), ("rank-fidelity", "--steps", "2"), ("theory",)],
)
def test_a_study_of_such_a_recipe_makes_no_store(solrl: Solrl, unusable: Path, tmp_path: Path, study: tuple[str, ...]):
    said = solrl("study", *study, "--config", unusable, "--home", tmp_path / "home")
    assert said.code == 1 and "explore.resolution is 24" in said.err
    assert not (tmp_path / "home" / "store").exists()


def test_a_grid_that_a_sampler_cannot_walk_is_told_as_early(micro_config: Path, monkeypatch: pytest.MonkeyPatch):
    from solrl_tasks.sampling.samplers.euler import Euler

    def check(_self: Any, _grid: Any) -> None:
        raise ValueError("no such grid")

    read_usable(str(micro_config), {})
    monkeypatch.setattr(Euler, "check", check, raising=False)
    with pytest.raises(UserError, match=r"micro\.yaml: no such grid"):
        read_usable(str(micro_config), {})


def test_the_reason_is_sent_before_the_run_ends(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    sent: list[str] = []
    monkeypatch.setattr(ending.APILogWorker, "drain_all", lambda timeout: sent.append(caplog.messages[-1]))
    with caplog.at_level(logging.ERROR):
        state = failed("the arm nope is unknown", {"run_id": "x"})
    assert sent == ["the arm nope is unknown"] == [state.message] and state.is_failed()
    assert failed_by(UserError("in words")).message == "in words"
    with pytest.raises(ZeroDivisionError):
        failed_by(ZeroDivisionError())


@pytest.mark.parametrize("name", ["prefect.flow_runs", "prefect.engine"])
def test_a_failure_that_was_told_has_no_traceback_of_the_engine_below_it(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ending.APILogWorker, "drain_all", lambda timeout: None)
    failed("the arm nope is unknown")
    log, shown = logging.getLogger(name), []
    for error in (FailedRun("the arm nope is unknown"), ZeroDivisionError("of the program")):
        record = log.makeRecord(name, logging.ERROR, __file__, 1, "exited", (), (type(error), error, None))
        shown += [error] if log.filter(record) else []
    assert [type(error) for error in shown] == [ZeroDivisionError]


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_flow_refuses_a_name_that_it_does_not_know(name: str):
    """However it was deployed: ``prefect deploy`` leaves schemas open."""
    flow = DEPLOYMENTS[name]
    known = list(flow.parameters.properties)
    with pytest.raises(ParameterTypeError) as refused:
        flow.validate_parameters({known[0]: None, f"{known[1]}s_": 3})
    assert f"has no parameter '{known[1]}s_'" in str(refused.value) and all(one in str(refused.value) for one in known)


@pytest.mark.slow
def test_a_flow_ends_with_its_reason(prefect_server: None, unusable: Path, tmp_path: Path, monkeypatch: Any):
    monkeypatch.setenv("SOLRL_HOME", str(tmp_path / "home"))
    for name in ("solrl/train", "solrl-controls/default", "solrl-rank-fidelity/default", "solrl-theory/default"):
        state = DEPLOYMENTS[name](config=str(unusable), return_state=True)
        assert state.is_failed() and "explore.resolution is 24" in state.message, name
    assert not (tmp_path / "home" / "store").exists()
