"""Pools and samples as labelled arrays and tables: the store's own values, named, and what is missing told from what is
invalid."""

import json
from types import SimpleNamespace

import numpy as np
import pyarrow as arrow
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from solrl_tasks import frames
from solrl_tasks.frames import open_dataset, write_parquet
from solrl_tasks.sampling.identity import candidate_seed
from solrl_tasks.stages.iteration import run_all
from solrl_tasks.stages.session import open_session
from solrl_tasks.store.contents import Contents
from solrl_tasks.store.errors import MissingObjectError
from solrl_tasks.store.pool import Pool
from solrl_tasks.store.root import Store
from solrl_tasks.store.samples import Samples
from tests.support.micro import micro_recipe, write_prompts

A, B = "soft@1", "strict@2"
ROWS = ("aa-0", "bb-0", "aa-1")
CHUNK = 4
SPEC = {"kind": "pool", "steps": 6, "engine": {"name": "fake", "options": {"x": None}}, "exploration_seed": 11}
RECORD = {"threads": 1}


@pytest.fixture(scope="module")
def run(micro_model, tmp_path_factory):
    """A finished iteration with an audit: its store, its references and its recipe."""
    folder = tmp_path_factory.mktemp("frames")
    recipe = micro_recipe(micro_model, write_prompts(folder), iterations=1)
    with open_session(folder / "store", "run", recipe) as session:
        summary = list(run_all(session))[-1]
        return SimpleNamespace(store=session.store, refs=summary.refs, recipe=recipe)


def values(name, row, index):
    found = (np.arange(CHUNK) + index * CHUNK + 10 * row + len(name)).astype(np.float32)
    found[1] = np.nan
    return found


def pictures(row, index):
    return np.full((CHUNK, 2, 3, 3), 40 * row + 10 * index + 1, dtype=np.uint8) + np.arange(
        CHUNK, dtype=np.uint8
    ).reshape(-1, 1, 1, 1)


@pytest.fixture
def partly(tmp_path):
    """A pool of three prompts x 10 candidates in chunks of four: blocks (0, 1) and (2, 2) lack a reward, (1, 0) lacks
    all, and images are kept in the first blocks alone."""
    store = Store.open(tmp_path / "store")
    pool = Pool.open(store, SPEC, ROWS, CHUNK)
    with pool.lock():
        pool.ensure_columns(10)
        for block in pool.missing([A, B], 10):
            at = block.row, block.index
            if at == (1, 0):
                continue
            names = [A] if at in ((0, 1), (2, 2)) else [A, B]
            images = pictures(*at) if block.index == 0 else None
            pool.write(block, {name: values(name, *at) for name in names}, images, 2.0, RECORD)
    return store, pool


# Pools


def test_a_pool_is_labelled_by_all_that_names_its_candidates(run):
    ref = run.refs["explore"]
    pool, found = Pool.load(run.store, ref), open_dataset(run.store, ref.key)
    assert dict(found.sizes) == {"prompt": 2, "candidate": 8, "y": 32, "x": 32, "channel": 3}
    assert found["colourfulness@1"].dims == ("prompt", "candidate")
    assert np.array_equal(found["colourfulness@1"], pool.rewards("colourfulness@1", 8))
    assert tuple(found.prompt.values) == pool.rows
    assert found.text.values.tolist() == [one["text"] for one in pool.noted_prompts()]
    assert found.metadata.values.tolist() == ["{}", "{}"]
    seed = pool.spec["exploration_seed"]
    expected = [[candidate_seed(seed, key, index) for index in range(8)] for key in pool.rows]
    assert found.seed.dtype == np.uint64 and found.seed.values.tolist() == expected
    assert found.computed.all() and found.valid.all()
    one = found.sel(prompt=pool.rows[1], candidate=5)
    assert float(one["colourfulness@1"]) == pool.rewards("colourfulness@1", 8)[1, 5]
    assert (found.attrs["kind"], found.attrs["key"]) == ("pools", ref.key)
    assert (found.attrs["engine.name"], found.attrs["steps"]) == ("nvfp4-emulated", 2)


def test_attributes_are_the_whole_spec(partly):
    store, pool = partly
    about = open_dataset(store, pool.key).attrs
    assert about == {
        "kind": "pools",
        "key": pool.key,
        "steps": 6,
        "engine.name": "fake",
        "engine.options.x": None,
        "exploration_seed": 11,
    }


def test_what_is_missing_is_told_from_what_is_invalid(partly):
    store, pool = partly
    found = open_dataset(store.root, pool.key[:6])
    done = {name: np.ones((3, 3), bool) for name in (A, B)}
    for name, places in ((A, [(1, 0)]), (B, [(1, 0), (0, 1), (2, 2)])):
        for at in places:
            done[name][at] = False
        for row, index in np.ndindex(3, 3):
            part = found[name][row, index * CHUNK : (index + 1) * CHUNK].values
            expected = values(name, row, index) if done[name][row, index] else np.full(CHUNK, np.nan)
            assert np.array_equal(part, expected, equal_nan=True)
    computed = np.repeat(done[A] & done[B], CHUNK, axis=1)
    invalid = np.tile(np.arange(12) % CHUNK == 1, (3, 1))
    assert np.array_equal(found.computed, computed)
    assert np.array_equal(found.valid, computed & ~invalid)
    assert "text" not in found.coords


def test_seconds_add_up_to_what_the_blocks_cost(partly, run):
    store, pool = partly
    found = open_dataset(store, pool.key).seconds
    assert float(found.sum()) == pytest.approx(pool.seconds([A, B], 12)) == pytest.approx(16.0)
    assert found[1, :CHUNK].values.tolist() == [0.0] * CHUNK and float(found[0, 0]) == 0.5
    ref = run.refs["explore"]
    paid = Pool.load(run.store, ref).seconds(["colourfulness@1"], 8)
    assert float(open_dataset(run.store, ref.key).seconds.sum()) == pytest.approx(paid)


# Large arrays


def watched(monkeypatch):
    read = []
    block = Contents.block

    def watching(self, name, row, index):
        read.append((name, row, index))
        return block(self, name, row, index)

    monkeypatch.setattr(Contents, "block", watching)
    return read


def test_pictures_are_read_when_they_are_asked_for_and_no_more_of_them(partly, monkeypatch):
    store, pool = partly
    read = watched(monkeypatch)
    found = open_dataset(store, pool.key)
    chosen = found["images"].isel(candidate=slice(2, 9)).sel(prompt="aa-1")
    assert read == [] and "..." in repr(found["images"])
    loaded = chosen.values
    assert read == [("images", 2, 0), ("images", 2, 1), ("images", 2, 2)]
    assert np.array_equal(loaded[:2], pictures(2, 0)[2:]) and not loaded[2:].any()
    assert loaded.dtype == np.uint8


INDEX = st.one_of(
    st.integers(-2, 1),
    st.just(slice(None, None, -1)),
    st.builds(slice, st.none() | st.integers(-3, 3), st.none() | st.integers(-3, 3), st.sampled_from([None, 1, 2])),
    st.lists(st.integers(0, 1), min_size=1, max_size=3),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(INDEX, min_size=5, max_size=5))
def test_every_way_of_indexing_gives_what_numpy_gives(indices):
    whole = np.arange(3 * 10 * 2 * 3 * 3, dtype=np.uint8).reshape(3, 10, 2, 3, 3)

    def block(name, row, index):
        found = np.zeros((CHUNK, 2, 3, 3), np.uint8)
        part = whole[row, index * CHUNK : (index + 1) * CHUNK]
        found[: len(part)] = part
        return found

    contents = SimpleNamespace(rows=3, columns=10, chunk=CHUNK, block=block, form=lambda _: ((2, 3, 3), whole.dtype))
    lazy = frames._lazy(contents, "images", ("prompt", "candidate"))
    plain = xr.Variable(lazy.dims, whole)
    named = dict(zip(lazy.dims, indices, strict=True))
    assert np.array_equal(lazy.isel(named).values, plain.isel(named).values)


def test_features_and_latents_come_with_dimensions_of_their_own(run):
    evaluated = Contents.find(run.store, key_of(run, "bf16"))
    found = open_dataset(run.store, evaluated.key)
    features = found["features/pixels@1"]
    assert features.dims == ("prompt", "candidate", "pixels@1")
    assert np.array_equal(features, Pool.load(run.store, evaluated.key).features("pixels@1", 2))


def key_of(run, engine):
    pools = [path.name for path in run.store.folder("pools").glob("*")]
    return next(key for key in pools if Pool.load(run.store, key).spec["engine"]["name"] == engine)


# Samples


@pytest.mark.parametrize("stage", ["regenerate", "audit"])
def test_samples_are_labelled_by_the_pool_that_they_were_chosen_from(run, stage):
    samples = Samples.load(run.store, run.refs[stage])
    pool = open_dataset(run.store, run.refs["explore"].key)
    found = open_dataset(run.store, run.refs[stage].key)
    assert found["colourfulness@1"].dims == ("prompt", "kept")
    assert found["latents"].dims == ("prompt", "kept", "latent_channel", "latent_y", "latent_x")
    assert np.array_equal(found["latents"], samples.latents())
    assert np.array_equal(found.candidate, samples.indices)
    assert np.array_equal(found.prompt, pool.prompt[: len(samples.indices)])
    assert np.array_equal(found.text, pool.text[: len(samples.indices)])
    explored = pool.sel(candidate=found.candidate, prompt=found.prompt)
    assert np.array_equal(explored.seed, found.seed)


def test_samples_whose_pool_is_gone_are_numbered(run, monkeypatch):
    monkeypatch.setattr(frames, "keys_of", lambda store, kind: [])
    found = open_dataset(run.store, run.refs["regenerate"].key)
    assert found.prompt.values.tolist() == [0, 1]
    assert "seed" not in found.coords and "text" not in found.coords


def test_groups_that_were_left_out_have_no_rows(tmp_path):
    store = Store.open(tmp_path / "store")
    indices = np.array([[3, 1], [-1, -1]])
    samples = Samples.open(store, {"kind": "samples", "selection": "?"}, indices, (1, 2, 2), 2)
    with samples.lock():
        (block,) = samples.missing([A])
        samples.write(block, np.ones((2, 1, 2, 2), np.float32), {A: values(A, 0, 0)[:2]}, None, 1.0, RECORD)
    found = open_dataset(store, samples.key)
    assert found.computed.values.tolist() == [[True, True], [False, False]]
    assert np.isnan(found["latents"].values[1]).all() and (found["latents"].values[0] == 1).all()
    assert write_parquet(store, samples.key, tmp_path / "samples.parquet") == 2
    assert parquet.read_table(tmp_path / "samples.parquet")["candidate"].to_pylist() == [3, 1]


# Tables


def test_a_table_has_a_row_for_each_candidate(run, tmp_path):
    key = run.refs["explore"].key
    assert write_parquet(run.store, key, tmp_path / "pool.parquet") == 16
    table = parquet.read_table(tmp_path / "pool.parquet")
    found = open_dataset(run.store, key)
    for name in ("colourfulness@1", "seed", "valid", "computed", "seconds"):
        assert np.array_equal(table[name].to_numpy().reshape(2, 8), found[name])
    assert table["prompt"].to_pylist() == np.repeat(found.prompt, 8).values.tolist()
    assert table["text"].to_pylist() == np.repeat(found.text, 8).values.tolist()
    assert table["candidate"].to_pylist() == [*range(8)] * 2
    about = table.schema.metadata
    assert (about[b"solrl.kind"], about[b"solrl.key"]) == (b"pools", key.encode())
    assert json.loads(about[b"solrl.spec"]) == Pool.load(run.store, key).spec


def test_not_computed_is_null_and_invalid_is_nan(partly, tmp_path):
    store, pool = partly
    write_parquet(store, pool.key, tmp_path / "pool.parquet")
    table = parquet.read_table(tmp_path / "pool.parquet")
    assert table.num_rows == 36 and table.schema.field(B).type == arrow.float32()
    column = table[B].to_pylist()
    assert [one is None for one in column[:12]] == [False] * 4 + [True] * 4 + [False] * 4
    assert np.isnan(column[1]) and column[0] == len(B)
    assert table["text"].null_count == 36 and table["seed"].null_count == 0


def test_a_file_is_replaced_whole_or_not_at_all(partly, tmp_path, monkeypatch):
    store, pool = partly
    path = tmp_path / "pool.parquet"
    write_parquet(store, pool.key, path)
    before = path.read_bytes()

    def fails(*arguments):
        raise OSError("no space")

    monkeypatch.setattr(parquet.ParquetWriter, "write_table", fails)
    with pytest.raises(OSError, match="no space"):
        write_parquet(store, pool.key, path)
    assert path.read_bytes() == before and sorted(tmp_path.iterdir()) == [path, store.root]


# What is not there


def test_a_key_that_names_none_or_several_is_refused(partly):
    store, pool = partly
    other = Pool.open(store, {**SPEC, "steps": 7}, ROWS, CHUNK)
    with pytest.raises(MissingObjectError, match=r"'zz' is to begin one key .* begins nothing"):
        open_dataset(store, "zz")
    with pytest.raises(MissingObjectError, match=rf"pools/{min(pool.key, other.key)}, pools/"):
        open_dataset(store, "")


def test_reading_changes_nothing(partly):
    store, pool = partly
    before = {path: path.stat().st_mtime_ns for path in store.root.rglob("*")}
    open_dataset(store, pool.key).load()
    assert {path: path.stat().st_mtime_ns for path in store.root.rglob("*")} == before
