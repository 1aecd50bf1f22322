"""A store in a temporary folder, and where one in a bucket is."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from solrl_tasks.store.root import Store
from tests.support.s3 import S3Server, serving, speaking_to


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    """An S3 server for the tests of a module."""
    with serving() as found:
        yield found


@pytest.fixture
def url(
    request: pytest.FixtureRequest, server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A prefix of a new bucket there. Leases last as many seconds as the module's ``LEASE`` says, else 4."""
    monkeypatch.setenv("SOLRL_HOME", str(tmp_path / "home"))
    with speaking_to(server, lease=getattr(request.module, "LEASE", 4.0)) as found:
        yield found
