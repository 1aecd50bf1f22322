"""What follows from counting alone."""

from typing import Literal

from solrl_tasks.bench.reports.facts import Environment, ModelFacts
from solrl_tasks.config.base import Frozen


class CeilingReport(Frozen):
    """``solrl bench ceiling``: arithmetic, no measurement."""

    bench: Literal["ceiling"] = "ceiling"
    environment: Environment
    models: tuple[ModelFacts, ...]
    candidates: int
    keep: int
    explore_steps: int
    full_steps: int
