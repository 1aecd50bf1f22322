import dataclasses
import json

import numpy as np
import pytest

from solrl_tasks.reports import images, stored
from solrl_tasks.reports.page import Page, Pictures
from solrl_tasks.reports.stored import (
    StudyFigures,
    draw,
    has_report,
    read_report,
    report_files,
    report_folder,
    write_report,
)
from solrl_tasks.store import atomic
from solrl_tasks.store.errors import DamagedError, MissingObjectError
from solrl_tasks.store.root import Store

FIGURES = StudyFigures({"gain": 0.25}, {"rank": [(2, 0.05), (4, 0.26)]})


@pytest.fixture
def store(tmp_path) -> Store:
    return Store.open(tmp_path / "store")


def same(one: Page, other: Page) -> bool:
    def comparable(page: Page) -> list[object]:
        blocks = [
            (type(block), dataclasses.astuple(dataclasses.replace(block, images=np.zeros((1, 1, 1, 1, 3), np.uint8),
             row_labels=("",), column_labels=("",), captions=())), block.images.tolist(), block.captions)
            if isinstance(block, Pictures) else block
            for block in page.blocks
        ]  # fmt: skip
        return [page.title, page.summary, [section.title for section in page.sections], repr(blocks)]

    return comparable(one) == comparable(other)


def test_what_was_written_is_read(store, page):
    html = write_report(store, "study-x", page, FIGURES)
    found = read_report(store, "study-x")
    assert same(found.page, page)
    assert found.figures is not None
    assert dict(found.figures.metrics) == {"gain": 0.25}
    assert found.figures.curves == {"rank": [(2, 0.05), (4, 0.26)]}
    assert html.read_bytes() == draw(found.page)["report.html"], "drawn again it is the same, byte for byte"


def test_writing_twice_changes_nothing(store, page):
    write_report(store, "x", page)
    folder = report_folder(store, "x")
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}
    write_report(store, "x", page)
    after = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}
    before.pop("page.json")
    after.pop("page.json")
    assert before == after


def test_pictures_that_no_page_names_any_more_go(store, page):
    write_report(store, "x", page)
    assert len(list(report_folder(store, "x").glob("*.png"))) == 2
    write_report(store, "x", Page("T", "s", ()))
    assert not list(report_folder(store, "x").glob("*.png"))


def test_a_kill_while_writing_leaves_a_report_that_can_be_read(store, page, monkeypatch):
    """Whatever was written last, what is read is the old page or the new one, whole."""
    old = Page("Old", "s", page.sections[:1])
    writes = atomic.write_bytes

    class Killed(BaseException):
        pass

    for allowed in range(8):
        write_report(store, "x", old)
        left = [allowed]

        def dying(path, data, left=left):
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            writes(path, data)

        monkeypatch.setattr(atomic, "write_bytes", dying)
        try:
            write_report(store, "x", page)
            died = False
        except Killed:
            died = True
        monkeypatch.setattr(atomic, "write_bytes", writes)
        found = read_report(store, "x").page
        assert same(found, page) or (died and same(found, old))
    assert not died, "the last round was not killed"


def test_a_report_that_is_not_there(store):
    assert not has_report(store, "x")
    assert report_files(store, "x") == {}
    with pytest.raises(MissingObjectError, match="'x' has no report"):
        read_report(store, "x")


def damage_json(folder):
    (folder / "page.json").write_text("{")


def damage_picture(folder):
    path = next(folder.glob("*.png"))
    path.write_bytes(path.read_bytes()[:-4] + b"1234")


def lose_picture(folder):
    next(folder.glob("*.png")).unlink()


def change(folder, **changes):
    content = atomic.read_sealed(folder / "page.json")
    atomic.write_sealed(folder / "page.json", {**content, **changes})


@pytest.mark.parametrize(
    "damage",
    [
        damage_json,
        damage_picture,
        lose_picture,
        lambda folder: change(folder, format=99),
        lambda folder: change(folder, page={"title": "T"}),
        lambda folder: change(
            folder, page={"title": "T", "summary": "", "sections": [{"title": "", "blocks": [{"kind": "html"}]}]}
        ),
        lambda folder: change(
            folder,
            page={
                "title": "T",
                "summary": "",
                "sections": [{"title": "", "blocks": [{"kind": "figure", "caption": "", "png": "../x", "alt": "a"}]}],
            },
        ),
    ],
)
def test_a_damaged_report_is_told(store, page, damage):
    write_report(store, "x", page, FIGURES)
    damage(report_folder(store, "x"))
    with pytest.raises(DamagedError):
        read_report(store, "x")


def test_the_page_is_json_and_no_pickle(store, page):
    write_report(store, "x", page)
    content = json.loads((report_folder(store, "x") / "page.json").read_text())
    assert content["content"]["format"] == stored.FORMAT


def test_what_people_open_is_all_but_the_data(store, page):
    write_report(store, "x", page, beside={"recipe.yaml": b"name: x\n"})
    assert set(report_files(store, "x")) == {*draw(page), "recipe.yaml"}


def test_figures_are_finite_and_steps_stand_once():
    with pytest.raises(ValueError, match="not finite: curve b, gain"):
        StudyFigures({"gain": float("nan"), "a": 1.0}, {"b": [(1, float("inf"))]})
    with pytest.raises(ValueError, match="curve b has two values at a step"):
        StudyFigures({}, {"b": [(1, 0.1), (1, 0.2)]})


def test_a_run_id_cannot_lead_out_of_the_store(store, page):
    with pytest.raises(ValueError, match="run_id"):
        write_report(store, "../x", page)


def test_sheets_are_cut_where_they_were_joined():
    parts = np.random.default_rng(1).integers(0, 255, (2, 3, 4, 5, 3), dtype=np.uint8)
    assert (images.cut(images.decode(images.encode(images.sheet(parts))), 2, 3) == parts).all()
    with pytest.raises(ValueError, match="no 3 rows of 3"):
        images.cut(images.sheet(parts), 3, 3)
    assert images.size(images.encode(images.sheet(parts))) == (15, 8)
