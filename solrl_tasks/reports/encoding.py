"""A page as JSON and pictures, and back: what is kept of a report."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

from solrl_tasks.reports import images
from solrl_tasks.reports.page import (
    Block,
    Commands,
    Figure,
    Page,
    Pictures,
    Provenance,
    Section,
    Settings,
    Table,
    Text,
)

ReadPicture = Callable[[str], bytes]


def encode_page(page: Page) -> tuple[dict[str, Any], dict[str, bytes]]:
    """A page as a JSON tree, and the pictures that it names, PNG by file name."""
    pictures: dict[str, bytes] = {}
    sections = [
        {"title": section.title, "blocks": [_encode(block, pictures) for block in section.blocks]}
        for section in page.sections
    ]
    return {"title": page.title, "summary": page.summary, "sections": sections}, pictures


def decode_page(tree: Mapping[str, Any], read: ReadPicture) -> Page:
    """What ``encode_page`` took apart.

    Args:
        read: from a picture's name to its bytes.

    Raises:
        ValueError, TypeError, KeyError, OSError: the tree or a picture is not what ``encode_page`` made.
    """
    sections = [
        Section(section["title"], tuple(_decode(block, read) for block in section["blocks"]))
        for section in tree["sections"]
    ]
    return Page(tree["title"], tree["summary"], tuple(sections))


def _encode(block: Block, pictures: dict[str, bytes]) -> dict[str, Any]:
    if isinstance(block, Text):
        return {"kind": "text", "markdown": block.markdown}
    if isinstance(block, Settings):
        # As text: the files of the store sort their fields, and a recipe has an order of its own.
        return {"kind": "settings", "values": json.dumps(dict(block.values))}
    if isinstance(block, Commands):
        return {"kind": "commands", "lines": list(block.lines)}
    where = {} if block.provenance is None else {"provenance": asdict(block.provenance)}
    if isinstance(block, Table):
        rows = [list(row) for row in block.rows]
        table = {"caption": block.caption, "columns": list(block.columns), "rows": rows, "note": block.note}
        return {"kind": "table", **table, **where}
    if isinstance(block, Figure):
        picture = _keep(pictures, block.png)
        return {"kind": "figure", "caption": block.caption, "png": picture, "alt": block.alt, **where}
    labels = {"row_labels": list(block.row_labels), "column_labels": list(block.column_labels)}
    captions = [list(row) for row in block.captions]
    picture = _keep(pictures, images.encode(images.sheet(block.images)))
    return {"kind": "pictures", "caption": block.caption, "png": picture, **labels, "captions": captions, **where}


def _decode(tree: Mapping[str, Any], read: ReadPicture) -> Block:
    try:
        decode = _DECODERS[tree["kind"]]
    except KeyError:
        known = ", ".join(_DECODERS)
        raise ValueError(f"a block of a page is one of {known}; found {tree.get('kind')!r}") from None
    return decode(tree, read)


def _decode_table(tree: Mapping[str, Any], _: ReadPicture) -> Table:
    rows = tuple(tuple(row) for row in tree["rows"])
    return Table(tree["caption"], tuple(tree["columns"]), rows, _provenance(tree), tree["note"])


def _decode_figure(tree: Mapping[str, Any], read: ReadPicture) -> Figure:
    return Figure(tree["caption"], read(tree["png"]), tree["alt"], _provenance(tree))


def _decode_pictures(tree: Mapping[str, Any], read: ReadPicture) -> Pictures:
    rows, columns = tuple(tree["row_labels"]), tuple(tree["column_labels"])
    pixels = images.cut(images.decode(read(tree["png"])), len(rows), len(columns))
    captions = tuple(tuple(row) for row in tree["captions"])
    return Pictures(tree["caption"], pixels, rows, columns, captions, _provenance(tree))


def _provenance(tree: Mapping[str, Any]) -> Provenance | None:
    return Provenance(**tree["provenance"]) if "provenance" in tree else None


def _keep(pictures: dict[str, bytes], png: bytes) -> str:
    name = images.name(png)
    pictures[name] = png
    return name


_DECODERS: Final[dict[str, Callable[[Mapping[str, Any], ReadPicture], Block]]] = {
    "text": lambda tree, _: Text(tree["markdown"]),
    "settings": lambda tree, _: Settings(json.loads(tree["values"])),
    "commands": lambda tree, _: Commands(tuple(tree["lines"])),
    "table": _decode_table,
    "figure": _decode_figure,
    "pictures": _decode_pictures,
}
