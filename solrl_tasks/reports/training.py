"""The page of a training run: what was run, what came of it, what it cost, and how to have it again."""

import math

from solrl_tasks.config.words import counted
from solrl_tasks.reports.page import Commands, Page, Section, Settings, Table, Text, plain
from solrl_tasks.reports.run_record import RunRecord
from solrl_tasks.reports.training_costs import cost_section
from solrl_tasks.reports.training_curves import held_out_section, ranks_section
from solrl_tasks.reports.training_notes import notes_section
from solrl_tasks.reports.training_pictures import pictures_section
from solrl_tasks.tracking.terminal import value

RECIPE = "recipe.yaml"


def training_page(run: RunRecord) -> Page:
    """Everything that the store says of a run, for people. The same store makes the same page."""
    sections = [
        held_out_section(run),
        ranks_section(run),
        pictures_section(run),
        cost_section(run),
        notes_section(run),
        Section("What was run", (_what(run), Settings(run.recipe.model_dump(mode="json")))),
        again_section(run),
    ]
    return Page(f"Run {run.run_id}", _summary(run), tuple(section for section in sections if section is not None))


def _summary(run: RunRecord) -> str:
    done, asked = run.last.step, run.recipe.iterations
    ended = f"{done} of {counted(asked, 'iteration')}, {run.status}"
    recipe = run.recipe
    engines = (
        f"Explored by {run.engine(recipe.explore.engine)}, trained on samples of "
        f"{run.engine(recipe.regenerate.engine)}, on {plain(run.hardware)}."
    )
    return "\n\n".join([_headline(run), f"{ended}. {engines}", _price(run)])


def _headline(run: RunRecord) -> str:
    spec, evaluated = run.recipe.evaluate, run.evaluated
    lines = []
    for name in run.held_out:
        gain = run.gain(name)
        if gain is None:
            continue
        before, after = value(evaluated[0], f"eval/{name}"), value(evaluated[-1], f"eval/{name}")
        estimate, (low, high) = gain
        lines.append(
            f"Held-out **{plain(name)}** went from {before} to {after}: "
            f"a gain of **{estimate.mean:.3f}**{_interval(low, high)}."
        )
    if not lines:
        return "No gain was measured: nothing was evaluated after the baseline."
    over = (
        f"On the same {counted(spec.prompts, 'prompt')} x {counted(spec.seeds, 'seed')}; ± is one standard error over "
        "prompts."
    )
    return " ".join([*lines, over])


def _interval(low: float, high: float) -> str:
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    verdict = ", which does not tell it from none" if low <= 0.0 <= high else ""
    return f" (95 % interval {low:.3f} to {high:.3f}{verdict})"


def _price(run: RunRecord) -> str:
    metrics = run.last.metrics
    spent, attributed = metrics.get("gpu_hours/spent"), metrics.get("gpu_hours/attributed")
    if spent is None or attributed is None:
        return ""
    return f"{run.hours}: {spent:.4f} spent by this run, {attributed:.4f} attributed to its result, whoever paid."


def _evaluation(run: RunRecord) -> str:
    spec, sampling = run.recipe.evaluate, run.recipe.evaluate.sampling
    steps = counted(sampling.steps, f"{sampling.sampler} step")
    images = f"{counted(spec.prompts, 'prompt')} x {counted(spec.seeds, 'seed')}"
    return f"{run.engine(sampling.engine)}, {steps}, {images}, every {spec.every}"


def _what(run: RunRecord) -> Table:
    recipe = run.recipe
    explore, regenerate, update, spec = recipe.explore, recipe.regenerate, recipe.update, recipe.evaluate
    model = recipe.model
    libraries = ", ".join(f"{name} {version}" for name, version in run.environment.get("libraries", {}).items())
    rewards = ", ".join(f"{reward.name} (weight {reward.weight:g})" for reward in recipe.rewards)
    rows = {
        "model": f"{model.source} ({model.family}), {model.resolution} x {model.resolution}",
        "rewards": rewards,
        "each iteration": (
            f"{counted(recipe.prompts.per_iteration, 'prompt')} x {counted(explore.candidates, 'candidate')}"
        ),
        "explore": f"{run.engine(explore.engine)}, {counted(explore.steps, f'{explore.sampler} step')}",
        "select": f"{recipe.select.keep} of {explore.candidates}, {recipe.select.rule}",
        "regenerate": f"{run.engine(regenerate.engine)}, {counted(regenerate.steps, f'{regenerate.sampler} step')}",
        "update": f"{update.objective.name}, {counted(update.optimizer_steps, 'optimizer step')}, learning rate "
        f"{update.optimizer.lr:g}, LoRA of rank {update.lora.rank}",
        "evaluate": _evaluation(run) if spec.every else "never",
        "seed": str(recipe.seed),
        "hardware": run.hardware,
        "libraries": libraries or "not recorded",
    }  # fmt: skip
    return Table("The recipe in short", ("what", "how"), tuple(rows.items()))


def again_section(run: RunRecord) -> Section:
    """Commands that go on, repeat, export, measure and report."""
    run_id = run.run_id
    lines = (
        f"solrl train {RECIPE} --run-id {run_id}",
        f"solrl train {RECIPE} --run-id {run_id}-again",
        f"solrl export {run_id} adapter",
        f"solrl evaluate {run_id}",
        f"solrl report {run_id}",
    )
    told = (
        f"`{RECIPE}` lies beside this report in the store; files that it names start from the folder that it is in. In "
        "order: go on where the run stopped (with a larger `--iterations`, further); run it anew, re-using what is the "
        "same; write the adapter for `load_lora_weights`; measure it; make this report again from the store."
    )
    return Section("Again", (Text(told), Commands(lines)))
