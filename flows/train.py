"""The training flow: every iteration of a run, going on where it stopped."""

from datetime import UTC
from pathlib import Path
from typing import Any

from prefect import flow, runtime

from flows.iteration import iteration, registered
from flows.parameters import (
    DEFAULT_CONFIG,
    Engine,
    Group,
    Iterations,
    LearningRate,
    Prompts,
    RunId,
    Seed,
    Steps,
    read_recipe,
)
from flows.presence import present
from flows.reporting import current_reporter
from flows.settings import Settings


def _name() -> str:
    """The run id given, else one of config, time and flow run, the same at every try of this flow run."""
    given = runtime.flow_run.parameters.get("run_id")
    if given:
        return str(given)
    config = Path(runtime.flow_run.parameters["config"]).stem
    start = runtime.flow_run.scheduled_start_time.astimezone(UTC)
    return f"{config}-{start:%Y%m%d-%H%M%S}-{runtime.flow_run.id[:4]}"


@flow(name="solrl", flow_run_name=_name, persist_result=False)
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
    config: str = DEFAULT_CONFIG,
) -> dict[str, Any]:
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
        config: recipe file, from the current folder or the project's.
    """
    # The stages bring torch and diffusers; a deployment is registered without them.
    from flows.publishing import conclude
    from solrl_tasks.stages.session import open_session

    settings = Settings.read()
    asked: dict[str, object] = {
        "iterations": iterations,
        "explore_steps": explore_steps,
        "candidates": candidates,
        "keep": keep,
        "prompts": prompts,
        "engine": engine,
        "lr": lr,
        "seed": seed,
    }
    recipe, base = read_recipe(config, asked)
    name = run_id or runtime.flow_run.name
    reporter = current_reporter()
    with (
        present(settings, runtime.flow_run.id, name),
        open_session(settings.store_root, name, recipe, reporter, base) as session,
        registered(session),
        conclude(session),
    ):
        for step in range(recipe.iterations + 1):
            iteration(name, step)
    return {"run_id": name, "iterations": recipe.iterations}
