"""What can be asked of a pool: in xarray, where everything is labelled, and of its Parquet table.

    python docs/examples/pool_analysis.py KEY [--store .solrl/store] [--samples KEY] [--out pool.parquet]

``solrl pools`` lists the keys of pools; ``solrl runs show RUN --json`` has those of what a run regenerated, under
``refs.regenerate``. The beginning of a key will do.
"""

import argparse
from pathlib import Path

import numpy as np
import xarray as xr
from pyarrow import parquet
from scipy.stats import rankdata

from solrl_tasks.frames import open_dataset, write_parquet
from solrl_tasks.store.errors import StoreError


def main() -> None:
    """Ask, and print the answers."""
    arguments = _arguments()
    pool = read(arguments.store, arguments.pool, "pools", "KEY")
    reward = choose(pool, arguments.reward)
    describe(pool, reward)
    best_of(pool[reward].where(pool.valid))
    look(pool, reward)
    if arguments.samples:
        samples = read(arguments.store, arguments.samples, "samples", "--samples")
        compare(pool, samples, choose(samples, reward))
    tabulate(arguments.store, arguments.pool, reward, arguments.out)


def read(store: Path, key: str, kind: str, option: str) -> xr.Dataset:
    """Open a pool, or samples; ends the script where the key is of something else."""
    try:
        found = open_dataset(store, key)
    except StoreError as error:
        raise SystemExit(f"error: {option} {key}: {error}") from error
    if found.attrs["kind"] != kind:
        raise SystemExit(
            f"error: {option} {key} is a key of {found.attrs['kind']}, and one of {kind} is needed: `solrl pools` "
            "lists pools as KEY; samples, refs.regenerate of `solrl runs show RUN --json`, go to --samples"
        )
    return found


def choose(found: xr.Dataset, asked: str | None) -> str:
    """The reward that is asked for, or the first; ends the script where there is no such reward."""
    known = [str(name) for name in found if "@" in str(name) and "/" not in str(name)]
    if not known or asked not in (None, *known):
        named = ", ".join(known) or "none yet"
        raise SystemExit(f"error: no reward {asked or ''} in {found.attrs['key']}; there is {named}")
    return asked or known[0]


def describe(pool: xr.Dataset, reward: str) -> None:
    """What was explored, how, and how the reward varies between and within prompts."""
    size = dict(pool.sizes)
    print(f"{size['prompt']} prompts x {size['candidate']} candidates, {pool.attrs['engine.name']}, ", end="")
    print(f"{pool.attrs['steps']} steps: {float(pool.seconds.sum()):.1f} device-seconds")
    print(f"{int((pool.computed & ~pool.valid).sum())} invalid, {int((~pool.computed).sum())} not computed yet")
    values = pool[reward].where(pool.valid)
    table = xr.Dataset({"mean": values.mean("candidate"), "std": values.std("candidate")})
    for one, row in table.groupby("prompt"):
        text = str(pool.text.sel(prompt=one).item()) if "text" in pool.coords else str(one)
        print(f"  {text:40.40s} {row['mean'].item():.3f} +- {row['std'].item():.3f}")


def best_of(values: xr.DataArray) -> None:
    """What more candidates bring: the best of the first n, averaged over prompts."""
    sizes = [2**power for power in range(1, 20) if 2**power <= values.sizes["candidate"]]
    for size in sizes:
        best = values.isel(candidate=slice(size)).max("candidate").mean("prompt")
        print(f"  best of {size:4d}: {best.item():.3f}")


def look(pool: xr.Dataset, reward: str) -> None:
    """Where the pool keeps images, the best candidate's: one block is read for it, and none before."""
    if "images" not in pool:
        print("no images are kept: explore.store_images is what keeps them")
        return
    best = pool[reward].where(pool.valid).isel(prompt=0).argmax("candidate").item()
    image = pool.images.isel(prompt=0, candidate=best)
    print(
        f"best image of the first prompt: candidate {best}, {image.sizes['y']} px, mean level {image.mean().item():.1f}"
    )


def compare(pool: xr.Dataset, samples: xr.Dataset, reward: str) -> None:
    """What exploration said of the kept seeds beside what regenerating them found; labels bring them together."""
    proxy = (
        pool[reward].sel(prompt=samples.prompt, candidate=samples.candidate.clip(min=0)).where(samples.candidate >= 0)
    )
    # On kept seeds alone a correlation is inflated: selection took the ends.
    rho = xr.corr(ranks(proxy), ranks(samples[reward]), "kept")
    print(f"{samples.sizes['kept']} kept seeds a prompt: {proxy.mean().item():.3f} explored, ", end="")
    print(f"{samples[reward].mean().item():.3f} regenerated, rank correlation {rho.mean().item():.2f}")


def ranks(values: xr.DataArray) -> xr.DataArray:
    """From 1 within each prompt; ties share theirs."""
    core = [["kept"]]
    return xr.apply_ufunc(rankdata, values, input_core_dims=core, output_core_dims=core, kwargs={"axis": -1})


def tabulate(store: Path, key: str, reward: str, path: Path) -> None:
    """The same as a table, for whatever reads Parquet."""
    rows = write_parquet(store, key, path)
    table = parquet.read_table(path)
    means = table.group_by("prompt").aggregate([(reward, "mean"), ("seconds", "sum")]).to_pandas()
    print(f"{rows} rows in {path}, columns {', '.join(table.column_names)}")
    print(f"mean over prompts {np.mean(means[f'{reward}_mean']):.3f}, {means['seconds_sum'].sum():.1f} device-seconds")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pool", metavar="KEY")
    parser.add_argument("--store", type=Path, default=Path(".solrl/store"))
    parser.add_argument("--samples", metavar="KEY", help="What was regenerated of the pool.")
    parser.add_argument("--reward", metavar="NAME@VERSION", help="[default: the first]")
    parser.add_argument("--out", type=Path, default=Path("pool.parquet"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
