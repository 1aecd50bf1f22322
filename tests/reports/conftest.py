import numpy as np
import pytest

from solrl_tasks.reports import images
from solrl_tasks.reports.page import (
    Commands,
    Figure,
    Page,
    Pictures,
    Provenance,
    Section,
    Settings,
    Table,
    Text,
)

HOSTILE = "a <script>alert(1)</script> & \"quoted\" 'cat' | *bold* [x](javascript:alert(1))"


@pytest.fixture
def hostile() -> str:
    """A prompt that means ill."""
    return HOSTILE


@pytest.fixture
def page() -> Page:
    """A page with a block of every kind; its prompts mean ill."""
    rng = np.random.default_rng(0)
    where = Provenance("NVIDIA H200", "nvfp4-emulated", False, "measured", "8 seeds")
    png = images.encode(rng.integers(0, 255, (30, 90, 3), dtype=np.uint8))
    shown = rng.integers(0, 255, (2, 3, 8, 6, 3), dtype=np.uint8)
    rows = (("first", "0.12 ± 0.03", HOSTILE), ("second", "-1.5", "text"))
    return Page(
        f"Study of {HOSTILE}",
        f"**Answer** <script>alert(2)</script> ![seen](http://somewhere/x.png) of {HOSTILE}",
        (
            Section(
                "Figures",
                (
                    Text("# A heading\n\nand <img src=x onerror=alert(3)>\n\n|a|b|\n|--|--|\n|1|2|"),
                    Table("Costs", ("arm", "gain", "prompt"), rows, where, "a note"),
                    Figure("Curve", png, f"rises over {HOSTILE}", where),
                ),
            ),
            Section(
                "Pictures",
                (
                    Pictures("Seeds", shown, (HOSTILE, "b"), ("s0", "s1", "s2"), (("0.1", "0.2", "0.3"),) * 2, where),
                    Settings({"model": {"family": "flux", "sizes": [1, 2]}, "rewards": [{"name": HOSTILE}], "e": {}}),
                    Commands(("solrl report x", "echo '</code><script>' ```")),
                ),
            ),
        ),
    )
