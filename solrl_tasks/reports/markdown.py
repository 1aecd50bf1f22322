"""A page as markdown with its pictures beside it."""

import re
from collections.abc import Callable, Sequence
from typing import Final

from solrl_tasks.reports import images
from solrl_tasks.reports.page import (
    Block,
    Commands,
    Figure,
    Page,
    Pictures,
    Provenance,
    Settings,
    Table,
    Text,
    plain,
)
from solrl_tasks.reports.text import dotted, numeric_columns

FILE: Final = "report.md"
Keep = Callable[[bytes], str]


def render_markdown(page: Page) -> dict[str, bytes]:
    """``report.md`` and the pictures that it shows, by file name. The same page makes the same bytes."""
    files: dict[str, bytes] = {}

    def keep(png: bytes) -> str:
        name = images.name(png)
        files[name] = png
        return name

    return {FILE: _text(page, keep).encode("utf-8"), **files}


def render_linked(page: Page, address: Callable[[str], str]) -> str:
    """The page as markdown whose pictures lie elsewhere.

    Args:
        address: from a picture's file name to where it can be loaded from; an empty text leaves the picture out.
    """
    return _text(page, lambda png: address(images.name(png)))


def _text(page: Page, keep: Keep) -> str:
    parts = [f"# {plain(page.title)}", page.summary.strip()]
    for section in page.sections:
        parts.append(f"## {plain(section.title)}")
        for block in section.blocks:
            parts += _block(block, keep)
    return "\n\n".join(part for part in parts if part) + "\n"


def _block(block: Block, keep: Keep) -> list[str]:
    if isinstance(block, Text):
        return [block.markdown.strip()]
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Figure):
        return [_image(block.alt, keep(block.png)), f"*{plain(block.caption)}*", *_said(block)]
    if isinstance(block, Pictures):
        return _pictures(block, keep)
    if isinstance(block, Settings):
        rows = [(plain(field), plain(value)) for field, value in dotted(block.values)]
        return [_lines(("field", "value"), rows, (False, False))]
    return [_commands(block)]


def _image(alt: str, address: str) -> str:
    return f"![{plain(alt)}]({address})" if address else ""


def _table(block: Table) -> list[str]:
    numeric = numeric_columns(block.rows) if block.rows else (False,) * len(block.columns)
    rows = [tuple(plain(cell) for cell in row) for row in block.rows]
    columns = tuple(plain(column) for column in block.columns)
    return [f"**{plain(block.caption)}**", _lines(columns, rows, numeric), plain(block.note), *_said(block)]


def _pictures(block: Pictures, keep: Keep) -> list[str]:
    alt = f"rows: {'; '.join(block.row_labels)}; columns: {'; '.join(block.column_labels)}"
    image = _image(alt, keep(images.encode(images.sheet(block.images))))
    captions = block.captions or [("",) * len(block.column_labels)] * len(block.row_labels)
    rows = [
        (plain(label), *(plain(cell) for cell in row)) for label, row in zip(block.row_labels, captions, strict=True)
    ]
    head = ("", *(plain(label) for label in block.column_labels))
    return [f"**{plain(block.caption)}**", image, _lines(head, rows, (False,) * len(head)), *_said(block)]


def _commands(block: Commands) -> str:
    ticks = max((len(run) for line in block.lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, ticks + 1)
    return "\n".join([f"{fence}bash", *block.lines, fence])


def _said(block: Table | Figure | Pictures) -> list[str]:
    where: Provenance | None = block.provenance
    return [] if where is None else [f"*{plain(where.line)}*"]


def _lines(head: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool]) -> str:
    rule = ["---:" if number else "---" for number in numeric]
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, rule, *rows])
