"""The training flow: every iteration of a run, going on where it stopped."""

from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect import runtime
from prefect.states import Completed

from flows.closed import closed_flow
from flows.ending import failed_by
from flows.iteration import iteration, registered
from flows.parameters import (
    Actors,
    Engine,
    Group,
    Iterations,
    LearningRate,
    Prompts,
    RayAddress,
    RunId,
    Seed,
    Steps,
    Workers,
    read_usable,
)
from flows.presence import present
from flows.reporting import current_reporter
from flows.server_watch import answers
from flows.settings import DEFAULT_CONFIG, Settings

if TYPE_CHECKING:
    from solrl_tasks.stages.session import Session


def _name() -> str:
    """The run id given, else one of config, time and flow run, the same at every try of this flow run."""
    given = runtime.flow_run.parameters.get("run_id")
    if given:
        return str(given)
    config = Path(runtime.flow_run.parameters["config"]).stem
    start = runtime.flow_run.scheduled_start_time.astimezone(UTC)
    return f"{config}-{start:%Y%m%d-%H%M%S}-{runtime.flow_run.id[:4]}"


@closed_flow("solrl", _name)
def train(
    run_id: RunId = None,
    iterations: Iterations = None,
    explore_steps: Steps = None,
    candidates: Group = None,
    keep: Group = None,
    prompts: Prompts = None,
    engine: Engine = None,
    lr: LearningRate = None,
    seed: Seed = None,
    workers: Workers = None,
    actors: Actors = None,
    ray_address: RayAddress = None,
    config: str = DEFAULT_CONFIG,
) -> Any:
    """Align a model on its own samples: explore many cheaply, train on the best and worst alone.

    A parameter that is left out has the value of the config file.

    Args:
        run_id: name of the run, made up if left out. A run that exists goes on where it stopped.
        iterations: how many iterations the run has in all.
        explore_steps: sampling steps of the cheap exploration.
        candidates: seeds explored for each prompt.
        keep: seeds kept for each prompt, half of them best and half worst.
        prompts: prompts in each iteration.
        engine: precision that explores.
        lr: learning rate.
        seed: seed of the whole run.
        workers: who computes, one device in the process of the flow (inline) or actors of a Ray cluster (ray).
        actors: processes of one device each, under ray.
        ray_address: cluster to use instead of one that is started for the run, under ray.
        config: recipe file, from the current folder or the project's.
    """
    asked: dict[str, object] = {
        "iterations": iterations,
        "explore_steps": explore_steps,
        "candidates": candidates,
        "keep": keep,
        "prompts": prompts,
        "engine": engine,
        "lr": lr,
        "seed": seed,
        "workers": workers,
        "actors": actors,
        "ray_address": ray_address,
    }
    name = run_id or runtime.flow_run.name
    try:
        return _train(name, config, asked)
    except Exception as error:
        return failed_by(error)


def _train(run_id: str, config: str, asked: dict[str, object]) -> Any:
    # The stages bring torch and diffusers; a deployment is registered without them.
    from flows.publishing import Publisher
    from flows.report import draw_or_note
    from flows.report_artifact import show_report
    from solrl_tasks.stages.reporter import Reporters
    from solrl_tasks.stages.session import open_session
    from solrl_tasks.tracking.artifacts import ProgressReporter

    recipe, base = read_usable(config, asked)
    settings = Settings.read()
    reporter = Reporters(current_reporter(), ProgressReporter(run_id, answers=answers))
    with (
        present(settings, runtime.flow_run.id, run_id),
        open_session(settings.store_root, run_id, recipe, reporter, base) as session,
        Publisher(settings, session) as publisher,
        registered(session, publisher),
    ):
        for step in range(recipe.iterations + 1):
            iteration(run_id, step)
        said = _conclusion(session)
        drawn = draw_or_note(session.store, run_id, reporter.note)
    if drawn is not None:
        show_report(run_id, drawn.page, drawn.html, publisher.shown, reporter.note)
    url = publisher.shown.url if publisher.shown else ""
    report = str(drawn.html) if drawn else ""
    data = {"run_id": run_id, "iterations": recipe.iterations, "mlflow": url, "report": report}
    return Completed(message=said, data=data)


def _conclusion(session: "Session") -> str:
    """One line on what the run came to: the held-out rewards, first and last, and the gain on equal seeds."""
    from flows.publishing import read_summaries, reward_names
    from solrl_tasks.tracking.terminal import eval_names, value

    summaries = [
        summary for summary in read_summaries(session.run) if any(m.startswith("eval/") for m in summary.metrics)
    ]
    if len(summaries) < 2:
        return "finished; nothing was evaluated"
    first, last = summaries[0], summaries[-1]
    return "; ".join(
        f"held-out {name} {value(first, f'eval/{name}')} -> {value(last, f'eval/{name}')}, "
        f"gain {value(last, f'eval/gain_{name}')}"
        for name in eval_names(summaries, reward_names(session.run))
    )
