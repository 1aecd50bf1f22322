import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest
from pydantic import ValidationError

from solrl_tasks.rewards.base import RewardError
from solrl_tasks.rewards.endpoint import Endpoint, EndpointOptions, UnavailableError, is_loopback
from tests.support.scripted import Say, Scripted

FINE = Say({"value": 3})


def ask(url, path="/x", body=None, **options):
    plain = {"retries": 3, "backoff": 0.01, "timeout": 5.0}
    endpoint = Endpoint(EndpointOptions(url=url, **(plain | options)), "far")
    try:
        return endpoint.ask(path, body, lambda found: found["value"])
    finally:
        endpoint.close()


def test_an_answer_comes_back():
    with Scripted(FINE).running() as server:
        assert ask(server.url + "/base/", "/x", {"a": 1}) == 3
        assert ask(server.url, "/y") == 3
    posted, got = server.asked
    assert (posted.method, posted.path, posted.body) == ("POST", "/base/x", {"a": 1})
    assert posted.headers["Content-Type"] == "application/json"
    assert (got.method, got.path, got.body) == ("GET", "/y", None)
    assert "Authorization" not in got.headers


@pytest.mark.parametrize(
    "fault",
    [
        Say({"error": "busy"}, 500),
        Say(b"<html>bad gateway</html>", 502),
        Say(b"", 503),
        Say({"error": "slow down"}, 429),
        Say(b"{not json"),
        Say(b"[" * 100_000),
        Say(b"[" * 100_000, 500),
        Say(b"\xff\xfe"),
        Say({"other": 1}),
        Say(cut=True),
        Say(FINE.body, wait=1.0),
        Say(FINE.body, drip=0.2),
    ],
)
def test_what_passes_is_tried_again(fault):
    def read(found):
        if "value" not in found:
            raise ValueError("no value")
        return found["value"]

    with Scripted(fault, fault, FINE).running() as server:
        endpoint = Endpoint(EndpointOptions(url=server.url, retries=2, backoff=0.01, timeout=0.3), "far")
        assert endpoint.ask("/x", {"a": 1}, read) == 3
        endpoint.close()
        assert endpoint.ask("/x", {"a": 1}, read) == 3
        endpoint.close()
    assert len(server.asked) == 4
    assert all(asked.body == {"a": 1} for asked in server.asked)


def test_a_server_that_stays_faulty_is_unavailable():
    with (
        Scripted(Say({"error": "first"}, 500), Say({"error": {"message": "out of memory"}}, 500)).running() as server,
        pytest.raises(UnavailableError, match=r"/x failed 4 times, at last: status 500: out of memory$"),
    ):
        ask(server.url)
    assert len(server.asked) == 4


def test_a_hanging_server_costs_what_the_limit_says():
    with Scripted(Say(FINE.body, wait=30)).running() as server:
        started = time.monotonic()
        with pytest.raises(UnavailableError, match=r"failed 2 times, at last: no answer within 0\.2 s"):
            ask(server.url, timeout=0.2, retries=1)
        assert time.monotonic() - started < 5


def test_a_dripping_server_does_not_get_around_the_limit():
    with (
        Scripted(Say(b" " * 1000 + b"{}", drip=0.02)).running() as server,
        pytest.raises(UnavailableError, match=r"no whole answer within 0\.3 s"),
    ):
        ask(server.url, timeout=0.3, retries=0)


@pytest.mark.parametrize("drop", [b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n", b"x"])
def test_nor_does_one_that_drips_headers(drop):
    """Every byte that comes would begin a new wait."""
    with dripping(b"" if drop.startswith(b"HTTP") else b"HTTP/1.1 200 OK\r\n", drop) as url:
        started = time.monotonic()
        with pytest.raises(UnavailableError, match=r"failed 2 times, at last: no answer within 0\.3 s"):
            ask(url, timeout=0.3, retries=1)
        assert time.monotonic() - started < 3


@contextmanager
def dripping(first, drop):
    """A server that never comes to the end of its headers."""
    ended = threading.Event()

    def serve(connection):
        with connection, suppress(OSError):
            connection.recv(65_536)
            # One byte at a time; a first line that is not finished is as good as a header.
            connection.sendall(first)
            while not ended.is_set():
                for byte in drop.rstrip(b"\r\n") if not first else drop:
                    connection.sendall(bytes([byte]))
                    ended.wait(0.05)

    def accept():
        while not ended.is_set():
            with suppress(OSError):
                threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        ended.set()


def test_closing_ends_what_waits_and_the_next_request_connects_again():
    with Scripted(Say(FINE.body, wait=30), FINE).running() as server:
        endpoint = Endpoint(EndpointOptions(url=server.url, retries=1, backoff=0.01, timeout=20), "far")
        threading.Timer(0.3, endpoint.close).start()
        started = time.monotonic()
        assert endpoint.ask("/x", None, lambda found: found["value"]) == 3
        assert time.monotonic() - started < 5
        endpoint.close()
        endpoint.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "endpoint" and thread.is_alive()]


def test_requests_of_several_threads_are_under_way_together():
    with Scripted(Say(FINE.body, wait=0.5)).running() as server:
        endpoint = Endpoint(EndpointOptions(url=server.url, retries=0, timeout=10), "far")
        started = time.monotonic()
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: endpoint.ask("/x", None, lambda found: found["value"]), range(8)))
        assert (found, time.monotonic() - started < 3) == ([3] * 8, True)
        endpoint.close()


def test_nobody_listening():
    with Scripted(FINE).running() as server:
        pass
    with pytest.raises(UnavailableError, match="failed 4 times, at last: ConnectError"):
        ask(server.url)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Say({"error": "no"}, 400), "refused the request: status 400: no$"),
        (Say({"detail": "who are you"}, 401), "status 401: who are you; set the environment variable"),
        (Say(b"[" * 100_000, 400), r"status 400: \[\["),
        (Say(b"", 404), "status 404; check url and the name of the reward"),
        (Say(b"", 413), "status 413; lower the option batch"),
        (Say(b"", 301, {"Location": "http://127.0.0.1:1/"}), "status 301"),
        (Say({"error": "broken for good", "retry": False}, 500), "status 500: broken for good"),
    ],
)
def test_what_does_not_pass_is_not_tried_again(answer, message):
    with Scripted(answer, FINE).running() as server, pytest.raises(RewardError, match=message):
        ask(server.url)
    assert len(server.asked) == 1


def test_a_proxy_is_not_asked_for_the_way_to_this_machine(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with Scripted(FINE).running() as server:
        assert ask(server.url, retries=0) == 3


def test_an_answer_without_end_is_cut_off(monkeypatch):
    monkeypatch.setattr("solrl_tasks.rewards.endpoint.LARGEST_ANSWER", 1000)
    with Scripted(Say(b"1" * 5000)).running() as server, pytest.raises(RewardError, match="answers without end"):
        ask(server.url)


def test_pauses_grow_at_random_and_end_somewhere(monkeypatch):
    pauses = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    random.seed(5)
    before = random.getstate()
    with Scripted(Say(b"", 500)).running() as server, pytest.raises(UnavailableError):
        ask(server.url, retries=12, backoff=1.0)
    assert random.getstate() == before
    assert all(0 <= pause <= min(30.0, 2.0**k) for k, pause in enumerate(pauses))
    assert len(set(pauses)) == len(pauses) == 12
    assert max(pauses) > 2


def test_a_server_may_ask_for_a_pause(monkeypatch):
    pauses = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    answers = [Say(b"", 503, {"Retry-After": value}) for value in ("7", "900", "soon", "-3")]
    with Scripted(*answers, FINE).running() as server:
        assert ask(server.url, retries=4, backoff=0.0) == 3
    assert pauses == [7.0, 30.0, 0.0, 0.0]


def test_the_token_comes_from_the_environment_and_shows_nowhere(monkeypatch, caplog):
    monkeypatch.setenv("FAR_TOKEN", "s3cret-abc")
    with Scripted(FINE, Say({"error": "no"}, 400), Say(b"", 500)).running() as server:
        assert ask(server.url, token_env="FAR_TOKEN") == 3
        errors = []
        for kind in (RewardError, UnavailableError):
            with pytest.raises(kind) as raised:
                ask(server.url, token_env="FAR_TOKEN")
            errors.append(str(raised.value))
    assert server.asked[0].headers["Authorization"] == "Bearer s3cret-abc"
    options = EndpointOptions(url=server.url, token_env="FAR_TOKEN")
    assert "s3cret" not in " ".join([*errors, caplog.text, repr(options), options.model_dump_json()])


@pytest.mark.parametrize(
    ("value", "message"), [("", "FAR_TOKEN is not set"), ("two words", "is no token"), ("line\nbreak", "is no token")]
)
def test_a_token_that_cannot_be_used_is_named_not_shown(monkeypatch, value, message):
    monkeypatch.setenv("FAR_TOKEN", value)
    with pytest.raises(RewardError, match=message) as raised:
        ask("http://127.0.0.1:1", token_env="FAR_TOKEN")
    assert not value or value not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "ftp://x/"}, "must begin with https"),
        ({"url": "127.0.0.1:80"}, "must begin with https"),
        ({"url": "https://"}, "must begin with https"),
        ({"url": "https://me:secret@host/"}, "neither a user, a password nor a query"),
        ({"url": "ftp://me:secret@host/"}, "neither a user, a password nor a query"),
        ({"url": "http://127.0.0.1:99999"}, "cannot be asked: Port out of range"),
        ({"url": "http://\n127.0.0.1"}, "cannot be printed"),
        ({"url": "https://" + "a" * 100_000}, "cannot be asked: URL too long"),
        ({"url": "https://host/?token=secret"}, "neither a user, a password nor a query"),
        ({"url": "http://scorer.example/"}, "unencrypted to another machine: use https, or set insecure"),
        ({"url": "http://10.0.0.7:8710"}, "unencrypted"),
        ({"url": "http://localhost.example/"}, "unencrypted"),
        ({"url": "https://host/", "token_env": "my-token value"}, "token_env"),
    ],
)
def test_urls_that_would_leak_or_lead_nowhere_are_refused(options, message):
    with pytest.raises(ValidationError, match=message) as raised:
        EndpointOptions(**options)
    assert "secret@" not in str(raised.value).split("[type=")[0]


@pytest.mark.parametrize(
    "options",
    [
        {"url": "https://scorer.example/base"},
        {"url": "http://127.0.0.1:8710"},
        {"url": "http://127.5.5.5"},
        {"url": "http://localhost:8710"},
        {"url": "http://[::1]:8710"},
        {"url": "http://scorer.example", "insecure": True},
    ],
)
def test_urls_that_are_fit(options):
    assert EndpointOptions(**options).url == options["url"]


def test_loopback():
    assert [is_loopback(h) for h in ("127.0.0.1", "::1", "LOCALHOST", "0.0.0.0", "", "1.2.3.4", "localhost.x")] == [
        True, True, True, False, False, False, False,
    ]  # fmt: skip


def test_a_server_that_gives_the_token_back_does_not_get_it_into_messages(monkeypatch):
    monkeypatch.setenv("TOKEN", "correct-horse")
    for status in (200, 400, 500):

        def echo(asked, status=status):
            return Say({"error": f"I saw {asked.headers}\x1b[2J", "value": asked.headers}, status)

        with Scripted(echo).running() as server, pytest.raises((RewardError, UnavailableError)) as raised:
            endpoint = Endpoint(EndpointOptions(url=server.url, retries=0, token_env="TOKEN"), "far")
            endpoint.ask("/x", {}, lambda found: float(str(found["value"])))
        assert "horse" not in str(raised.value)
        assert str(raised.value).isprintable()
