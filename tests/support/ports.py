"""Ports for servers that tests start."""

import os

SPAN = 3_000


def first_port() -> int:
    """Where to look for free ports from: processes that test side by side look in other ranges.

    All lie below the ports that systems hand out to whoever connects: one of those may be taken before a server starts.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
    return 20_000 + worker % 4 * SPAN + os.getpid() % (SPAN - 100)
