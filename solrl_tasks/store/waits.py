"""How long the store waits for others, as the environment says."""

import os

from solrl_tasks.store.errors import StoreError


def setting(name: str, default: float, least: float) -> float:
    """A number of seconds from the environment.

    Raises:
        StoreError: it is no number, or less than ``least``.
    """
    text = os.environ.get(name) or str(default)
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value < float("inf"):
        raise StoreError(f"{name} is {text!r}: a number of seconds, at least {least:g}, is wanted")
    return value
