"""What ends because Prefect's server is silent, against a server that answers what the test says."""

import httpx
import pytest
from prefect.client.orchestration import get_client
from prefect.exceptions import PrefectHTTPStatusError, TerminationSignal
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows import outage, server_watch
from flows.ending import failed_by
from flows.outage import ServerLost, ending_in_words, interruptible, lost_server, wait_for_server
from flows.patience import retried_seconds, stopped_waiting
from flows.server_watch import watching
from tests.support.scripted_server import ScriptedServer

URL = "http://127.0.0.1:4200/api"


@pytest.mark.usefixtures("stopped")
def test_a_silent_server_is_waited_for_as_long_as_a_request_is_tried(
    scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(server_watch, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(outage, "retried_seconds", lambda: 0.5)
    with watching(scripted.url, print):
        server_watch._active[0].look()
        scripted.codes = [503, 503, 503, 200]
        wait_for_server()
        assert scripted.codes == [200] and not stopped_waiting()
        scripted.codes = [503]
        with pytest.raises(ServerLost, match="the same command goes on from there"):
            wait_for_server()
    assert stopped_waiting() and retried_seconds() == 0


@pytest.mark.usefixtures("stopped")
def test_an_interrupt_gives_up_a_server_that_is_silent_and_no_other(scripted: ScriptedServer):
    with watching(scripted.url, print):
        server_watch._active[0].look()
        with pytest.raises(KeyboardInterrupt), interruptible():
            raise KeyboardInterrupt
        assert not stopped_waiting()
        scripted.codes = [503]
        with pytest.raises(OSError, match="of a stage"), interruptible():
            raise OSError("of a stage")
        assert not stopped_waiting(), "how it failed should be told"
        with pytest.raises(KeyboardInterrupt), interruptible():
            raise KeyboardInterrupt
    assert stopped_waiting()


def test_a_server_that_always_answers_500_ends_in_words(scripted: ScriptedServer):
    scripted.codes = [500]
    settings = {PREFECT_API_URL: scripted.url, "client.max_retries": 3, "client.retry_extra_codes": {500}}
    with (
        temporary_settings(settings),
        get_client(sync_client=True) as client,
        pytest.raises(ServerLost) as lost,
        ending_in_words(scripted.url),
    ):
        client.request("GET", "/flows/")
    assert scripted.asked == 4
    assert f"Prefect's server at {scripted.url} answers with 500 Internal Server Error" in str(lost.value)
    assert isinstance(lost.value.__cause__, PrefectHTTPStatusError)


def test_only_what_prefects_server_did_is_laid_on_it(scripted: ScriptedServer):
    request = httpx.Request("POST", f"{URL}/flow_runs/")
    refused = httpx.ConnectError("refused", request=request)
    assert "does not answer (ConnectError: refused)" in str(lost_server(refused, URL))
    wrapped = RuntimeError("Failed to reach API")
    wrapped.__cause__ = refused
    assert lost_server(wrapped, URL) is not None
    others = [
        httpx.ConnectError("refused", request=httpx.Request("GET", "http://127.0.0.1:5000/score")),
        httpx.ConnectError("of no request"),
        httpx.HTTPStatusError("gone", request=request, response=httpx.Response(404, request=request)),
        ValueError("something else"),
    ]
    assert [lost_server(error, URL) for error in others] == [None] * len(others)
    with pytest.raises(ValueError, match="something else"), ending_in_words(URL):
        raise others[-1]


def farewell(interrupt: BaseException) -> None:
    """What Prefect's engine does: the end by an interrupt cannot be told a server that is gone."""
    try:
        raise interrupt
    except BaseException:
        raise httpx.ReadTimeout("timed out", request=httpx.Request("POST", f"{URL}/flow_runs/")) from None


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), TerminationSignal(15)])
def test_an_interrupt_that_the_server_cannot_be_told_stays_an_interrupt(interrupt: BaseException):
    with pytest.raises(KeyboardInterrupt), ending_in_words(URL):
        farewell(interrupt)


def test_another_error_that_the_server_cannot_be_told_is_of_the_server():
    with pytest.raises(ServerLost), ending_in_words(URL):
        farewell(OSError("of a stage"))


@pytest.mark.usefixtures("stopped")
@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), TerminationSignal(15)])
def test_a_flow_that_was_interrupted_does_not_end_as_one_that_lost_its_server(interrupt: BaseException):
    with temporary_settings({PREFECT_API_URL: URL}), pytest.raises(type(interrupt)):
        try:
            farewell(interrupt)
        except httpx.ReadTimeout as error:
            failed_by(error)
