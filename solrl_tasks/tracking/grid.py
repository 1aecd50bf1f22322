"""One picture of an iteration: the best and the worst seeds of some prompts, proxy above regenerated."""

import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

Pixels = npt.NDArray[np.uint8]
Colour = tuple[int, int, int]

SIDE: Final = 128
"""Side of an image in the grid, in pixels."""
GAP: Final = 8
BLOCK_GAP: Final = 28
MARGIN: Final = 28
CAPTION: Final = 24
LABEL: Final = 132
TITLE: Final = 52
HEADING: Final = 64
ROW_GAP: Final = 26
LINE: Final = 20

PAPER: Final[Colour] = (255, 255, 255)
INK: Final[Colour] = (32, 36, 44)
SOFT: Final[Colour] = (112, 118, 130)
RULE: Final[Colour] = (226, 229, 235)
BEST: Final[Colour] = (20, 122, 86)
WORST: Final[Colour] = (184, 62, 46)


@dataclass(frozen=True)
class Cell:
    """One seed: what exploration showed and what regeneration made of it.

    Attributes:
        proxy: uint8 [H, W, 3], or None where the image was not kept.
        regenerated: uint8 [H, W, 3], or None where it could not be made.
        proxy_reward: reward of the explored image.
        reward: reward of the regenerated one; NaN where it is invalid.
    """

    proxy: Pixels | None
    regenerated: Pixels | None
    proxy_reward: float
    reward: float


@dataclass(frozen=True)
class GridRow:
    """One prompt with its best and its worst seeds, both from the end inwards: best first, worst first."""

    prompt: str
    best: tuple[Cell, ...]
    worst: tuple[Cell, ...]


@dataclass(frozen=True)
class GridText:
    """What stands above the grid and at its left, such as ``NVFP4 emulated`` and ``6 steps``.

    ``headings`` stand above the seeds from the best and from the worst end.
    """

    title: str
    subtitle: str = ""
    proxy: tuple[str, str] = ("Explored", "")
    regenerated: tuple[str, str] = ("Regenerated", "")
    headings: tuple[str, str] = ("best seeds as explored", "worst seeds as explored")


def make_grid(rows: Sequence[GridRow], text: GridText) -> Image.Image:
    """The grid as an RGB image; the same input makes the same pixels.

    Raises:
        ValueError: there are no rows, or a row has no seeds.
    """
    if not rows or any(not row.best and not row.worst for row in rows):
        raise ValueError("a grid needs at least one prompt, and every prompt at least one seed")
    best, worst = max(len(row.best) for row in rows), max(len(row.worst) for row in rows)
    width = MARGIN * 2 + LABEL + _span(best) + (BLOCK_GAP if best and worst else 0) + _span(worst)
    height = MARGIN + TITLE + len(rows) * _row_height() + (len(rows) - 1) * ROW_GAP + MARGIN
    canvas = Image.new("RGB", (width, height), PAPER)
    draw = ImageDraw.Draw(canvas)
    draw.text((MARGIN, MARGIN - 6), text.title, INK, _font(24))
    draw.text((width - MARGIN, MARGIN + 2), text.subtitle, SOFT, _font(15), anchor="ra")
    top = MARGIN + TITLE
    for row in rows:
        _draw_row(canvas, draw, row, text, top, best)
        top += _row_height() + ROW_GAP
    return canvas


def grid_bytes(grid: Image.Image) -> bytes:
    """The grid as PNG."""
    png = io.BytesIO()
    grid.save(png, "PNG", optimize=True)
    return png.getvalue()


def _row_height() -> int:
    return HEADING + 2 * (SIDE + CAPTION) + GAP


def _span(count: int) -> int:
    return count * SIDE + max(count - 1, 0) * GAP


def _draw_row(
    canvas: Image.Image, draw: ImageDraw.ImageDraw, row: GridRow, text: GridText, top: int, best: int
) -> None:
    left = MARGIN + LABEL
    draw.line((MARGIN, top, canvas.width - MARGIN, top), RULE, 1)
    draw.text((MARGIN, top + 9), _fit(draw, row.prompt, canvas.width - 2 * MARGIN), INK, _font(18))
    proxy_top = top + HEADING
    regenerated_top = proxy_top + SIDE + CAPTION + GAP
    _draw_label(draw, text.proxy, proxy_top)
    _draw_label(draw, text.regenerated, regenerated_top)
    worst_left = left + (_span(best) + BLOCK_GAP if best else 0)
    for cells, start, name, colour in (
        (row.best, left, text.headings[0], BEST),
        (row.worst, worst_left, text.headings[1], WORST),
    ):
        if not cells:
            continue
        draw.text((start, top + HEADING - 24), name, colour, _font(14))
        draw.line((start, proxy_top - 5, start + _span(len(cells)) - 1, proxy_top - 5), colour, 2)
        for position, cell in enumerate(cells):
            x = start + position * (SIDE + GAP)
            _draw_cell(canvas, draw, cell.proxy, cell.proxy_reward, (x, proxy_top))
            _draw_cell(canvas, draw, cell.regenerated, cell.reward, (x, regenerated_top))


def _draw_label(draw: ImageDraw.ImageDraw, label: tuple[str, str], top: int) -> None:
    lines = textwrap.wrap(label[0], 13) or [""]
    height = LINE * (len(lines) + bool(label[1]))
    y = top + (SIDE - height) // 2
    for line in lines:
        draw.text((MARGIN, y), line, INK, _font(16))
        y += LINE
    draw.text((MARGIN, y), label[1], SOFT, _font(14))


def _draw_cell(
    canvas: Image.Image,
    draw: ImageDraw.ImageDraw,
    pixels: Pixels | None,
    reward: float,
    at: tuple[int, int],
) -> None:
    x, y = at
    if pixels is None:
        draw.rectangle((x, y, x + SIDE - 1, y + SIDE - 1), (245, 246, 248))
        draw.text((x + SIDE / 2, y + SIDE / 2), "no image", SOFT, _font(14), anchor="mm")
    else:
        canvas.paste(_scaled(pixels), at)
    draw.rectangle((x - 1, y - 1, x + SIDE, y + SIDE), outline=RULE)
    caption, ink = (f"{reward:.3f}", INK) if np.isfinite(reward) else ("invalid", WORST)
    draw.text((x + SIDE / 2, y + SIDE + 4), caption, ink, _font(15), anchor="ma")


def _scaled(pixels: Pixels) -> Image.Image:
    image = Image.fromarray(np.ascontiguousarray(pixels))
    whole = SIDE % image.width == 0 and SIDE % image.height == 0
    return image.resize((SIDE, SIDE), Image.Resampling.NEAREST if whole else Image.Resampling.LANCZOS)


def _fit(draw: ImageDraw.ImageDraw, prompt: str, width: int) -> str:
    prompt = " ".join(prompt.split())
    if draw.textlength(prompt, _font(18)) <= width:
        return prompt
    while prompt and draw.textlength(prompt + "…", _font(18)) > width:
        prompt = prompt[:-1]
    return prompt.rstrip() + "…"


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
