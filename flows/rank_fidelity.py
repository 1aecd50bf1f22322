"""The study of how far cheap exploration ranks as precise sampling does."""

from typing import Annotated, Any

from prefect import flow
from pydantic import Field

from flows.parameters import Engine, Group, Prompts
from flows.settings import DEFAULT_CONFIG


@flow(name="solrl-rank-fidelity", persist_result=False)
def rank_fidelity(
    steps: list[Annotated[int, Field(ge=1, le=200)]] | None = None,
    candidates: Group = None,
    prompts: Prompts = None,
    engine: Engine = None,
    config: str = DEFAULT_CONFIG,
) -> dict[str, Any]:
    """Rank correlation of cheap exploration with precise sampling.

    Args:
        steps: explore steps to compare.
        candidates: seeds for each prompt.
        prompts: number of prompts.
        engine: precision that explores.
        config: recipe file, from the current folder or the project's.
    """
    raise NotImplementedError
