"""The models that are measured where nothing else is asked for: each family's own, with random weights."""

from typing import Final, Literal

from solrl_tasks.config.recipe import ModelSpec


def _model(family: str, source: str, text_tokens: int) -> ModelSpec:
    return ModelSpec(family=family, source=source, resolution=512, max_sequence_length=text_tokens)


MODELS: Final[dict[str, ModelSpec]] = {
    "flux": _model("flux", "random:flux.1-dev", 512),
    "sd3": _model("sd3", "random:sd3.5-large", 256),
    "sana": _model("sana", "random:sana-1.6b", 300),
}
TextEncoders = Literal["keep", "offload", "release"]
CHUNKS: Final = {"flux": 24, "sd3": 24, "sana": 96}
"""Images computed together: as many as keep the matrix units of a large GPU busy."""
CHUNK: Final = 24
"""For a family that is not among them."""


def choose_model(
    family: str, source: str | None, resolution: int | None, text_tokens: int | None, text_encoders: TextEncoders
) -> ModelSpec:
    """The family's model with what was asked for instead; of another family, all has to be asked for.

    Args:
        text_encoders: where they wait between uses.

    Raises:
        ValueError: the family has no model here and none was named.
    """
    known = MODELS.get(family)
    if known is None and source is None:
        raise ValueError(f"family {family!r} has no model of its own here ({', '.join(MODELS)} have): give --source")
    asked = {
        "source": source,
        "resolution": resolution,
        "max_sequence_length": text_tokens,
        "text_encoders": text_encoders,
    }
    changes = {name: value for name, value in asked.items() if value is not None}
    tree = (known or ModelSpec(family=family)).model_dump() | changes
    return ModelSpec.model_validate(tree)
