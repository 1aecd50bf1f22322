"""The arms that make a claim for two-stage sampling mean something (the report of Sol-RL, arXiv 2604.06916, has few).

With N candidates explored and K kept by the recipe, F its regeneration steps and E its explore steps:

* ``bf16-KofK``: K candidates in BF16 and F steps, all kept. What DiffusionNFT does; the baseline.
* ``bf16-Nfull``: N candidates in BF16 and F steps, K kept: naive scaling, by the same engine as all others.
* ``bf16-explore``: N in BF16 and E steps, K kept and regenerated: what fewer steps give without low precision.
* ``solrl-nvfp4``: N in NVFP4 and E steps: emulated where the hardware has none, which the arm's note says.
* ``solrl-fp8``: N in FP8 and E steps.
* ``nvfp4-direct``: N in NVFP4 and F steps, K kept, and trained on as NVFP4 draws them. A recipe that scales
  activations by tensor lets an image depend on its batch: kept ones are drawn again in other company and differ a bit.
* ``random-KofN``: as ``solrl-nvfp4``, but K seeds by lot: what the choice itself is worth.
"""

from typing import Any

from solrl_tasks.config.recipe import Recipe
from solrl_tasks.config.words import counted
from solrl_tasks.studies.arms import Arm, ArmError, make_arm, switch_engine
from solrl_tasks.studies.families import Available, Family, make_family, nvfp4_engine

BF16 = "bf16"
FP8 = "fp8"


def controls(base: Recipe, available: Available) -> Family:
    """The controls of a recipe.

    Args:
        base: with what all arms share; its candidates, steps and engines decide what the arms are.
        available: of the device that is to run them.

    Raises:
        ArmError: the recipe keeps all that it explores: there is no choice to control.
    """
    if base.explore.candidates <= base.select.keep:
        raise ArmError(
            f"select.keep is {base.select.keep} of {base.explore.candidates} explore.candidates: nothing is chosen, so "
            "there is nothing to control. Explore more candidates than are kept"
        )
    arms = (*_precise(base), *_two_stage(base, available))
    return make_family("controls", base, arms, arms[0].name, available)


def _precise(base: Recipe) -> tuple[Arm, ...]:
    candidates, keep = base.explore.candidates, base.select.keep
    exact = _exact(base)
    full = {"explore.engine": exact["regenerate.engine"], **exact, **_full_steps(base)}
    few = {**full, "explore.candidates": keep, **_short_chunk(base, keep)}
    cheap = {"explore.engine": exact["regenerate.engine"], **exact}
    steps = base.regenerate.steps
    return (
        make_arm(
            f"bf16-{keep}of{keep}",
            f"{counted(keep, 'candidate')} in BF16, {counted(steps, 'step')}, all kept",
            base,
            few,
        ),
        make_arm(
            f"bf16-{candidates}full",
            f"{counted(candidates, 'candidate')} in BF16, {counted(steps, 'step')}, {keep} kept",
            base,
            full,
        ),
        make_arm(
            "bf16-explore",
            f"{counted(candidates, 'candidate')} in BF16, {counted(base.explore.steps, 'step')}; {keep} regenerated "
            f"in {steps}",
            base,
            cheap,
        ),
    )


def _two_stage(base: Recipe, available: Available) -> tuple[Arm, ...]:
    candidates, keep, steps = base.explore.candidates, base.select.keep, base.explore.steps
    name, note = nvfp4_engine(available)
    nvfp4 = {"explore.engine": switch_engine(base, name)}
    direct = {**nvfp4, **_full_steps(base), "regenerate.engine": switch_engine(base, name)}
    by_lot = {**nvfp4, "select.rule": "random_keep"}
    fp8 = {"explore.engine": switch_engine(base, FP8)}
    then = f"{keep} regenerated in {base.regenerate.steps}"
    chosen = f"{counted(candidates, 'candidate')} in {{}}, {counted(steps, 'step')}; {then}"
    all_steps = (
        f"{counted(candidates, 'candidate')} in NVFP4, {counted(base.regenerate.steps, 'step')}, {keep} trained on as "
        "they are"
    )
    lot = (
        f"{counted(candidates, 'candidate')} in NVFP4, {counted(steps, 'step')}; {keep} by lot regenerated in "
        f"{base.regenerate.steps}"
    )
    return (
        make_arm("solrl-nvfp4", chosen.format("NVFP4"), base, nvfp4, note),
        make_arm("solrl-fp8", chosen.format("FP8"), base, fp8, f"FP8: {available(FP8).reason}"),
        make_arm("nvfp4-direct", all_steps, base, direct, note),
        make_arm(f"random-{keep}of{candidates}", lot, base, by_lot, note),
    )


def _exact(base: Recipe) -> dict[str, Any]:
    """BF16 where images are trained on, with the recipe's own options where that is its engine already."""
    now = base.regenerate.engine
    if now.name == BF16:
        return {"regenerate.engine": now.model_dump(mode="json")}
    kept = {key: value for key, value in now.options.items() if key == "execution"}
    return {"regenerate.engine": {"name": BF16, "options": kept}}


def _full_steps(base: Recipe) -> dict[str, Any]:
    """Exploration in the steps of regeneration, by its solver, at the size that is trained on."""
    again = base.regenerate
    same: dict[str, Any] = {"explore.steps": again.steps, "explore.sampler": again.sampler}
    return same if base.explore.resolution is None else {**same, "explore.resolution": base.model.resolution}


def _short_chunk(base: Recipe, candidates: int) -> dict[str, Any]:
    # Chunks are computed whole: one that is larger than the group would draw seeds that nobody asked for.
    chunk = base.explore.chunk
    return {"explore.chunk": candidates} if isinstance(chunk, int) and chunk > candidates else {}
