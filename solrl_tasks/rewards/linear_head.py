"""Five linear layers from an embedding to a score."""

from collections.abc import Iterable
from typing import Any, Final

from torch import Tensor, nn

WIDTHS: Final = (1024, 128, 64, 16, 1)
_PLACES: Final = (0, 2, 4, 6, 7)
"""Of the layers in the published checkpoints, where dropout stood in between in training."""


class LinearHead(nn.Module):
    """The head of the improved aesthetic predictor, which ImageReward took over: linear layers and nothing between.

    Args:
        width: of the embeddings.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        inputs = (width, *WIDTHS)
        self.layers = nn.ModuleDict(
            {str(place): nn.Linear(inputs[i], inputs[i + 1]) for i, place in enumerate(_PLACES)}
        )

    def forward(self, embeddings: Tensor) -> Tensor:
        """Scores ``[B]`` of embeddings ``[B, width]``."""
        layers: Iterable[nn.Module] = self.layers.values()
        for layer in layers:
            embeddings = layer(embeddings)
        return embeddings[:, 0]


def build_head(config: dict[str, Any]) -> nn.Module:
    """A head from its configuration."""
    return LinearHead(int(config["width"]))
