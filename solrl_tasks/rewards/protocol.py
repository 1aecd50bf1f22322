"""What a remote scorer is asked and what it answers: JSON, with images as PNG in base64. Version 1.

``docs/rewards.md`` describes it for those who write a server of their own.
"""

import base64
import binascii
import io
import math
from typing import Annotated, Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from pydantic import BaseModel, ConfigDict, Field, JsonValue, StrictFloat, StrictInt, model_validator

from solrl_tasks.config.base import Frozen

PROTOCOL: Final = 1
IDENTITY_PATH: Final = "/v1/reward"
SCORE_PATH: Final = "/v1/score"
HEALTH_PATH: Final = "/health"
MOST_PIXELS: Final = 4096 * 4096
"""Of one image."""


class ScoreRequest(Frozen):
    """Images with their prompts and metadata. ``version`` is what the client expects; None takes any."""

    protocol: Literal[1] = PROTOCOL
    reward: str
    version: str | None = None
    images: Annotated[tuple[str, ...], Field(min_length=1)]
    prompts: tuple[str, ...]
    metadata: tuple[dict[str, JsonValue], ...]

    @model_validator(mode="after")
    def _lengths_agree(self) -> Self:
        lengths = (len(self.images), len(self.prompts), len(self.metadata))
        if len(set(lengths)) > 1:
            raise ValueError(f"images, prompts and metadata must be equally many, found {lengths}")
        return self


class _Answer(BaseModel):
    # A server may say more than it must.
    model_config = ConfigDict(frozen=True, extra="ignore")

    protocol: Literal[1]
    reward: str
    version: Annotated[str, Field(min_length=1)]


class IdentityAnswer(_Answer):
    """Which reward answers, and its range; None where it has no bound."""

    range: tuple[float | None, float | None] = (None, None)


class ScoreAnswer(_Answer):
    """One score an image; None, or what is not finite, where there is none, and why by the image's index."""

    scores: tuple[StrictFloat | StrictInt | None, ...]
    failures: dict[int, str] = {}

    def values(self) -> list[float]:
        """The scores as numbers, NaN where there is none."""
        return [_number(score) for score in self.scores]


def _number(score: float | int | None) -> float:
    try:
        return math.nan if score is None else float(score)
    except OverflowError:
        return math.inf


def encode_image(image: NDArray[np.uint8]) -> str:
    """An image uint8 ``[H, W, 3]`` as PNG in base64."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, format="PNG", compress_level=1)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def decode_image(text: str) -> NDArray[np.uint8]:
    """The image uint8 ``[H, W, 3]`` of a PNG in base64.

    Raises:
        ValueError: it is none, or has more pixels than allowed.
    """
    try:
        with Image.open(io.BytesIO(base64.b64decode(text, validate=True)), formats=("PNG",)) as picture:
            if picture.width * picture.height > MOST_PIXELS:
                raise ValueError(f"it has {picture.width} x {picture.height} pixels, at most {MOST_PIXELS} are allowed")
            return np.asarray(picture.convert("RGB"))
    except (binascii.Error, UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError) as error:
        raise ValueError(f"it is no PNG in base64: {error}") from error


def bound(value: float) -> float | None:
    """A bound of a range as JSON can say it."""
    return value if math.isfinite(value) else None


def read_score(body: Any) -> ScoreAnswer:
    """Raises ValueError where the answer is malformed."""
    return ScoreAnswer.model_validate(body)


def read_identity(body: Any) -> IdentityAnswer:
    """Raises ValueError where the answer is malformed."""
    return IdentityAnswer.model_validate(body)
