"""A run so small that it takes a second or two: two prompts, eight candidates, a random model."""

from pathlib import Path
from typing import Any

from solrl_tasks.config.load import parse_recipe
from solrl_tasks.config.recipe import Recipe

SAMPLING = {"sampler": "euler", "chunk": 4}


def write_prompts(folder: Path, name: str = "prompts.txt", count: int = 5) -> Path:
    """A prompts file with ``count`` lines, and one with as many others beside it for what is held out."""
    path = folder / name
    path.write_text("".join(f"a red circle and thing {i}\n" for i in range(count)), encoding="utf-8")
    held_out(path).write_text("".join(f"a blue square and thing {i}\n" for i in range(count)), encoding="utf-8")
    return path


def held_out(prompts: Path) -> Path:
    """The held-out prompts that belong to a prompts file."""
    return prompts.with_stem(f"{prompts.stem}-heldout")


def micro_recipe(model: Path, prompts: Path, **overrides: Any) -> Recipe:
    """The smallest recipe with every stage in it; overrides are dotted names with ``__`` for dots."""
    tree = {
        "name": "micro",
        "seed": 7,
        "iterations": 2,
        "model": {"source": str(model), "resolution": 32},
        "prompts": {"train": str(prompts), "heldout": str(held_out(prompts)), "per_iteration": 2},
        "rewards": [{"name": "colourfulness"}],
        "explore": {"steps": 2, "candidates": 8, "store_images": "lossless", **SAMPLING},
        "select": {"keep": 4},
        "regenerate": {"steps": 3, **SAMPLING},
        "update": {"optimizer_steps": 2, "micro_batch": 8, "lora": {"rank": 4, "alpha": 8}, "optimizer": {"lr": 0.01}},
        "evaluate": {
            "prompts": 2,
            "seeds": 2,
            "store_images": "lossless",
            "sampling": {"engine": {"name": "bf16"}, "steps": 2, "sampler": "euler", "chunk": 2},
        },
        "audit": {"every": 2, "prompts": 1},
    }
    dotted = {name.replace("__", "."): value for name, value in overrides.items()}
    return parse_recipe(tree, dotted, "micro")
