"""Runs of arms made by hand, with numbers that can be checked by hand."""

from collections.abc import Mapping, Sequence

from solrl_tasks.bench.comparison.work import Work
from solrl_tasks.config.recipe import Recipe
from solrl_tasks.studies.arms import Arm
from solrl_tasks.studies.modelled import Modelled
from solrl_tasks.studies.results.findings import Roles
from solrl_tasks.studies.runs import ArmRecord
from solrl_tasks.tracking.summary import StageCost, Summary

COUNTED = frozenset({"quantize", "explore", "regenerate", "update"})

ARMS = {"bf16-24of24": 0.02, "bf16-96full": 0.05, "solrl-nvfp4": 0.04, "nvfp4-direct": 0.01, "steps-2": 0.03}
ROLES = Roles(
    "bf16-24of24",
    "bf16-96full",
    "solrl-nvfp4",
    "nvfp4-direct",
    {2: "steps-2", 6: "solrl-nvfp4"},
    {24: "bf16-24of24", 96: "solrl-nvfp4"},
    tuple(name for name in ARMS if name != "steps-2"),
)


def arm_record(
    name: str,
    seed: int,
    rewards: Sequence[float],
    *,
    modelled: float | None = 3600.0,
    timed: Mapping[str, float] | None = None,
    every: int = 1,
    candidates: int = 96,
    processes: int | None = 4,
    stderr: float = 0.0,
) -> ArmRecord:
    """A run with these held-out rewards, one every so many iterations.

    Args:
        modelled: seconds of an iteration, all of the update; None is hardware that lacks a precision.
        timed: device-seconds of an iteration alone.
        stderr: of every gain over prompts.
    """
    cost = StageCost(seconds=9, device_seconds=9, attributed_seconds=2.0, state="Completed")
    summaries = []
    for place, reward in enumerate(rewards):
        at = place * every
        metrics = {"eval/scene": reward, **({"eval/gain_scene": reward - rewards[0]} if at else {})}
        errors = {"eval/gain_scene": stderr} if at else {}
        stages = {"update": cost, "evaluate": cost} if at else {}
        summaries.append(Summary(run_id="r", step=at, timestamp_ms=0, metrics=metrics, stderr=errors, stages=stages))
    recipe = Recipe.model_validate({"explore": {"candidates": candidates}, "select": {"keep": 24}})
    work = None if modelled is None else Work(explore=0, regenerate=0, update=modelled)
    return ArmRecord(
        arm=Arm(name, f"what {name} is", {}, COUNTED, "emulated: its seconds say nothing" if "nvfp4" in name else ""),
        seed=seed,
        run_id=f"{name}-{seed}",
        recipe=recipe,
        summaries=tuple(summaries),
        modelled=Modelled("NVIDIA B200", {}, work, "" if work else "NVIDIA B200: nvfp9 has no units"),
        processes=processes,
        timing=timed,
        hardware="Some GPU",
    )
