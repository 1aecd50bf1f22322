"""Pictures as PNG: many as one sheet, and names that say what is in them."""

import io
import struct
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from solrl_tasks.reports.page import PNG_SIGNATURE
from solrl_tasks.store.keys import sha256_hex

NAME_LENGTH: Final = 24
Pixels = NDArray[np.uint8]


def encode(image: Pixels) -> bytes:
    """An image, uint8 [H, W, 3], as PNG; the same pixels make the same bytes."""
    png = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image)).save(png, "PNG")
    return png.getvalue()


def decode(png: bytes) -> Pixels:
    """The pixels of a PNG, uint8 [H, W, 3].

    Raises:
        OSError: it is no picture, or a torn one.
    """
    with Image.open(io.BytesIO(png)) as image:
        return np.asarray(image.convert("RGB"))


def sheet(images: Pixels) -> Pixels:
    """Images [R, C, H, W, 3] beside and below each other, without gaps, [R * H, C * W, 3]."""
    rows, columns, height, width, colours = images.shape
    return np.asarray(images.transpose(0, 2, 1, 3, 4).reshape(rows * height, columns * width, colours))


def cut(pixels: Pixels, rows: int, columns: int) -> Pixels:
    """What ``sheet`` joined, [R, C, H, W, 3].

    Raises:
        ValueError: its sides are not whole multiples of rows and columns.
    """
    height, width = pixels.shape[0], pixels.shape[1]
    if height % rows or width % columns:
        raise ValueError(f"a sheet of {height} x {width} pixels has no {rows} rows of {columns} equal images")
    parts = pixels.reshape(rows, height // rows, columns, width // columns, 3)
    return np.asarray(parts.transpose(0, 2, 1, 3, 4))


def size(png: bytes) -> tuple[int, int]:
    """Width and height of a PNG in pixels, from its header.

    Raises:
        ValueError: it has no such header.
    """
    if len(png) < 24 or not png.startswith(PNG_SIGNATURE):
        raise ValueError("a PNG has 24 bytes at least, and its header first")
    width, height = struct.unpack(">II", png[16:24])
    return int(width), int(height)


def name(png: bytes) -> str:
    """A file name that follows from the content."""
    return f"{sha256_hex(png)[:NAME_LENGTH]}.png"
