"""A place in a bucket that is read as a ``Path`` is."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import total_ordering
from pathlib import Path, PurePosixPath
from typing import Any

from solrl_tasks.store.bucket import Bucket, bucket_at
from solrl_tasks.store.bucket_objects import Entry


@total_ordering
class ObjectPath:
    """An object, or all objects below it as a folder; the part of ``Path`` that the store uses.

    Folders are not made and need no making: one is there while there is an object below it. Objects are whole or not
    there, so a write needs no temporary name.
    """

    __slots__ = ("_place", "bucket")

    def __init__(self, bucket: Bucket, place: PurePosixPath | None = None) -> None:
        self.bucket = bucket
        self._place = place or PurePosixPath()

    @classmethod
    def of(cls, url: str) -> "ObjectPath":
        """The root of a URL ``s3://bucket/prefix``. Raises StoreError if it is no such URL."""
        return cls(bucket_at(url))

    @property
    def key(self) -> str:
        """The key below the prefix of the bucket; empty for the root."""
        text = self._place.as_posix()
        return "" if text == "." else text

    @property
    def name(self) -> str:
        """The last part."""
        return self._place.name

    @property
    def stem(self) -> str:
        """The last part without its suffix."""
        return self._place.stem

    @property
    def suffix(self) -> str:
        """What follows the last dot of the name, with the dot."""
        return self._place.suffix

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts below the root."""
        return self._place.parts

    @property
    def parent(self) -> "ObjectPath":
        """The folder above; the root's is itself."""
        return ObjectPath(self.bucket, self._place.parent)

    def __truediv__(self, part: str) -> "ObjectPath":
        return ObjectPath(self.bucket, self._place / part)

    def with_name(self, name: str) -> "ObjectPath":
        """Another name in the same folder."""
        return ObjectPath(self.bucket, self._place.with_name(name))

    def relative_to(self, other: "ObjectPath") -> PurePosixPath:
        """The path below another. Raises ValueError if it is not below."""
        return self._place.relative_to(other._place)

    def absolute(self) -> "ObjectPath":
        """Itself."""
        return self

    def exists(self) -> bool:
        """Whether there is an object, or any below."""
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        """Whether there is an object."""
        return bool(self.key) and self.bucket.head(self.key) is not None

    def is_dir(self) -> bool:
        """Whether there is an object below."""
        folders, entries = self.bucket.folder(self.key)
        return bool(folders or entries)

    def iterdir(self) -> Iterator["ObjectPath"]:
        """What lies directly below, folders first."""
        folders, entries = self.bucket.folder(self.key)
        for key in [*folders, *(entry.key for entry in entries)]:
            yield ObjectPath(self.bucket, PurePosixPath(key))

    def glob(self, pattern: str) -> Iterator["ObjectPath"]:
        """What lies below and matches, part by part; a single part asks for one level only."""
        wanted = PurePosixPath(pattern).parts
        if len(wanted) == 1:
            yield from (path for path in self.iterdir() if fnmatchcase(path.name, pattern))
            return
        for entry in self.entries():
            found = PurePosixPath(entry.key).relative_to(self._place).parts
            if len(found) == len(wanted) and all(map(fnmatchcase, found, wanted)):
                yield ObjectPath(self.bucket, PurePosixPath(entry.key))

    def rglob(self, pattern: str) -> Iterator["ObjectPath"]:
        """All objects below, at any depth, whose name matches."""
        for entry in self.entries():
            path = PurePosixPath(entry.key)
            if fnmatchcase(path.name, pattern):
                yield ObjectPath(self.bucket, path)

    def entries(self) -> list[Entry]:
        """All objects below, at any depth, by key."""
        return self.bucket.below(self.key)

    def read_below(self, name: str) -> list[tuple["ObjectPath", bytes]]:
        """All objects of one name below, at any depth, with their bytes; small ones known before are not fetched."""
        wanted = [entry for entry in self.entries() if PurePosixPath(entry.key).name == name]
        found = self.bucket.get_many(wanted)
        return [(ObjectPath(self.bucket, PurePosixPath(key)), found[key]) for key in sorted(found)]

    def read_bytes(self) -> bytes:
        """The object's bytes. Raises FileNotFoundError if there is none."""
        return self.bucket.get(self.key).data

    def read_text(self, encoding: str = "utf-8") -> str:
        """The object's text. Raises as ``read_bytes``."""
        return self.read_bytes().decode(encoding)

    def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
        """Nothing: folders need no making."""

    def unlink(self) -> None:
        """Remove the object; one that is not there is no fault."""
        self.bucket.delete([self.key])

    def __str__(self) -> str:
        return f"{self.bucket.url}/{self.key}".rstrip("/")

    def __repr__(self) -> str:
        return f"ObjectPath({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectPath) and str(self) == str(other)

    def __lt__(self, other: "ObjectPath") -> bool:
        return str(self) < str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectPath, (self.bucket, self._place)


Place = Path | ObjectPath
"""Where something of a store is: on this machine, or in a bucket."""
