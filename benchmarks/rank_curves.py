"""How well do cheap proxies rank? The untrained model on held-out prompts, engines by steps, against two references.

    python benchmarks/rank_curves.py --store /tmp/ranks --prompts 24 --out docs/images/rank-curves

Pools that the store holds are used again. Writes ``<out>.json`` and ``<out>.png``.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

from solrl_tasks.analysis.plots import Series, rank_curve
from solrl_tasks.config.load import load_recipe
from solrl_tasks.stages.session import open_session
from solrl_tasks.studies.rank_fidelity import RankFidelity, base_study, measure_ranks


def main() -> None:
    """Measure, print, draw."""
    arguments = _arguments()
    recipe = load_recipe(arguments.config, {"explore.chunk": arguments.chunk, "explore.store_images": "none"})
    results: dict[int, RankFidelity] = {}
    with open_session(arguments.store, "rank-curves", recipe) as session:
        for reference in arguments.references:
            study = base_study(session, arguments.prompts, arguments.steps, arguments.engines)
            sampling = study.reference.model_copy(update={"steps": reference})
            results[reference] = measure_ranks(session, replace(study, reference=sampling))
            _print(results[reference])
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    text = {reference: result.model_dump(mode="json") for reference, result in results.items()}
    arguments.out.with_suffix(".json").write_text(json.dumps(text))
    arguments.out.with_suffix(".png").write_bytes(
        rank_curve(_series(results), title="Rank correlation over explore steps")
    )


def _print(result: RankFidelity) -> None:
    shape = f"{result.prompts} prompts x {result.candidates}"
    print(f"against {result.reference_engine}, {result.reference_steps} steps; {shape}")
    for proxy in result.proxies:
        names = ("spearman", "overlap_best", "overlap_worst", "contrast_share")
        shown = {name: proxy.metrics[name] for name in names}
        values = "  ".join(f"{name} {value}" for name, value in shown.items())
        print(f"  {proxy.engine:15s} {proxy.steps:3d}  {values}", flush=True)


def _series(results: dict[int, RankFidelity]) -> list[Series]:
    series = []
    for reference, result in results.items():
        for engine in dict.fromkeys(proxy.engine for proxy in result.proxies):
            chosen = [proxy for proxy in result.proxies if proxy.engine == engine]
            rho = [proxy.metrics["spearman"] for proxy in chosen]
            label = f"{engine} against {reference} steps"
            steps = [proxy.steps for proxy in chosen]
            series.append(Series(label, steps, [r.mean for r in rho], [r.stderr for r in rho]))
    return series


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("configs/embedded.yaml"))
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--steps", type=int, nargs="+", default=[2, 4, 6, 8, 10])
    parser.add_argument("--engines", nargs="+", default=["nvfp4-emulated", "bf16"])
    parser.add_argument("--references", type=int, nargs="+", default=[10, 40])
    parser.add_argument("--chunk", type=int, default=96)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
