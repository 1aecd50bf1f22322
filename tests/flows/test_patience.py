"""How often a request to Prefect's server is tried, against a server that answers what the test says."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.client.orchestration import get_client
from prefect.context import SettingsContext, get_settings_context
from prefect.settings import PREFECT_API_URL, Settings, get_current_settings, temporary_settings

from flows.patience import patient
from tests.support.scripted_server import ScriptedServer


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Prefect's settings as they are outside of this folder, whose ``prefect.toml`` has some."""
    monkeypatch.chdir(tmp_path)
    with SettingsContext(profile=get_settings_context().profile, settings=Settings()):
        yield


@pytest.mark.usefixtures("bare")
def test_a_500_is_tried_again_and_a_choice_of_the_users_stands(scripted: ScriptedServer):
    with temporary_settings({PREFECT_API_URL: scripted.url, "client.max_retries": 2}), patient():
        scripted.codes = [200, 500, 500, 200]
        with get_client(sync_client=True) as client:
            assert client.request("GET", "/health").status_code == 200
            assert client.request("GET", "/health").status_code == 200
        assert scripted.asked == 4
        assert (
            get_current_settings().to_environment_variables(exclude_unset=True)["PREFECT_CLIENT_RETRY_EXTRA_CODES"]
            == "500"
        ), "processes that Prefect starts get it too"
    for chosen in (set(), {504}):
        with temporary_settings({"client.retry_extra_codes": chosen}), patient():
            assert get_current_settings().client.retry_extra_codes == chosen
    assert get_current_settings().client.retry_extra_codes == set()
