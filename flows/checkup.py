"""What ``solrl doctor`` looks at beyond lists: room on the disk, leases, reports, deployments, packages."""

import importlib.metadata
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from flows.console import format_bytes
from flows.home import special_kind
from solrl_tasks.config.words import counted

if TYPE_CHECKING:
    from solrl_tasks.store.root import Store
    from solrl_tasks.store.runs import RunInfo

TIGHT: Final = 1.2
"""Room that is wanted, as a multiple of what runs are going to write."""


def lease_line(store: "Store") -> str:
    """Whether a lease of a bucket can be had and given back, and how long that took.

    Raises:
        StoreError: it cannot.
    """
    from solrl_tasks.store.leases import lease_seconds
    from solrl_tasks.store.places import lock_at

    started = time.monotonic()
    with lock_at(store.root / "locks" / "doctor.lock", "solrl doctor").hold(wait=True, timeout=lease_seconds()):
        pass
    taken = time.monotonic() - started
    return f"one was taken and given back in {taken:.1f} s; a lost process keeps one for {lease_seconds():.0f} s"


def disk_lines(store: "Store", runs: "list[RunInfo]") -> Iterator[str]:
    """Room on the disk of the store, and what unfinished runs are going to write by what they wrote so far."""
    wanted, unknown = 0.0, []
    for run in runs:
        left = max((run.iterations or 0) - max(run.committed - 1, 0), 0)
        if special_kind(run.run_id) or not left or run.status == "finished":
            continue
        each = bytes_of_iteration(store, run.run_id)
        if each is None:
            unknown.append(run.run_id)
            continue
        wanted += left * each
        sizes = f"{format_bytes(each)} each so far, {format_bytes(left * each)}"
        yield f"{run.run_id}: {counted(left, 'iteration')} left, {sizes}"
    if unknown:
        yield f"no iteration yet to tell by: {', '.join(unknown)}"
    if not isinstance(store.root, Path):
        yield "a bucket does not tell what room it has"
        return
    free = shutil.disk_usage(store.root).free
    verdict = "" if free >= TIGHT * wanted else ", which is TOO LITTLE: see docs/operations.md, Letting go"
    yield f"{format_bytes(free)} free{verdict}"


def bytes_of_iteration(store: "Store", run_id: str) -> float | None:
    """Mean size of what a committed iteration made and the store still holds; None where there is none."""
    from solrl_tasks.store.places import bytes_below
    from solrl_tasks.store.runs import view_run
    from solrl_tasks.store.trims import PARENT, read_trim

    view = view_run(store, run_id)
    trimmed = read_trim(view).steps
    steps = [step for step in view.summaries() if step > 0 and step not in trimmed]
    paths = {ref.path for step in steps for name, ref in view.refs(step).items() if name != PARENT}
    return sum(bytes_below(store.root / path) for path in paths) / len(steps) if steps else None


def report_lines(store: "Store") -> Iterator[str]:
    """How many reports there are, and which of them cannot be read."""
    from solrl_tasks.reports.stored import read_report
    from solrl_tasks.store.errors import StoreError
    from solrl_tasks.store.places import matching

    names = [path.parent.parent.name for path in matching(store.runs, "*/report/page.json")]
    yield f"{len(names)}"
    for name in names:
        try:
            read_report(store, name)
        except StoreError as error:
            yield f"  {name}: {error}; `solrl report {name}` draws it again"


def deployment_lines() -> Iterator[str]:
    """Which deployments the Prefect server knows, and which of them somebody serves."""
    from prefect.client.orchestration import get_client

    from flows.deployments import DEPLOYMENTS

    with get_client(sync_client=True) as client:
        flows = {flow.id: flow.name for flow in client.read_flows()}
        known = {f"{flows.get(found.flow_id, '?')}/{found.name}": found for found in client.read_deployments()}
    served = [name for name in DEPLOYMENTS if name in known and str(known[name].status).endswith("READY")]
    served = [name for name in served if not str(known[name].status).endswith("NOT_READY")]
    yield f"{len(served)} of {len(DEPLOYMENTS)} are served"
    for name in DEPLOYMENTS:
        if name not in known:
            yield f"  {name}: unknown to the server; `solrl up` makes it"
        elif name not in served:
            yield f"  {name}: nobody serves it; `solrl up` does, or a worker of its work pool"


def unfit_packages() -> Iterator[str]:
    """Installed packages that are not of the versions that this one was made for."""
    from packaging.requirements import Requirement

    for text in importlib.metadata.requires("sol-rl") or []:
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        try:
            found = importlib.metadata.version(wanted.name)
        except importlib.metadata.PackageNotFoundError:
            yield f"{wanted.name} is not installed; {wanted.specifier} is wanted"
            continue
        if not wanted.specifier.contains(found, prereleases=True):
            yield f"{wanted.name} is {found}; {wanted.specifier} is wanted"
