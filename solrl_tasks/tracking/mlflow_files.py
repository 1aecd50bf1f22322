"""The files that a run has in MLflow: recipe, image grids, adapter, and references to pools."""

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

import yaml
from pydantic import JsonValue

from solrl_tasks.store.keys import digest, sha256_hex
from solrl_tasks.tracking.summary import Summary

CONFIG: Final = "solrl.config"
REPORT_MARK: Final = "solrl.report"
REPORT_FOLDER: Final = "report"
"""Where a report lies among the artifacts of its MLflow run."""
DIGEST_LENGTH: Final = 36
"""MLflow takes no longer digest of a dataset."""


@dataclass(frozen=True)
class RunFiles:
    """Where the files of a run are.

    Attributes:
        iteration_folder: from a step to the folder that holds its summary and images.
        adapter: step and folder of the adapter to be logged, in the format that diffusers loads.
        report: the files of the run's report by name; empty where none was made.
    """

    iteration_folder: Callable[[int], Path]
    adapter: tuple[int, Path] | None = None
    report: Mapping[str, bytes] = field(default_factory=dict)


def upload(
    client: Any, run: Any, summaries: Sequence[Summary], recipe: dict[str, JsonValue], files: RunFiles | None
) -> list[str]:
    """Log what MLflow lacks.

    Returns:
        What could not be logged, in words.
    """
    _log_recipe(client, run, recipe)
    _log_pools(client, run, summaries)
    if files is None:
        return []
    _log_report(client, run, files.report)
    notes = _log_images(client, run, summaries, files.iteration_folder)
    if files.adapter is not None:
        step, folder = files.adapter
        _log_folder(client, run.info.run_id, folder, f"policy/iter-{step:04d}/adapter")
    return notes


def image_path(step: int, name: str) -> str:
    """The artifact path of an image: ``samples/iter-0003.png`` for the grid, named behind for others."""
    stem = f"samples/iter-{step:04d}"
    return f"{stem}.png" if name == "grid.png" else f"{stem}-{name}"


def _log_recipe(client: Any, run: Any, recipe: dict[str, JsonValue]) -> None:
    mark = digest(recipe)
    if run.data.tags.get(CONFIG) == mark:
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True), encoding="utf-8")
        client.log_artifact(run.info.run_id, str(path))
    client.set_tag(run.info.run_id, CONFIG, mark)


def _log_report(client: Any, run: Any, report: Mapping[str, bytes]) -> None:
    mark = digest({name: sha256_hex(data) for name, data in report.items()})
    if not report or run.data.tags.get(REPORT_MARK) == mark:
        return
    log_files(client, run.info.run_id, {f"{REPORT_FOLDER}/{name}": data for name, data in report.items()})
    client.set_tag(run.info.run_id, REPORT_MARK, mark)


def log_files(client: Any, run_id: str, files: Mapping[str, bytes]) -> None:
    """Log bytes as files, by artifact path; one that is there already is written over."""
    with tempfile.TemporaryDirectory() as folder:
        for path, data in files.items():
            target = PurePosixPath(path)
            local = Path(folder) / target.name
            local.write_bytes(data)
            client.log_artifact(run_id, str(local), str(target.parent) if target.parent.name else None)
            local.unlink()


def _log_pools(client: Any, run: Any, summaries: Sequence[Summary]) -> None:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    known = {(item.dataset.name, item.dataset.digest) for item in _dataset_inputs(run)}
    inputs = {}
    for name, ref in (item for summary in summaries for item in summary.refs.items()):
        if ref.kind == "pools" and (f"pool/{ref.key}", ref.digest[:DIGEST_LENGTH]) not in known:
            dataset = Dataset(
                name=f"pool/{ref.key}",
                digest=ref.digest[:DIGEST_LENGTH],
                source_type="solrl_store",
                source=json.dumps({"path": ref.path, "digest": ref.digest}),
            )
            inputs[ref.key, ref.digest] = DatasetInput(dataset, [InputTag("mlflow.data.context", name)])
    if inputs:
        client.log_inputs(run.info.run_id, list(inputs.values()))


def _dataset_inputs(run: Any) -> list[Any]:
    return [] if run.inputs is None else list(run.inputs.dataset_inputs)


def _log_images(client: Any, run: Any, summaries: Sequence[Summary], folder: Callable[[int], Path]) -> list[str]:
    notes = []
    sizes = _sizes(client, run.info.run_id, "samples")
    for summary in summaries:
        for name in summary.images:
            source, target = folder(summary.step) / name, image_path(summary.step, name)
            if not source.is_file():
                notes.append(f"MLflow does not show image {name} of step {summary.step}: {source} is not there")
            elif sizes.get(target) != source.stat().st_size:
                _log_as(client, run.info.run_id, source, target)
    return notes


def _log_folder(client: Any, run_id: str, folder: Path, target: str) -> None:
    sizes = _sizes(client, run_id, target)
    for path in sorted(folder.rglob("*")):
        name = f"{target}/{path.relative_to(folder).as_posix()}"
        if path.is_file() and sizes.get(name) != path.stat().st_size:
            client.log_artifact(run_id, str(path), str(PurePosixPath(name).parent))


def _log_as(client: Any, run_id: str, source: Path, target: str) -> None:
    path = PurePosixPath(target)
    with tempfile.TemporaryDirectory() as folder:
        local = Path(folder) / path.name
        shutil.copyfile(source, local)
        client.log_artifact(run_id, str(local), str(path.parent))


def _sizes(client: Any, run_id: str, folder: str) -> dict[str, int]:
    """Sizes in bytes of what is logged below a folder: a file cut short by a kill is known by its size."""
    sizes: dict[str, int] = {}
    for entry in client.list_artifacts(run_id, folder):
        if entry.is_dir:
            sizes |= _sizes(client, run_id, entry.path)
        else:
            sizes[entry.path] = entry.file_size
    return sizes
