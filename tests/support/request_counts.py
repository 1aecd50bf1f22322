"""Requests of a run whose store is in a bucket: how many of which kind, for what, and who sent them.

In the root of the repository, against a server on this machine::

    python -m tests.support.request_counts configs/embedded.yaml [--iterations 2] [--callers 20]
"""

import argparse
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

from solrl_tasks.config.load import load_recipe
from solrl_tasks.config.recipe import Recipe
from solrl_tasks.store.s3_client import S3Client
from tests.support.s3 import serving, speaking_to

_SHORT = (
    (r"\d{20}-[0-9a-f]{16}", "ENTRY"),
    (r"[0-9a-f]{32}", "TOKEN"),
    (r"[0-9a-f]{24}", "KEY"),
    (r"records/[0-9a-f]{16}", "records/ID"),
    (r"iterations/\d+", "iterations/N"),
    (r"data\.zarr/((rewards|features)/[^/]+|images|thumbnails|latents|paths)/", "data.zarr/ARRAY/"),
    (r"/(values|ledger)/c/.*", r"/\1/BLOCK"),
)
_MECHANICS = ("s3_client", "bucket", "object_path", "object_zarr", "atomic", "side_by_side", "lock")
_DEPTH = 4


@dataclass(frozen=True)
class Request:
    """One request: its verb, key, and the functions of the package that led to it, innermost first."""

    verb: str
    key: str
    callers: tuple[str, ...]

    @property
    def kind(self) -> str:
        """The key without what differs between objects of a kind."""
        text = self.key
        for pattern, name in _SHORT:
            text = re.sub(pattern, name, text)
        return text

    @property
    def of_block(self) -> bool:
        """Whether it writes a block: its values, its mark, or what it cost into the journal."""
        return self.verb == "put" and (self.kind.endswith("/BLOCK") or self.kind.endswith("/ENTRY.json"))


@contextmanager
def counted() -> Iterator[list[Request]]:
    """All requests of this process, as they are sent, for the length of a context. Signs of life are left out."""
    seen: list[Request] = []
    send = S3Client.send

    def counting(self: S3Client, verb: str, key: str, call: Callable[[Any], Any]) -> Any:
        callers = _callers()
        if "leases.renew" not in callers:
            seen.append(Request(verb, key, callers))
        return send(self, verb, key, call)

    with mock.patch.object(S3Client, "send", counting):
        yield seen


def _callers() -> tuple[str, ...]:
    found: list[str] = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if "solrl_tasks" in path.parts and path.stem not in _MECHANICS:
            found.append(f"{path.stem}.{frame.f_code.co_name}")
        frame = frame.f_back
    return tuple(found)


def run_counted(url: str, recipe: Recipe) -> list[list[Request]]:
    """Requests of each step of a new run, one after the other in this process."""
    from solrl_tasks.stages.iteration import run_step
    from solrl_tasks.stages.session import open_session

    steps = []
    with open_session(url, "counted", recipe) as session:
        for step in range(recipe.iterations + 1):
            with counted() as seen:
                run_step(session, step)
            steps.append(list(seen))
    return steps


def tell(requests: list[Request], callers: int) -> Iterator[str]:
    """Counts in lines for people."""
    blocks = sum(request.of_block for request in requests)
    verbs = ", ".join(f"{count} {verb.upper()}" for verb, count in Counter(r.verb for r in requests).most_common())
    yield f"{len(requests)} requests: {verbs}; {blocks} write blocks, {len(requests) - blocks} do the rest"
    for (verb, kind), count in Counter((r.verb, r.kind) for r in requests).most_common():
        yield f"  {count:4d} {verb:6s} {kind}"
    if callers:
        yield "by whom, blocks left out:"
        rest = Counter((r.verb, r.kind, " < ".join(r.callers[:_DEPTH])) for r in requests if not r.of_block)
        for (verb, kind, whom), count in rest.most_common(callers):
            yield f"  {count:4d} {verb:6s} {kind}: {whom}"


def main(arguments: list[str] | None = None) -> None:
    """Run a recipe with its store in a bucket of a server on this machine, and count."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--iterations", type=int, default=2, help="the last one is told of in full")
    parser.add_argument("--callers", type=int, default=0, help="as many of those who asked most")
    options = parser.parse_args(arguments)
    recipe = load_recipe(options.recipe, {"iterations": options.iterations})
    with tempfile.TemporaryDirectory() as home, serving() as server, speaking_to(server, lease=60.0) as url:
        os.environ["SOLRL_HOME"] = home
        steps = run_counted(url, recipe)
    for step, requests in enumerate(steps):
        for line in tell(requests, options.callers) if step == len(steps) - 1 else [next(tell(requests, 0))]:
            print(f"step {step}: {line}" if not line.startswith(" ") else line)


if __name__ == "__main__":
    main()
