"""Text of a page on its way to HTML and to markdown."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

import yaml
from markdown_it import MarkdownIt

_NUMBER: Final = r"[-+\u2212]?(\d[\d,]*(\.\d*)?|\.\d+)(e[-+]?\d+)?\s*(%|x|\u00d7|s|h)?"
_SEVERAL: Final = rf"{_NUMBER}(\s*(±|to|of|,)\s*{_NUMBER})*"
_NUMBERS: Final = re.compile(rf"(|-|{_SEVERAL}(\s*[\[(]{_SEVERAL}[\])])*)", re.IGNORECASE)
"""A number or several, with signs, units, errors and intervals as tables have them."""


def markdown_to_html(markdown: str) -> str:
    """Markdown as HTML that loads nothing and runs nothing.

    HTML in it becomes text, pictures become links, links lead nowhere but to addresses of the web, and headings are
    those of a third level, which is theirs on a page.
    """
    return str(_parser().render(markdown))


_OPEN_TABLE: Final = '<div class="scroll" tabindex="0" role="region" aria-label="table"><table>\n'


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    parser.add_render_rule("heading_open", lambda *_: "<h3>")
    parser.add_render_rule("heading_close", lambda *_: "</h3>\n")
    parser.add_render_rule("table_open", lambda *_: _OPEN_TABLE)
    parser.add_render_rule("table_close", lambda *_: "</table></div>\n")
    return parser


def numeric_columns(rows: Sequence[Sequence[str]]) -> tuple[bool, ...]:
    """For every column, whether its cells are numbers (with errors, units or ranges) or empty, and some are."""
    return tuple(
        any(re.search(r"\d", cell) for cell in cells) and all(_NUMBERS.fullmatch(cell.strip()) for cell in cells)
        for cells in zip(*rows, strict=True)
    )


def dotted(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The leaves of a tree as dotted fields and YAML values; lists of trees count from 0."""
    for field, value in values.items():
        path = f"{prefix}{field}"
        if isinstance(value, Mapping) and value:
            yield from dotted(value, f"{path}.")
        elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
            yield from dotted({str(place): item for place, item in enumerate(value)}, f"{path}.")
        else:
            yield path, _shown(value)


def _shown(value: Any) -> str:
    if isinstance(value, str) and value:
        return value
    return yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6).removesuffix("...\n").strip()
