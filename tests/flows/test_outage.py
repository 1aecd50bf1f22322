"""Prefect's server that falls silent, against a server that answers what the test says."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from prefect.client.orchestration import get_client
from prefect.context import SettingsContext, get_settings_context
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL, Settings, get_current_settings, temporary_settings

from flows import outage
from flows.outage import (
    ServerLost,
    ServerWatch,
    answers,
    ending_in_words,
    interruptible,
    lost_server,
    wait_for_server,
    watching,
)
from flows.patience import patient, retried_seconds, stopped_waiting


class Scripted:
    """A server whose answers are a list of codes, the last one for ever; none means that it is stopped."""

    def __init__(self) -> None:
        self.codes = [200]
        self.asked = 0

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                script.asked += 1
                self.send_response(script.codes.pop(0) if len(script.codes) > 1 else script.codes[0])
                self.send_header("Retry-After", "0")
                self.send_header("Content-Length", "4")
                self.end_headers()
                self.wfile.write(b"true")

            def log_message(self, *_: object) -> None:
                pass

        script = self
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/api"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    server = Scripted()
    yield server
    server.stop()


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Prefect's settings as they are outside of this folder, whose ``prefect.toml`` has some."""
    monkeypatch.chdir(tmp_path)
    with SettingsContext(profile=get_settings_context().profile, settings=Settings()):
        yield


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What gives the server up must not reach other tests."""
    monkeypatch.setattr("flows.patience._stopped", threading.Event())
    with temporary_settings({"client.max_retries": 2}):
        yield


def test_silence_is_told_once_after_a_while_and_so_is_the_return(scripted: Scripted):
    said: list[str] = []
    now = [0.0]
    watch = ServerWatch(scripted.url, said.append, clock=lambda: now[0])
    watch.look()
    scripted.codes = [503]
    for now[0] in (10.0, 12.0, 14.0):
        watch.look()
    assert (said, watch.answers()) == ([], False)
    for now[0] in (16.0, 18.0, 60.0):
        watch.look()
    (told,) = said
    assert scripted.url in told and "503 Service Unavailable" in told
    assert f"for about {retried_seconds()} s (PREFECT_CLIENT_MAX_RETRIES)" in told
    assert "start the server again" in told and "Nothing that was finished is lost" in told
    scripted.codes = [200]
    now[0] = 61.0
    watch.look()
    assert (said[1:], watch.answers()) == (["Prefect's server answers again, after 51 s"], True)


def test_a_short_silence_is_told_to_nobody(scripted: Scripted):
    said: list[str] = []
    watch = ServerWatch(scripted.url, said.append, clock=lambda: 0.0)
    for scripted.codes in ([200], [500], [200]):
        watch.look()
    assert said == []


@pytest.mark.parametrize("code", [200, 401, 404])
def test_a_server_that_refuses_the_question_answers(scripted: Scripted, code: int):
    scripted.codes = [code]
    watch = ServerWatch(scripted.url, pytest.fail)
    watch.look()
    assert watch.answers()


def test_a_server_that_never_spoke_is_taken_to_answer(scripted: Scripted):
    """It may be beyond what only Prefect's client is told of."""
    scripted.stop()
    now = iter(range(0, 1000, 10))
    watch = ServerWatch(scripted.url, pytest.fail, clock=lambda: float(next(now)))
    for _ in range(3):
        watch.look()
    assert watch.answers()


def test_who_asks_knows_of_a_silence_before_the_next_look(scripted: Scripted, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outage, "LOOK_SECONDS", 60.0)
    with watching(scripted.url, print):
        outage._active[0].look()
        assert answers()
        scripted.codes = [500]
        assert not answers()
        with watching("http://127.0.0.1:9/api", pytest.fail):
            assert not answers(), "the outermost watch is the only one"
    assert answers()


@pytest.mark.usefixtures("stopped")
def test_a_silent_server_is_waited_for_as_long_as_a_request_is_tried(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(outage, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(outage, "retried_seconds", lambda: 0.5)
    with watching(scripted.url, print):
        outage._active[0].look()
        scripted.codes = [503, 503, 503, 200]
        wait_for_server()
        assert scripted.codes == [200] and not stopped_waiting()
        scripted.codes = [503]
        with pytest.raises(ServerLost, match="the same command goes on from there"):
            wait_for_server()
    assert stopped_waiting() and retried_seconds() == 0


@pytest.mark.usefixtures("stopped")
def test_an_interrupt_gives_up_a_server_that_is_silent_and_no_other(scripted: Scripted):
    with watching(scripted.url, print):
        outage._active[0].look()
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


@pytest.mark.usefixtures("bare")
def test_a_500_is_tried_again_and_a_choice_of_the_users_stands(scripted: Scripted):
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


def test_a_server_that_always_answers_500_ends_in_words(scripted: Scripted):
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


def test_only_what_prefects_server_did_is_laid_on_it(scripted: Scripted):
    url = "http://127.0.0.1:4200/api"
    request = httpx.Request("POST", f"{url}/flow_runs/")
    refused = httpx.ConnectError("refused", request=request)
    assert "does not answer (ConnectError: refused)" in str(lost_server(refused, url))
    wrapped = RuntimeError("Failed to reach API")
    wrapped.__cause__ = refused
    assert lost_server(wrapped, url) is not None
    others = [
        httpx.ConnectError("refused", request=httpx.Request("GET", "http://127.0.0.1:5000/score")),
        httpx.ConnectError("of no request"),
        httpx.HTTPStatusError("gone", request=request, response=httpx.Response(404, request=request)),
        ValueError("something else"),
    ]
    assert [lost_server(error, url) for error in others] == [None] * len(others)
    with pytest.raises(ValueError, match="something else"), ending_in_words(url):
        raise others[-1]
