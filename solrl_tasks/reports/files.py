"""A page as files for a tracker: the page itself, its tables as CSV, its figures as PNG."""

import csv
import io
import re
from typing import Final

from solrl_tasks.reports import images
from solrl_tasks.reports.page import Block, Figure, Page, Pictures, Table
from solrl_tasks.reports.stored import draw

_NO_NAME: Final = re.compile(r"[^a-z0-9]+")
NAME_LENGTH: Final = 60


def page_files(page: Page) -> dict[str, bytes]:
    """By artifact path: ``report/``, ``tables/02-costs.csv``, ``figures/03-curve.png``; numbers count blocks."""
    files = {f"report/{name}": data for name, data in draw(page).items()}
    for number, block in enumerate(page.blocks, 1):
        if isinstance(block, Table):
            files[f"tables/{number:02d}-{_slug(block)}.csv"] = _csv(block)
        elif isinstance(block, Figure):
            files[f"figures/{number:02d}-{_slug(block)}.png"] = block.png
        elif isinstance(block, Pictures):
            files[f"figures/{number:02d}-{_slug(block)}.png"] = images.encode(images.sheet(block.images))
    return files


def _slug(block: Block) -> str:
    caption = getattr(block, "caption", "")
    return _NO_NAME.sub("-", caption.lower()).strip("-")[:NAME_LENGTH].strip("-") or "block"


def _csv(table: Table) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([table.columns, *table.rows])
    return text.getvalue().encode("utf-8")
