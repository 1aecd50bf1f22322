"""The models that are measured where nothing else is asked for: each family's own, with random weights."""

from typing import Final

from solrl_tasks.config.recipe import ModelSpec

RESOLUTION: Final = 512
MODELS: Final[dict[str, ModelSpec]] = {
    "flux": ModelSpec(family="flux", source="random:flux.1-dev", resolution=RESOLUTION, max_sequence_length=512),
    "sd3": ModelSpec(family="sd3", source="random:sd3.5-large", resolution=RESOLUTION, max_sequence_length=256),
    "sana": ModelSpec(family="sana", source="random:sana-1.6b", resolution=RESOLUTION, max_sequence_length=300),
}
CHUNKS: Final = {"flux": 24, "sd3": 24, "sana": 96}
"""Images computed together: as many as keep the matrix units of a large GPU busy."""
CHUNK: Final = 24
"""For a family that is not among them."""


def choose_model(family: str, source: str | None, resolution: int | None, text_tokens: int | None) -> ModelSpec:
    """The family's model with what was asked for instead; of another family, all has to be asked for.

    Raises:
        ValueError: the family has no model here and none was named.
    """
    known = MODELS.get(family)
    if known is None and source is None:
        raise ValueError(f"family {family!r} has no model of its own here ({', '.join(MODELS)} have): give --source")
    asked = {"source": source, "resolution": resolution, "max_sequence_length": text_tokens}
    changes = {name: value for name, value in asked.items() if value is not None}
    tree = (known or ModelSpec(family=family)).model_dump() | changes
    return ModelSpec.model_validate(tree)
