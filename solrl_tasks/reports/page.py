"""What a page says, without how it looks: sections of text, tables, figures, pictures, settings and commands.

All text is text: no field is taken for HTML, and only ``Text.markdown`` and ``Page.summary`` for markdown. What comes
from outside, such as a prompt, goes into markdown through ``plain``.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

PNG_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
Kind = Literal["measured", "modelled"]
_MARKS: Final = re.compile(r"([\\`*_\[\]<>#|~&])|^(?=[-+=]\s|[-=]{2}|[-+=]$)|(?<=^\d)(?=[.)]\s)")


@dataclass(frozen=True)
class Provenance:
    """Where the numbers of a figure or a table come from; a line below it says so.

    Attributes:
        hardware: such as ``NVIDIA H200``; empty where it is not known, which the line then says of what was measured.
        engine: name of the precision; empty where none is concerned.
        real: whether the engine computes in hardware what its name says; None where no engine is concerned.
        kind: measured, or computed from a model of cost or chance.
        note: anything else to know, such as the number of seeds.
    """

    hardware: str
    engine: str
    real: bool | None
    kind: Kind
    note: str = ""

    def __post_init__(self) -> None:
        if self.kind not in ("measured", "modelled"):
            raise ValueError(f"provenance: kind is measured or modelled, found {self.kind!r}")
        if bool(self.engine) != (self.real is not None):
            raise ValueError(
                f"provenance: engine {self.engine!r} with real={self.real}: an engine is real or emulated, "
                "and where there is none (engine='') real is None"
            )

    @property
    def line(self) -> str:
        """The line below a figure."""
        where = f" on {self.hardware}" if self.hardware else ", hardware not recorded"
        parts = [self.kind if self.kind == "modelled" and not self.hardware else f"{self.kind}{where}"]
        if self.engine:
            parts.append(f"engine {self.engine} ({'real' if self.real else 'emulated'})")
        if self.note:
            parts.append(self.note)
        line = "; ".join(parts)
        return line[0].upper() + line[1:]


@dataclass(frozen=True)
class Text:
    """Paragraphs and lists in markdown; pictures in it are not shown, and HTML in it is text."""

    markdown: str


@dataclass(frozen=True)
class Table:
    """Cells of text; a column whose cells are all numbers stands to the right.

    Raises:
        ValueError: no columns, or a row that is not as wide as they are.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    provenance: Provenance | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if not self.columns:
            raise ValueError(f"table {self.caption!r} has no columns")
        for number, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ValueError(
                    f"table {self.caption!r}: row {number} has {len(row)} cells, and there are "
                    f"{len(self.columns)} columns ({', '.join(self.columns)})"
                )
            if not all(isinstance(cell, str) for cell in row):
                raise ValueError(f"table {self.caption!r}: row {number} has a cell that is no text: {row!r}")


@dataclass(frozen=True)
class Figure:
    """A plot. ``alt`` says in words what it shows, for those who do not see it.

    Raises:
        ValueError: ``png`` is no PNG, or ``alt`` is empty.
    """

    caption: str
    png: bytes = field(repr=False)
    alt: str
    provenance: Provenance | None = None

    def __post_init__(self) -> None:
        if not self.png.startswith(PNG_SIGNATURE):
            raise ValueError(f"figure {self.caption!r}: its bytes are no PNG, they begin with {self.png[:8]!r}")
        if not self.alt.strip():
            raise ValueError(f"figure {self.caption!r} needs words for those who do not see it (alt)")


@dataclass(frozen=True)
class Pictures:
    """Images in rows and columns, such as prompts by seeds. They are shown as large as they are: give small ones.

    Attributes:
        images: uint8 [R, C, H, W, 3].
        row_labels: R of them, such as prompts.
        column_labels: C of them.
        captions: a line under every image, R rows of C, such as rewards; none where it is empty.

    Raises:
        ValueError: shapes do not fit.
    """

    caption: str
    images: NDArray[np.uint8] = field(repr=False)
    row_labels: tuple[str, ...]
    column_labels: tuple[str, ...]
    captions: tuple[tuple[str, ...], ...] = ()
    provenance: Provenance | None = None

    def __post_init__(self) -> None:
        images, name = self.images, f"pictures {self.caption!r}"
        if images.dtype != np.uint8 or images.ndim != 5 or images.shape[4] != 3 or images.size == 0:
            raise ValueError(f"{name}: uint8 [rows, columns, H, W, 3] is needed, found {images.dtype} {images.shape}")
        rows, columns = images.shape[:2]
        if (len(self.row_labels), len(self.column_labels)) != (rows, columns):
            raise ValueError(
                f"{name}: {rows} rows of {columns} images have {len(self.row_labels)} row labels "
                f"and {len(self.column_labels)} column labels"
            )
        if self.captions and (len(self.captions) != rows or any(len(row) != columns for row in self.captions)):
            raise ValueError(f"{name}: captions need {rows} rows of {columns}")


@dataclass(frozen=True)
class Settings:
    """A recipe or other tree of plain values, shown as dotted fields and folded away at first.

    Raises:
        ValueError: a value is no JSON.
    """

    values: Mapping[str, Any]

    def __post_init__(self) -> None:
        try:
            json.dumps(dict(self.values), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"settings hold plain JSON values: {error}") from error


@dataclass(frozen=True)
class Commands:
    """Lines for a shell, in order."""

    lines: tuple[str, ...]


Block = Text | Table | Figure | Pictures | Settings | Commands


@dataclass(frozen=True)
class Section:
    """A part of a page under a title of its own."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Page:
    """A whole page.

    Attributes:
        title: one line.
        summary: the answer first, in a few sentences of markdown.
    """

    title: str
    summary: str
    sections: tuple[Section, ...]

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks of all sections, in order."""
        return tuple(block for section in self.sections for block in section.blocks)


def plain(text: str) -> str:
    """Text on one line that markdown shows as it is: prompts and other words from outside."""
    return _MARKS.sub(lambda found: "\\" + found.group(), " ".join(text.split()))
