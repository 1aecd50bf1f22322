"""A page as one HTML file that needs nothing else: no network, no script, no other file."""

import base64
from functools import cache
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from solrl_tasks.reports import images
from solrl_tasks.reports.page import Block, Commands, Figure, Page, Pictures, Section, Settings, Table, Text
from solrl_tasks.reports.text import dotted, markdown_to_html, numeric_columns

PLOT: Final = (480, 680)
GRID: Final = (760, 4096)
"""Least and most pixels in width: on a narrow screen a figure scrolls within itself rather than become illegible."""
PLOT_WIDTH: Final = 1000
"""What is wider is a grid of images."""

_KINDS: Final[dict[type[Block], str]] = {
    Text: "text",
    Table: "table",
    Figure: "figure",
    Pictures: "pictures",
    Settings: "settings",
    Commands: "commands",
}


def render_html(page: Page) -> str:
    """The page as HTML 5. The same page makes the same text."""
    return _template().render(page=page, summary=_markdown(page.summary), sections=_sections(page))


@cache
def _template() -> Template:
    loader = PackageLoader("solrl_tasks.reports")
    # Prompts and rewards come from outside: whatever is not marked as HTML is escaped.
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("page.html")


def _sections(page: Page) -> list[dict[str, Any]]:
    counted = iter(range(1, len(page.blocks) + 1))
    return [
        {"id": f"section-{number}", "title": section.title, "blocks": _blocks(section, counted)}
        for number, section in enumerate(page.sections, 1)
    ]


def _blocks(section: Section, counted: Any) -> list[dict[str, Any]]:
    return [
        {"kind": _KINDS[type(block)], "id": f"block-{next(counted)}", "block": block, **_drawn(block)}
        for block in section.blocks
    ]


def _drawn(block: Block) -> dict[str, Any]:
    if isinstance(block, Text):
        return {"html": _markdown(block.markdown)}
    if isinstance(block, Table):
        return {"numeric": numeric_columns(block.rows) if block.rows else (False,) * len(block.columns)}
    if isinstance(block, Figure):
        size = images.size(block.png)
        least, most = PLOT if size[0] <= PLOT_WIDTH else GRID
        return {"source": _data_uri(block.png), "size": size, "least": min(least, size[0]), "most": min(most, size[0])}
    if isinstance(block, Pictures):
        return _drawn_pictures(block)
    if isinstance(block, Settings):
        return {"fields": list(dotted(block.values))}
    return {}


def _drawn_pictures(block: Pictures) -> dict[str, Any]:
    rows, columns, height, width = block.images.shape[:4]
    cells = [
        [
            {
                "source": _data_uri(images.encode(block.images[row, column])),
                "caption": block.captions[row][column] if block.captions else "",
            }
            for column in range(columns)
        ]
        for row in range(rows)
    ]
    return {"rows": list(zip(block.row_labels, cells, strict=True)), "size": (width, height)}


def _markdown(text: str) -> Markup:
    return Markup(markdown_to_html(text))


def _data_uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"
