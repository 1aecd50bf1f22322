"""A Zarr array in chunks of one row times one block of columns: what its values and its ledger are both kept in."""

from typing import Any, Final, Self

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, ZstdCodec
from zarr.storage import LocalStore

from solrl_tasks.store import atomic
from solrl_tasks.store.errors import DamagedError
from solrl_tasks.store.object_path import Place

HEAD: Final = "zarr.json"
"""The file of an array that is written last in a bucket."""
# What Zarr and its codecs raise for bytes they cannot decode. A refused permission is no damage.
_UNDECODABLE: Final = (ValueError, RuntimeError, TypeError, IndexError, KeyError, EOFError)


class ZarrArray:
    """An array [rows, columns, *item] in chunks [1, width, *item]; with shards many chunks lie in one file."""

    def __init__(self, folder: Place, inner: Any) -> None:
        self.folder = folder
        self._inner = inner

    @classmethod
    def open(cls, store: Any, path: Place, name: str) -> Self:
        """Open the array of a name.

        Args:
            store: what Zarr reads the hierarchy at ``path`` through.

        Raises:
            DamagedError: its metadata cannot be read.
        """
        try:
            array = zarr.open_array(store, path=name, mode="r+", zarr_format=3)
            # Otherwise a chunk that equals the fill value would leave no file.
            return cls(path / name, array.with_config({"write_empty_chunks": True}))
        except (FileNotFoundError, KeyError, ValueError, TypeError, AttributeError) as error:
            raise DamagedError(path / name, f"its metadata cannot be read ({error})") from error

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows, columns and the sides of an item."""
        return tuple(self._inner.shape)

    @property
    def width(self) -> int:
        """Columns of a block."""
        return int(self._inner.chunks[1])

    @property
    def dtype(self) -> str:
        """Type of the values."""
        return str(self._inner.dtype)

    @property
    def fill(self) -> Any:
        """What stands where nothing was written."""
        return self._inner.fill_value

    def read(self, *region: slice | int) -> NDArray[Any] | None:
        """A region; None where any of it cannot be decoded."""
        try:
            return np.asarray(self._inner[region])
        except _UNDECODABLE:
            return None

    def block(self, row: int, index: int) -> NDArray[Any] | None:
        """One block, [width, *item]; None where it cannot be decoded."""
        return self.read(row, self._columns(index))

    def put(self, row: int, index: int, values: NDArray[Any]) -> None:
        """Write one block, of [width, *item] values."""
        target = (row, self._columns(index))
        block = values.reshape(self.width, *self.shape[2:])
        try:
            self._inner[target] = block
        except _UNDECODABLE:
            if not self._inner.shards:
                raise
            # A shard whose index is damaged takes no block. What it held is lost in any case.
            atomic.remove_file(self.folder / self.file_of(row, index))
            self._inner[target] = block

    def grow(self, columns: int) -> None:
        """Make room for at least so many columns."""
        if self.shape[1] < columns:
            self._inner.resize((self.shape[0], columns, *self.shape[2:]))
            atomic.sync_file(self.folder / HEAD)

    def file_of(self, row: int, index: int) -> str:
        """The file, from the array's folder, that holds a block."""
        rows, columns, *items = self._inner.shards or self._inner.chunks
        return f"c/{row // rows}/{index * self.width // columns}{'/0' * len(items)}"

    def is_made_so(self, rows: int, chunks: tuple[int, ...], dtype: str, packed: bool) -> bool:
        """Whether ``make_array`` made it, with such arguments; ``packed`` is with shards of any size."""
        array = self._inner
        outer = list(array.metadata.codecs)
        if packed != (len(outer) == 1 and isinstance(outer[0], ShardingCodec)):
            return False
        codecs = [codec.to_dict()["name"] for codec in (outer[0].codecs if packed else outer)]
        expected = ["bytes", "zstd", "crc32c"] if dtype == "uint8" else ["bytes", "crc32c"]
        fill = np.asarray(array.fill_value)
        return bool(
            array.dtype == np.dtype(dtype)
            and array.shape[0] == rows
            and array.chunks == chunks
            and codecs == expected
            and np.array_equal(fill, np.asarray(_fill(dtype)), equal_nan=dtype == "float32")
        )

    def _columns(self, index: int) -> slice:
        return slice(index * self.width, (index + 1) * self.width)


def make_array(
    folder: LocalStore,
    name: str,
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    dtype: str,
    shards: tuple[int, ...] | None = None,
) -> Any:
    """An empty array as Zarr has it; with ``shards`` many chunks lie in a file.

    Args:
        dtype: ``uint8`` is compressed without loss, anything else stored as it is; ``float32`` is filled with NaN.
    """
    compressors: list[Any] = [ZstdCodec(level=3)] if dtype == "uint8" else []
    return zarr.create_array(
        folder,
        name=name,
        shape=shape,
        chunks=chunks,
        shards=shards,
        dtype=dtype,
        fill_value=_fill(dtype),
        filters=[],
        serializer=BytesCodec(endian=None if dtype == "uint8" else "little"),
        compressors=[*compressors, Crc32cCodec()],
        zarr_format=3,
    )


def group_metadata(attributes: dict[str, Any]) -> dict[str, Any]:
    """The metadata of a Zarr v3 group."""
    return {"zarr_format": 3, "node_type": "group", "attributes": attributes}


def _fill(dtype: str) -> Any:
    return np.float32(np.nan) if dtype == "float32" else np.dtype(dtype).type(0)
