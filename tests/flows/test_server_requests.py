"""Requests that are sent again make nothing twice, and a last one does not hang. The faults are real."""

import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowFilter, FlowFilterName
from prefect.context import SyncClientContext
from prefect.settings import temporary_settings

from flows import server_requests
from flows.patience import stop_waiting
from flows.server_requests import careful_requests, prepare


class Losing(httpx.BaseTransport):
    """Loses the first answer to what makes a flow run, once the server has made it."""

    def __init__(self, inner: httpx.BaseTransport) -> None:
        self._inner = inner
        self.lost = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = self._inner.handle_request(request)
        if request.url.path.endswith("/flow_runs/") and not self.lost:
            assert response.status_code == 201
            response.close()
            self.lost += 1
            raise httpx.ReadError("the connection broke", request=request)
        return response

    def close(self) -> None:
        self._inner.close()


@pytest.fixture
def client(prefect_server: None) -> Iterator[SyncPrefectClient]:
    # With 0 for its base, Prefect would not wait between tries; the first one waits 2 s.
    with temporary_settings({"client.max_retries": 1}), careful_requests():
        context = SyncClientContext.get()
        assert context is not None
        yield context.client


def test_a_flow_run_whose_making_was_answered_to_nobody_is_made_once(client: SyncPrefectClient):
    @flow(name="made-once")
    def made() -> Any: ...

    losing = Losing(client._client._transport)
    client._client._transport = losing
    run = client.create_flow_run(made)
    other = client.create_flow_run(made)
    found = client.read_flow_runs(flow_filter=FlowFilter(name=FlowFilterName(any_=["made-once"])))
    assert losing.lost == 1
    assert {one.id for one in found} == {run.id, other.id} and run.id != other.id


def test_care_is_taken_once_of_each_client(client: SyncPrefectClient):
    with careful_requests(), careful_requests():
        assert client._client.event_hooks["request"].count(prepare) == 1


@pytest.mark.usefixtures("stopped")
def test_a_server_that_was_given_up_is_told_quickly_or_not_at_all(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server_requests, "FAREWELL_SECONDS", 0.2)
    with (
        socket.create_server(("127.0.0.1", 0)) as deaf,
        httpx.Client(event_hooks={"request": [prepare]}, timeout=1.5) as client,
    ):
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/api/flow_runs/1/set_state"
        for given_up in (False, True):
            began = time.monotonic()
            with pytest.raises(httpx.ReadTimeout):
                client.post(url, json={})
            assert (time.monotonic() - began < 1.0) == given_up
            stop_waiting()
