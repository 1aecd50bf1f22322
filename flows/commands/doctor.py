"""``solrl doctor``: what is installed, what can run, what lies in the store, what died."""

import importlib.metadata
import os
import platform
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from flows.checkup import deployment_lines, disk_lines, lease_line, report_lines, unfit_packages
from flows.commands.options import Home, MlflowPort, PrefectPort
from flows.console import format_bytes, say
from flows.home import special_kind
from flows.servers import ServerSpec, mlflow_server, prefect_server, probe
from flows.settings import Settings, profile_url
from solrl_tasks.config.words import counted

if TYPE_CHECKING:
    from solrl_tasks.store.pool import PoolSurvey

PACKAGES: Final = (
    "sol-rl",
    "torch",
    "diffusers",
    "transformers",
    "peft",
    "numpy",
    "prefect",
    "mlflow",
    "zarr",
)


def doctor(home: Home = None, prefect_port: PrefectPort = None, mlflow_port: MlflowPort = None) -> None:
    """Report versions, engines, store and servers, and close the runs that died in them."""
    profile = profile_url()
    settings = Settings.read(home, prefect_port, mlflow_port)
    os.environ.update(settings.environment())
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    _versions()
    _engines()
    _workers()
    _store(settings)
    _servers(settings, profile)


def _versions() -> None:
    say("Versions")
    say(f"  python        {platform.python_version()} on {platform.system()} {platform.machine()}")
    for name in PACKAGES:
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found = "not installed"
        say(f"  {name:<13} {found}")
    for line in unfit_packages():
        say(f"  unfit         {line}: install it so, or results and messages may differ")


def _engines() -> None:
    import torch

    from solrl_tasks.engines.base import hardware_name, report_engines
    from solrl_tasks.workers.numerics import default_device

    device = default_device()
    say("\nDevice and engines")
    say(f"  device        {device}: {hardware_name(device)}, {counted(torch.get_num_threads(), 'thread')} on the CPU")
    for name, availability in report_engines(device).items():
        say(f"  {name:<16} {'available' if availability.ok else 'not available'}: {availability.reason}")


def _workers() -> None:
    from solrl_tasks.workers.ray_cluster import answers, installed

    version, address = installed(), os.environ.get("RAY_ADDRESS")
    say("\nWorkers")
    say(f"  ray           {version or 'not installed: `workers: ray` needs the extra ray'}")
    if address and version:
        state = "" if ":" not in address else " answers" if answers(address) else " does not answer"
        say(f"  cluster       RAY_ADDRESS {address}{state}; runs with `workers: ray` use it")


def _store(settings: Settings) -> None:
    say(f"\nStore {settings.store_root}")
    from solrl_tasks.store.errors import StoreError

    try:
        _store_contents(settings)
    except StoreError as error:
        say(f"  {error}")


def _store_contents(settings: Settings) -> None:
    from solrl_tasks.store.leases import lease_seconds
    from solrl_tasks.store.root import FORMAT, Store

    place = settings.store_root
    if Store.find(place) is None:
        say("  nothing yet: `solrl demo` makes it")
        return
    if not isinstance(place, Path):
        place.bucket.require_conditions("store.json")
        say(f"  bucket        at {place.bucket.endpoint}, with conditional writes; leases of {lease_seconds():.0f} s")
    from solrl_tasks.store.pool import survey_pools
    from solrl_tasks.store.runs import list_runs

    store = Store(settings.store_root)
    say(f"  format        {store.format} of at most {FORMAT}")
    if not isinstance(place, Path):
        say(f"  lease         {lease_line(store)}")
    everything, pools = list_runs(store), survey_pools(store)
    runs = [run for run in everything if not special_kind(run.run_id)]
    counts = Counter(run.status for run in runs)
    say(f"  runs          {len(runs)}" + "".join(f", {counts[status]} {status}" for status in sorted(counts)))
    for run in runs:
        if run.status == "interrupted":
            say(f"    {run.run_id}: interrupted; the same run id goes on where it stopped")
        elif run.status == "damaged":
            say(f"    {run.run_id}: its configuration is damaged; put it back from a copy, or use another run id")
    say(f"  studies       {len(everything) - len(runs)}, evaluations among them")
    _pools(pools)
    for title, lines in (("reports", report_lines(store)), ("disk", disk_lines(store, everything))):
        for number, line in enumerate(lines):
            say(f"  {'' if number else title:<13} {line}")
    aside = len(list(store.quarantine.glob("*.why.txt")))
    if aside:
        say(
            f"  quarantine    {counted(aside, 'damaged object')}, in {store.quarantine}; they are computed again when "
            "needed"
        )


def _pools(survey: "PoolSurvey") -> None:
    pools = survey.pools
    partial = [pool for pool in pools if pool.partial]
    size = format_bytes(sum(pool.bytes for pool in pools))
    say(f"  pools         {len(pools)}, {len(partial)} of them partly filled, {size}")
    for pool in partial:
        filled = ", ".join(f"{name} {100 * part:.0f} %" for name, part in pool.filled.items()) or "empty"
        say(f"    {pool.key[:12]}: {filled}; a run that needs the rest computes only that")
    for key, why in survey.unreadable.items():
        say(f"    {key[:12]} cannot be read: {why}; a run that needs it sets it aside and fills it anew")


def _servers(settings: Settings, profile: tuple[str, str] | None) -> None:
    say("\nServers")
    prefect, mlflow = prefect_server(settings), mlflow_server(settings)
    prefect_up, mlflow_up = _server(prefect), _server(mlflow)
    if profile and profile[1].rstrip("/") != settings.prefect.url:
        say(f"  your Prefect profile {profile[0]!r} names {profile[1]}; PREFECT_API_URL={profile[1]} would use it")
    if prefect_up:
        for number, line in enumerate(deployment_lines()):
            say(f"  {'' if number else 'deployments'} {line}")
    say("\nRuns that died")
    closed = 0
    if prefect_up:
        from flows.recovery import close_dead_flow_runs

        closed += close_dead_flow_runs(settings, _indented)
    if mlflow_up:
        from flows.recovery import close_dead_mlflow_runs

        closed += close_dead_mlflow_runs(settings, _indented)
    unasked = [spec.name for spec, up in ((prefect, prefect_up), (mlflow, mlflow_up)) if not up]
    if unasked:
        say(f"  {' and '.join(unasked)} could not be asked; start them with `solrl up`, which looks as well")
    elif not closed:
        say("  none")


def _server(spec: ServerSpec) -> bool:
    if not spec.address.is_http:
        say(f"  {spec.name:<8} writes straight to {spec.address.url} ({spec.address.chosen_by})")
        return True
    answer = probe(spec)
    words = {
        "answers": "answers",
        "silent": "does not answer; `solrl up` starts it" if spec.address.is_local else "does not answer",
        "foreign": f"is something else; choose another port with {spec.port_option} or {spec.port_variable}",
    }
    say(f"  {spec.name:<8} {spec.address.url} {words[answer]}")
    return answer == "answers"


def _indented(text: str) -> None:
    say(f"  {text}")
