"""Parquet files, read column by column: one that holds pictures is not loaded for the sake of its texts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from solrl_tasks.config.recipe import PromptSource
from solrl_tasks.prompts.errors import PromptsError
from solrl_tasks.prompts.rows import Row

BATCH: Final = 4096


def read_parquet(path: Path, source: PromptSource) -> Iterator[Row]:
    """A row for each row of the file; errors name it by its number, from 1.

    Raises:
        PromptsError: the file cannot be read, lacks a column, or has bytes in a column that would go to the rewards.
    """
    import pyarrow as arrow
    from pyarrow import parquet

    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            columns = _columns(file.schema_arrow, path, source)
            for batch in file.iter_batches(batch_size=BATCH, columns=columns):
                for values in batch.to_pylist():
                    number += 1
                    yield Row(f"{path}, row {number}", values)
    except FileNotFoundError as error:
        raise PromptsError(f"prompts file {path} does not exist (looked in {path.parent.resolve()})") from error
    except (arrow.ArrowException, OSError) as error:
        raise PromptsError(f"prompts file {path} cannot be read as Parquet: {error}") from error


def _columns(schema: Any, path: Path, source: PromptSource) -> list[str]:
    names = list(schema.names)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise PromptsError(f"{path}: there are several columns {', '.join(map(repr, twice))}: rename all but one")
    if source.column not in names:
        raise PromptsError(
            f"{path}: there is no column {source.column!r}, only {', '.join(map(repr, names))}: "
            "name the one that holds the texts as `column`"
        )
    if source.metadata is not None:
        return [name for name in names if name in (source.column, *source.metadata)]
    for field in schema:
        if "binary" in str(field.type):
            raise PromptsError(
                f"{path}: column {field.name!r} holds bytes ({field.type}), which cannot go to the rewards: name the "
                "columns that they need in `metadata`, or [] for none"
            )
    return names
