"""The root of a store."""

import logging
import shutil
from pathlib import Path

import pytest

from solrl_tasks.store.atomic import temporary_name, write_sealed
from solrl_tasks.store.errors import DamagedError, StoreError
from solrl_tasks.store.places import bytes_below
from solrl_tasks.store.root import Store


def test_a_store_is_made_once_and_found_again(tmp_path):
    made = Store.open(tmp_path / "deep" / "store")
    assert Store(made.root).root == Store.open(made.root).root == made.root
    assert (made.root / "store.json").exists()


def test_looking_for_a_store_makes_none(tmp_path):
    place = tmp_path / "deep" / "store"
    assert Store.find(place) is None and not place.parent.exists()
    place.mkdir(parents=True)
    assert Store.find(place) is None and not list(place.iterdir())
    made = Store.open(place)
    found = Store.find(place)
    assert found is not None and found.root == made.root


def test_a_relative_root_survives_a_change_of_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = Store.open(Path("store"))
    monkeypatch.chdir("/")
    assert store.root == tmp_path / "store"


def test_other_folders_are_not_taken_for_stores(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    (tmp_path / "file").write_text("")
    (tmp_path / "nowhere").symlink_to(tmp_path / "absent" / "disk")
    for taken in ("file", "file/store", "nowhere"):
        for ask in (Store.open, Store.find):
            with pytest.raises(StoreError, match=f"{taken} cannot be a store: .* name a folder"):
                ask(tmp_path / taken)
    for ask in (Store.open, Store.find):
        with pytest.raises(StoreError, match="not empty and not a store"):
            ask(tmp_path)
    with pytest.raises(StoreError, match=r"it has no store\.json"):
        Store(tmp_path)
    with pytest.raises(StoreError, match=r"it has no store\.json"):
        Store.open(tmp_path / "none", create=False)
    assert not (tmp_path / "none").exists()


def test_a_store_that_lost_its_marker_says_how_to_get_one(tmp_path):
    store, other = Store.open(tmp_path / "store"), Store.open(tmp_path / "other")
    for name in ("runs", "pools"):
        (store.root / name).mkdir()
    (store.root / "store.json").unlink()
    for ask in (Store, Store.open, Store.find):
        with pytest.raises(StoreError, match=r"lost .*put it back from a copy.* that of another store does"):
            ask(store.root)
    shutil.copy(other.root / "store.json", store.root)
    assert Store.open(store.root).format == 1


def test_another_format_or_a_damaged_marker_is_refused(tmp_path):
    store = Store.open(tmp_path / "store")
    marker = store.root / "store.json"
    text = marker.read_text()
    marker.write_text(text[:-9])
    with pytest.raises(DamagedError, match=r"store\.json is damaged: .*; put it back from a copy"):
        Store.open(store.root)
    marker.unlink()
    write_sealed(marker, {"format": 99})
    with pytest.raises(StoreError, match=r"format 99, which a newer sol-rl wrote.*reads up to 2\. Upgrade sol-rl"):
        Store.open(store.root)
    before = marker.read_bytes()
    for number in (0, -1, "2", None, True):
        write_sealed(marker, {"format": number})
        with pytest.raises(StoreError, match="names no format"):
            Store(store.root)
    write_sealed(marker, {"format": 99})
    assert marker.read_bytes() == before


def test_a_store_has_the_first_format_until_it_needs_another(tmp_path):
    store = Store.open(tmp_path / "store")
    assert Store(store.root).format == 1
    store.require_format(1)
    assert Store(store.root).format == 1
    store.require_format(2)
    store.require_format(1)
    assert store.format == Store(store.root).format == Store.open(store.root).format == 2


def test_what_is_moved_aside_keeps_its_content_and_says_why(store, caplog):
    caplog.set_level(logging.WARNING)
    path = store.folder("pools") / "abc"
    path.mkdir(parents=True)
    (path / "x").write_text("data")
    aside = store.move_aside(path, "because")
    assert (aside / "x").read_text() == "data" and not path.exists()
    assert aside.with_name(aside.name + ".why.txt").read_text() == "because\n"
    assert store.move_aside(path, "again") is None


def test_bytes_are_those_of_files(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_bytes(b"123")
    (tmp_path / "y").write_bytes(b"12")
    assert bytes_below(tmp_path) == 5 and bytes_below(tmp_path / "y") == 2


@pytest.mark.parametrize("folder", [".", "cache/base-digests", "runs/demo/iterations/0001", "policies"])
def test_what_dead_writers_left_is_swept(tmp_path, folder):
    store = Store.open(tmp_path / "store")
    (store.root / folder).mkdir(parents=True, exist_ok=True)
    host = next(iter(temporary_name(store.root / "x").name.split(".")[2:])).split("-")[0]
    left = store.root / folder / f".some.json.{host}-1-1-0.tmp"
    left.write_text("half")
    Store.open(store.root)
    assert not left.exists()
