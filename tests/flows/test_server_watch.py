"""Prefect's server that falls silent, and who is told, against a server that answers what the test says."""

import pytest

from flows import server_watch
from flows.patience import retried_seconds
from flows.server_watch import ServerWatch, answers, watching
from tests.support.scripted_server import ScriptedServer


def test_silence_is_told_once_after_a_while_and_so_is_the_return(scripted: ScriptedServer):
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


def test_a_short_silence_is_told_to_nobody(scripted: ScriptedServer):
    said: list[str] = []
    watch = ServerWatch(scripted.url, said.append, clock=lambda: 0.0)
    for scripted.codes in ([200], [500], [200]):
        watch.look()
    assert said == []


@pytest.mark.parametrize("code", [200, 401, 404])
def test_a_server_that_refuses_the_question_answers(scripted: ScriptedServer, code: int):
    scripted.codes = [code]
    watch = ServerWatch(scripted.url, pytest.fail)
    watch.look()
    assert watch.answers()


def test_a_server_that_never_spoke_is_taken_to_answer(scripted: ScriptedServer):
    """It may be beyond what only Prefect's client is told of."""
    scripted.stop()
    now = iter(range(0, 1000, 10))
    watch = ServerWatch(scripted.url, pytest.fail, clock=lambda: float(next(now)))
    for _ in range(3):
        watch.look()
    assert watch.answers()


def test_who_asks_knows_of_a_silence_before_the_next_look(scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server_watch, "LOOK_SECONDS", 60.0)
    with watching(scripted.url, print):
        server_watch._active[0].look()
        assert answers()
        scripted.codes = [500]
        assert not answers()
        with watching("http://127.0.0.1:9/api", pytest.fail):
            assert not answers(), "the outermost watch is the only one"
    assert answers()
