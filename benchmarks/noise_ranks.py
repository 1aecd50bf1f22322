"""Does exploration rank images that are sampled with noise in their steps? The untrained model on held-out prompts.

    python benchmarks/noise_ranks.py --store noise --prompts 8 --candidates 48 --out docs/images/noise-ranks

Exploration is the recipe's and has no noise. Final images are sampled as the recipe regenerates, by euler steps, with
noise of every kind and amount in ``SETTINGS``. Pools that the store holds are used again. Writes ``<out>.json`` and
``<out>.png``, and prints the table in markdown.
"""

import argparse
import json
from pathlib import Path

from solrl_tasks.analysis.estimates import Estimate
from solrl_tasks.analysis.plots import Series, noise_curve
from solrl_tasks.config.load import load_recipe
from solrl_tasks.config.stochastic import Stochastic, Window
from solrl_tasks.stages.session import open_session
from solrl_tasks.studies.noise import NoisyRanks, measure_noise
from solrl_tasks.studies.rank_fidelity import held_out_job

LAST = "the last 3 noisy steps"
DRAWN = "3 steps drawn in the first half"
SETTINGS = {
    "flow-sde, all steps": ("flow-sde", (0.1, 0.3, 0.7)),
    "dance, all steps": ("dance", (0.1, 0.3, 0.7)),
    f"flow-sde, {LAST}": ("flow-sde", (0.1, 0.3, 0.7)),
    f"cps, {LAST}": ("cps", (0.1, 0.3, 0.8)),
    f"cps, {DRAWN}": ("cps", (0.1, 0.3, 0.8)),
}
"""Kind of step and its etas; the name says which steps have noise."""


def noises(steps: int) -> dict[str, list[Stochastic]]:
    """The settings for paths of so many steps; the last step of all never has noise."""
    found = {}
    for name, (step, etas) in SETTINGS.items():
        window = Window(size=steps - 1)
        if name.endswith(LAST):
            window = Window(size=3, start=steps - 4)
        elif name.endswith(DRAWN):
            window = Window(size=3, start=0, stop=steps // 2)
        found[name] = [Stochastic(step=step, eta=eta, window=window.settle(steps, 1)) for eta in etas]
    return found


def main() -> None:
    """Measure, print, draw."""
    arguments = _arguments()
    overrides = {"explore.chunk": arguments.candidates, "explore.candidates": arguments.candidates}
    keep = {"select.keep": max(2, arguments.candidates // 4), "explore.store_images": "none"}
    recipe = load_recipe(arguments.config, overrides | keep)
    with open_session(arguments.store, "noise-ranks", recipe) as session:
        explored = held_out_job(session, arguments.prompts)
        asked = noises(recipe.regenerate.steps)
        plain, *rest = measure_noise(session, explored, [one for kind in asked.values() for one in kind])
    results = {name: [rest.pop(0) for _ in kind] for name, kind in asked.items()}
    _print(plain, results)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    text = {
        name: [one.model_dump(mode="json") for one in found] for name, found in {"none": [plain], **results}.items()
    }
    arguments.out.with_suffix(".json").write_text(json.dumps(text))
    title = "Ranks without noise against images with noise"
    arguments.out.with_suffix(".png").write_bytes(noise_curve(_series(plain, results), title=title))


def _print(plain: NoisyRanks, results: dict[str, list[NoisyRanks]]) -> None:
    print(
        "| noise in the final images | eta | ranks without noise | ranks explored | contrast explored, of the ideal |"
    )
    print("| --- | --- | --- | --- | --- |")
    for name, found in {"none": [plain], **results}.items():
        for one in found:
            eta = "" if one.noise is None else f"{one.noise.eta:g}"
            shown = [one.noiseless["spearman"], one.explored["spearman"], one.explored["contrast_share"]]
            print(f"| {name} | {eta} | {' | '.join(map(_shown, shown))} |", flush=True)


def _shown(estimate: Estimate) -> str:
    return f"{estimate.mean:.2f} ± {estimate.stderr:.2f}"


def _series(plain: NoisyRanks, results: dict[str, list[NoisyRanks]]) -> list[Series]:
    lines = []
    for name, found in results.items():
        rho = [one.noiseless["spearman"] for one in (plain, *found)]
        etas = [0.0, *(one.noise.eta for one in found if one.noise is not None)]
        lines.append(Series(name, etas, [r.mean for r in rho], [r.stderr for r in rho]))
    return lines


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("configs/embedded.yaml"))
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--candidates", type=int, default=48)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
