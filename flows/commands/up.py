"""``solrl up``: servers and deployments until Ctrl-C."""

import contextvars
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil

from flows.commands.options import Home, MlflowPort, PrefectPort
from flows.console import say, shown_command
from flows.errors import UserError
from flows.lifecycle import Running, running_servers
from flows.outage import ending_in_words
from flows.patience import patient, stop_waiting
from flows.prefect_logs import quieten_outages
from flows.processes import ignored, raise_on_termination
from flows.server_watch import watching
from flows.settings import Settings, profile_url

GRACE_SECONDS: Final = 10.0


def up(home: Home = None, prefect_port: PrefectPort = None, mlflow_port: MlflowPort = None) -> None:
    """Start the Prefect and MLflow servers if they do not answer, and serve the deployments until Ctrl-C."""
    profile = profile_url()
    settings = Settings.read(home, prefect_port, mlflow_port)
    raise_on_termination()
    settings.apply()
    from solrl_tasks.store.root import Store

    # No run could use it: that must not wait for servers to be told.
    Store.find(settings.store_root)
    os.environ.setdefault("PREFECT_RUNNER_POLL_FREQUENCY", "2")
    if profile and profile[1].rstrip("/") != settings.prefect.url and settings.prefect.origin != "environment":
        say(
            f"Prefect: your profile {profile[0]!r} names {profile[1]}, which is not used here. "
            f"To use that server: PREFECT_API_URL={profile[1]} solrl up"
        )
    with (
        suppress(KeyboardInterrupt),
        running_servers(settings, say, own=True) as used,
        patient(),
        watched(used) as ended,
    ):
        from flows.deployments import serve_deployments
        from flows.recovery import close_all_dead

        quieten_outages()
        url = settings.prefect.url
        with watching(url, say), ending_in_words(url):
            close_all_dead(settings, say)
            _welcome(settings)
            serve_deployments()
        say("Stopping …")
    if ended:
        raise UserError(ended[0])


@contextmanager
def watched(used: list[Running]) -> Iterator[list[str]]:
    """End this command, with the reason in the list given, should one of its servers end by itself.

    Whatever the block raises after that follows from it and is dropped.
    """
    done = threading.Event()
    ended: list[str] = []

    def watch() -> None:
        while not done.wait(2.0):
            for server in used:
                if server.ended:
                    ended.append(_told(server))
                    say(ended[0])
                    os.kill(os.getpid(), signal.SIGTERM)
                    if server.spec.slug == "prefect":
                        _end_runs()
                    return

    # How long requests are tried is kept by context.
    run = contextvars.copy_context().run
    threading.Thread(target=run, args=(watch,), name="watch-servers", daemon=True).start()
    try:
        yield ended
    except Exception:
        if not ended:
            raise
    finally:
        done.set()


def _told(server: Running) -> str:
    return (
        f"{server.spec.name}: the server ended by itself; its log is {server.spec.log}. This command ends with it, and "
        "its runs. Nothing that was finished is lost: `solrl up` starts it again, and runs go on by their run ids"
    )


def _end_runs() -> None:
    """End the runs that this command started: Prefect would ask its server first, which is not there any more.

    What has ended its run by then still tries to send its events, for minutes: it is killed, which loses nothing.
    """
    stop_waiting()
    runs = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if "prefect.engine" in child.cmdline():
                child.terminate()
                runs.append(child)
    for run in psutil.wait_procs(runs, timeout=GRACE_SECONDS)[1]:
        with suppress(psutil.Error):
            run.kill()


def _welcome(settings: Settings) -> None:
    from flows.deployments import DEPLOYMENTS

    usual = settings.prefect.origin == "default" and Path("prefect.toml").exists()
    prefix = "" if usual else f"PREFECT_API_URL={settings.prefect.url} "
    prefect = shown_command("prefect")
    ui = settings.prefect.url.removesuffix("/api")
    say()
    say(f"Prefect  {ui}")
    say(f"MLflow   {settings.mlflow.url}")
    say(f"Home     {settings.home}")
    say()
    say(f"Serving {', '.join(DEPLOYMENTS)}. In another shell, in this folder:")
    say(f"  {prefix}{prefect} deployment run solrl/train --watch")
    say(f"  {prefix}{prefect} deployment run solrl/train -p run_id=mine -p explore_steps=4 --watch")
    say(f"  {prefix}{prefect} deployment run solrl-evaluate/default -p run_id=mine --watch")
    say(f"{_ending()} stops what was started here.")
    say()


def _ending() -> str:
    # Shells have what a script starts in the background ignore Ctrl-C.
    return f"`kill {os.getpid()}`" if ignored(signal.SIGINT) else "Ctrl-C"
