from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient
from PIL import Image

from solrl_tasks.config.recipe import Recipe
from solrl_tasks.store.refs import Ref
from solrl_tasks.tracking.mlflow_run import RunFacts
from solrl_tasks.tracking.summary import StageCost, Summary

START = 1_700_000_000_000
STAGES = ("quantize", "explore", "select", "regenerate", "update", "evaluate")


def pool_ref(step: int) -> Ref:
    key = f"{step:024x}"
    return Ref(kind="pools", key=key, digest=f"{step + 7:064x}", path=f"pools/{key}")


@pytest.fixture
def make_summary() -> Callable[..., Summary]:
    def make(step: int, **changes) -> Summary:
        metrics = {"eval/scene": 0.30 + step / 100, "gpu_hours/spent": 0.01 * step, "seconds/evaluate": 1.5}
        if step:
            metrics |= {
                "reward/proxy": 0.25 + step / 70,
                "reward/bf16": 0.28 + step / 70,
                "rank/kept_spearman": 0.7,
                "rank/alarm": 0.0,
                "train/loss": 1.0 / step,
                "seconds/explore": 3.25,
            }
        summary = Summary(
            run_id="demo",
            step=step,
            timestamp_ms=START + 60_000 * step,
            metrics=metrics,
            stderr={"eval/scene": 0.011},
            stages={
                name: StageCost(seconds=2.5, device_seconds=2.0, attributed_seconds=2.0, state="Completed")
                for name in (STAGES if step else ("evaluate",))
            },
            refs={"pool": pool_ref(step)} if step else {},
        )
        return summary.model_copy(update=changes)

    return make


@pytest.fixture
def history(make_summary) -> list[Summary]:
    return [make_summary(step) for step in range(4)]


@pytest.fixture
def facts() -> RunFacts:
    return RunFacts(
        run_id="demo",
        store_id="store-1",
        experiment="solrl",
        device_kind="cpu",
        recipe=Recipe(iterations=3).model_dump(mode="json"),
        engines={"nvfp4-emulated": "emulated", "bf16": "real"},
        versions={"torch": "2.13.0"},
    )


@pytest.fixture
def iteration_folder(tmp_path) -> Callable[[int], Path]:
    def folder(step: int) -> Path:
        path = tmp_path / "iterations" / f"{step:04d}"
        if not path.exists():
            path.mkdir(parents=True)
            Image.new("RGB", (40, 30), (step * 40, 90, 120)).save(path / "grid.png")
        return path

    return folder


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory) -> bytes:
    """An MLflow database without runs: making its tables takes seconds, copying it none."""
    path = tmp_path_factory.mktemp("mlflow") / "empty.db"
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path.read_bytes()


@pytest.fixture
def uri(tmp_path, empty_database) -> str:
    (tmp_path / "mlflow.db").write_bytes(empty_database)
    return f"sqlite:///{tmp_path}/mlflow.db"
