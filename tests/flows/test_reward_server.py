import base64
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
import uvicorn
from starlette.testclient import TestClient
from typer.testing import CliRunner

from flows.cli import app as cli
from flows.errors import UserError
from flows.reward_server import Limits, RewardApp, address_of, known_names, require_token, serve
from solrl_tasks.config.recipe import RewardSpec
from solrl_tasks.rewards.base import NamedReward, RewardError
from solrl_tasks.rewards.protocol import encode_image
from solrl_tasks.rewards.scoring import make_reward, score

TOKEN = "correct-horse"


class Brightness:
    """Scores by the mean; what the metadata say may go wrong goes wrong."""

    def __init__(self):
        self.together, self.most = 0, 0
        self.release = threading.Event()

    def __call__(self, images, prompts, metadata):
        self.together += 1
        self.most = max(self.most, self.together)
        try:
            for item in metadata:
                if item.get("wait"):
                    self.release.wait(30)
                if item.get("fail"):
                    raise KeyError("a face")
                if item.get("broken"):
                    raise RewardError("the weights are gone")
            return [float(image.mean()) for image in images]
        finally:
            self.together -= 1


@contextmanager
def served(scorer=None, token=None, limits=None):
    reward = NamedReward("bright", "3+ab", (0.0, float("inf")), lambda: scorer or Brightness())
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(RewardApp(reward, token, limits or Limits()).app, log_level="error", access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listening.close()


def pictures(count, side=4):
    return np.random.default_rng(0).integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def remote(url, **options):
    plain = {"url": url, "reward": "bright", "retries": 1, "backoff": 0.01, "timeout": 10.0}
    return make_reward(RewardSpec(name="remote", options=plain | options))


def message(count=1, **changes):
    body = {
        "protocol": 1,
        "reward": "bright",
        "images": [encode_image(image) for image in pictures(count)],
        "prompts": ["p"] * count,
        "metadata": [{}] * count,
    }
    return body | changes


def test_the_remote_reward_gives_what_the_reward_gives():
    images = pictures(5)
    with served() as url:
        reward = remote(url, batch=2)
        found = score(reward, images, ["p"] * 5, [{}] * 5)
        assert remote(url, version="3+ab").version == reward.version
        reward.unload()
    assert found.values.tolist() == score(_here(), images, ["p"] * 5, [{}] * 5).values.tolist()
    assert found.failures == ()


def _here():
    return NamedReward("bright", "3+ab", (0.0, 1.0), Brightness)


def test_identity_and_health():
    with served() as url:
        assert httpx.get(f"{url}/health").json() == {"status": "ok"}
        identity = {"protocol": 1, "reward": "bright", "version": "3+ab", "range": [0.0, None]}
        assert httpx.get(f"{url}/v1/reward").json() == identity
        assert httpx.get(f"{url}/docs").status_code == 404
        assert httpx.get(f"{url}/v1/score").status_code == 405


def test_images_that_fail_do_so_alone_and_say_why():
    with served() as url:
        found = score(remote(url), pictures(3), ["p"] * 3, [{}, {"fail": True}, {}])
    assert np.isfinite(found.values).tolist() == [True, False, True]
    assert found.failures == ("remote: image 1: KeyError: 'a face'",)


def test_a_reward_that_is_broken_stops_the_client_at_once():
    with served() as url, pytest.raises(RewardError, match="status 500: the weights are gone"):
        score(remote(url), pictures(1), ["p"], [{"broken": True}])


def test_the_token_is_asked_for_everywhere_but_at_the_door(monkeypatch):
    monkeypatch.setenv("RIGHT", TOKEN)
    monkeypatch.setenv("WRONG", "battery-staple")
    with served(token=TOKEN) as url:
        assert httpx.get(f"{url}/health").status_code == 200
        for path, how in (("/v1/reward", httpx.get), ("/v1/score", httpx.post)):
            for header in (None, "Bearer", f"Basic {TOKEN}", "Bearer correct-hors", f"Bearer {TOKEN}x", "Bearer \xe9"):
                headers = {} if header is None else {"Authorization": header.encode("latin-1")}
                assert how(url + path, headers=headers).status_code == 401
        assert score(remote(url, token_env="RIGHT"), pictures(1), ["p"], [{}]).failures == ()
        for options in ({}, {"token_env": "WRONG"}):
            with pytest.raises(RewardError, match="status 401: no token, or a wrong one") as raised:
                remote(url, **options)
            assert TOKEN not in str(raised.value)
            assert "battery" not in str(raised.value)


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (message(protocol=2), 400, "protocol 2 is not spoken here: 1 is"),
        (message(reward="dark"), 404, "the reward 'dark' is not here: 'bright' is"),
        (message(version="4"), 409, "version '4' is asked for, but here is version '3+ab'"),
        (message(prompts=[]), 400, "must be equally many"),
        (message(images=[], prompts=[], metadata=[]), 400, "images"),
        (message(extra=1), 400, "extra"),
        (message(images=["aGVsbG8="]), 400, "images[0]: it is no PNG"),
        (message(count=4), 413, "a request may have 3 images, found 4"),
        ([1], 400, "malformed"),
    ],
)
def test_requests_that_are_refused(body, status, reason):
    with served(limits=Limits(batch=3)) as url:
        answer = httpx.post(f"{url}/v1/score", json=body)
    assert answer.status_code == status
    assert reason in answer.json()["error"]


def test_what_is_no_json_or_too_large_is_refused():
    with served(limits=Limits(body=2000)) as url:
        target = f"{url}/v1/score"
        assert httpx.post(target, content=b"{", headers={"Content-Type": "application/json"}).status_code == 400
        assert httpx.post(target, json=message(), headers={"Content-Type": "text/plain"}).status_code == 415
        assert httpx.post(target, json={"x": "y" * 2000}).status_code == 413

        def pieces():
            for _ in range(30):
                yield b" " * 100

        # Without a length that could be looked at before.
        assert httpx.post(target, content=pieces(), headers={"Content-Type": "application/json"}).status_code == 413
        two_sizes = message(images=[encode_image(pictures(1, side)[0]) for side in (4, 5)], prompts=["", ""])
        answer = httpx.post(target, json={**two_sizes, "metadata": [{}, {}]})
        assert answer.json()["error"] == "the images of a request must be of one size"


def test_one_request_is_scored_at_a_time_and_too_many_come_again():
    scorer = Brightness()
    answers = []

    def post(url, wait):
        # The request below that finds out whether there is room may have taken it.
        answer = httpx.post(f"{url}/v1/score", json=message(metadata=[{"wait": wait}]), timeout=60)
        while answer.status_code == 503:
            time.sleep(0.01)
            answer = httpx.post(f"{url}/v1/score", json=message(metadata=[{"wait": wait}]), timeout=60)
        answers.append(answer)

    with served(scorer, limits=Limits(waiting=2)) as url:
        threads = [threading.Thread(target=post, args=(url, True)) for _ in range(2)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            # While there is room, it is let in to be told that it is wrong.
            refused = httpx.post(f"{url}/v1/score", json=message(reward="dark"))
            if refused.status_code == 503:
                break
            time.sleep(0.05)
        assert refused.headers["Retry-After"] == "1"
        time.sleep(0.3)  # Long enough for the second to be scored beside the first, if that could happen.
        scorer.release.set()
        for thread in threads:
            thread.join(30)
        assert httpx.post(f"{url}/v1/score", json=message()).status_code == 200
    assert [answer.status_code for answer in answers] == [200, 200]
    assert scorer.most == 1


# Starting it


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "scorer.example"])
def test_other_machines_need_a_token(host):
    with pytest.raises(UserError, match=f"--host {host} can be reached from other machines, and there is no token"):
        require_token(host, None)
    require_token(host, TOKEN)
    require_token("127.0.0.1", None)
    require_token("localhost", None)


def test_a_taken_port_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"127.0.0.1:{port} cannot be listened on"):
            serve(_here(), "127.0.0.1", port, None, Limits())


def refused(*words):
    result = CliRunner().invoke(cli, ["reward", "serve", *words])
    assert result.exception is not None
    return str(result.exception)


def test_the_command_refuses_what_it_cannot_serve(monkeypatch):
    monkeypatch.delenv("NOT_SET", raising=False)
    monkeypatch.setenv("ODD", "two words")
    assert "there is no token" in refused("colourfulness", "--host", "0.0.0.0")
    assert "--token-env NOT_SET: this environment variable is not set" in refused(
        "colourfulness", "--token-env", "NOT_SET"
    )
    assert "is no token" in refused("colourfulness", "--token-env", "ODD")
    assert "there is aesthetic" in refused("colorfulness")
    assert "--options '{' is no JSON" in refused("colourfulness", "--options", "{")
    assert "must be a JSON object" in refused("colourfulness", "--options", "[1]")
    assert "takes no options" in refused("colourfulness", "--options", '{"a": 1}')
    assert "--device 'tpu9x' is no device" in refused("colourfulness", "--device", "tpu9x")


def test_the_command_serves_and_says_how_to_use_it(monkeypatch):
    import yaml

    started = []
    monkeypatch.setattr("flows.reward_server.serve", lambda *arguments: started.append(arguments))
    monkeypatch.setenv("TOKEN_HERE", TOKEN)
    words = [
        "colourfulness",
        "--port",
        "8711",
        "--token-env",
        "TOKEN_HERE",
        "--batch",
        "5",
        "--max-mb",
        "2",
        "--device",
        "cpu",
        "--allow-host",
        "scorer.example",
    ]
    result = CliRunner().invoke(cli, ["reward", "serve", *words])
    assert result.exit_code == 0
    reward, host, port, token, limits, hosts = started[0]
    assert hosts == ("scorer.example",)
    assert (reward.name, host, port, token) == ("colourfulness", "127.0.0.1", 8711, TOKEN)
    assert limits == Limits(batch=5, body=2 * 2**20)
    assert TOKEN not in result.output
    (entry,) = yaml.safe_load(result.output.split("In a recipe:\n")[1])
    made = make_reward(RewardSpec.model_validate(entry))
    assert made.name == "remote"
    assert entry["options"]["token_env"] == "TOKEN_HERE"


@pytest.mark.parametrize(
    ("host", "allowed", "answered", "refused"),
    [
        ("127.0.0.1", (), ["localhost:1", "127.0.0.1"], ["scorer.example", "0.0.0.0", "192.0.2.7"]),
        ("127.0.0.1", ("Scorer.Example",), ["localhost", "scorer.example:8"], ["other.example", "0.0.0.0"]),
        ("0.0.0.0", (), ["any.example", "192.0.2.7:8710", "localhost"], []),
        ("0.0.0.0", ("scorer.example",), ["SCORER.example", "localhost"], ["192.0.2.7", "0.0.0.0:8710"]),
        ("192.0.2.7", ("scorer.example",), ["scorer.example", "192.0.2.7:8710"], ["192.0.2.8", "other.example"]),
        ("fd00::1", ("[fd00::2]",), ["[fd00::1]:8710", "[fd00::2]", "[::1]"], ["[fd00::3]"]),
        ("::", ("scorer.example",), ["scorer.example"], ["[::]:8710", "[fd00::1]"]),
    ],
)
def test_names_that_are_answered_to(host, allowed, answered, refused):
    app = RewardApp(_here(), TOKEN, Limits(), known_names(host, allowed)).app
    with TestClient(app) as client:
        for name, status in [*((name, 200) for name in answered), *((name, 421) for name in refused)]:
            assert client.get("/health", headers={"Host": name}).status_code == status, name
            asked = client.get("/v1/reward", headers={"Host": name})
            assert asked.status_code == (401 if status == 200 else 421), "a name that is known lets nobody in"


@pytest.mark.parametrize("name", ["http://scorer.example", "scorer.example:8710", "scorer.example/", ""])
def test_an_allowed_name_that_could_never_come_is_refused(name):
    with pytest.raises(UserError, match="is no name: give it without scheme, port and path"):
        known_names("0.0.0.0", (name,))
    assert "is no name" in refused("colourfulness", "--allow-host", name)


@pytest.mark.parametrize(
    ("host", "allowed", "url"),
    [
        ("127.0.0.1", ("scorer.example",), "http://127.0.0.1:8710"),
        ("::1", (), "http://[::1]:8710"),
        ("0.0.0.0", (), f"https://{socket.gethostname()}"),
        ("0.0.0.0", ("scorer.example", "b.example"), "https://scorer.example"),
        ("192.0.2.7", (), "https://192.0.2.7"),
        ("fd00::1", (), "https://[fd00::1]"),
    ],
)
def test_the_address_for_a_recipe_is_one_that_recipes_take(host, allowed, url):
    assert address_of(host, 8710, allowed) == url
    remote(url, version="1")


def test_an_image_that_is_small_only_while_packed_is_refused():
    head = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", len(head)) + b"IHDR" + head + struct.pack(">I", zlib.crc32(b"IHDR" + head))
    bomb = base64.b64encode(b"\x89PNG\r\n\x1a\n" + chunk).decode()
    with served() as url:
        answer = httpx.post(f"{url}/v1/score", json=message(images=[bomb]))
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("images[0]: ")


def test_clients_that_never_end_their_requests_do_not_keep_others_out():
    with served(limits=Limits(waiting=1, seconds=0.5)) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as stuck:
            stuck.sendall(
                b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
            )
            assert b"408" in stuck.recv(100)
            assert httpx.post(f"{url}/v1/score", json=message()).status_code == 200


def test_what_is_asked_for_is_not_repeated_at_length():
    with served() as url:
        for body in (message(reward="x" * 10**6), message(version="x" * 10**6), message(protocol="x" * 10**6)):
            assert len(httpx.post(f"{url}/v1/score", json=body).content) < 1000


def test_a_page_that_leads_its_own_name_here_is_not_answered():
    with served() as url:
        for name, status in (("evil.example", 421), ("localhost.evil.example", 421), ("", 421), ("[::1", 421)):
            for path in ("/health", "/v1/reward"):
                assert httpx.get(url + path, headers={"Host": name}).status_code == status, name
        for name in ("localhost", "LOCALHOST:8710", "127.0.0.1:1", "[::1]:8710"):
            assert httpx.get(f"{url}/health", headers={"Host": name}).status_code == 200, name
        assert "--allow-host" in httpx.get(url, headers={"Host": "evil.example:80"}).json()["error"]


def test_other_names_may_be_allowed():
    app = RewardApp(_here(), None, Limits(), ("Scorer.Example",)).app
    with TestClient(app, base_url="http://scorer.example:8710") as client:
        assert client.get("/health").status_code == 200
        assert client.get("/health", headers={"Host": "other.example"}).status_code == 421
    with TestClient(RewardApp(_here(), TOKEN, Limits(), None).app, base_url="http://any.example") as client:
        assert client.get("/health").status_code == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_within_seconds_while_it_scores(tmp_path, number):
    (tmp_path / "slow.py").write_text(
        "import time\ndef slow(images, prompts, metadata):\n    print('scoring', flush=True)\n    time.sleep(60)\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        Path(sys.executable).parent / "solrl",
        "reward",
        "serve",
        "slow:slow",
        "--port",
        str(port),
        "--device",
        "cpu",
    ]
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path.cwd()}"}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while "- {name" not in process.stdout.readline():
            assert process.poll() is None
        body = message(reward="slow:slow")
        threading.Thread(target=post_until_closed, args=(f"http://127.0.0.1:{port}/v1/score", body)).start()
        while "scoring" not in process.stdout.readline():
            assert process.poll() is None
        began = time.monotonic()
        process.send_signal(number)
        try:
            process.wait(20)
        finally:
            process.kill()
    assert time.monotonic() - began < 8


def post_until_closed(url, body):
    for _ in range(100):
        try:
            httpx.post(url, json=body, timeout=60)
        except httpx.ConnectError:
            time.sleep(0.1)
        except httpx.HTTPError:
            return
        else:
            return
