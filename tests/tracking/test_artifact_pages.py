import re

import pytest

from solrl_tasks.tracking.artifacts import (
    ROWS,
    alarm_page,
    artifact_key,
    iteration_page,
    iteration_rows,
    stage_rows,
)
from solrl_tasks.tracking.mlflow_run import MlflowRun

SERVER = "http://127.0.0.1:5000"
SHOWN = MlflowRun(run_id="abc", experiment_id="1", uri=SERVER)


@pytest.mark.parametrize("run", ["demo", "My_Run.2", "A--b__C", "-x-"])
def test_keys_are_what_prefect_takes(run):
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", artifact_key(run, "rank-alarm"))


def test_the_page_has_headline_links_images_and_every_metric(make_summary):
    summary = make_summary(3, images=["grid.png"], notes=["12 images failed | *why*"])
    page = iteration_page(summary, "cpu", SHOWN)
    assert "# demo: iteration 3" in page
    assert SHOWN.url in page
    assert f"![samples/iter-0003.png]({SERVER}/get-artifact?path=samples/iter-0003.png&run_uuid=abc)" in page
    assert "0.330 ± 0.011" in page
    assert all(f"`{name}`" in page for name in summary.metrics)
    assert "CPU device-hours" in page
    assert r"12 images failed \| \*why\*" in page


def test_the_page_does_without_mlflow(make_summary):
    page = iteration_page(make_summary(3, images=["grid.png"]), "cuda", None)
    assert "http" not in page
    local = MlflowRun(run_id="a", experiment_id="1", uri="sqlite:///x")
    assert iteration_page(make_summary(3, images=["grid.png"]), "cuda", local) == page


def test_every_row_of_a_table_has_as_many_cells_as_its_head(make_summary):
    for page in (iteration_page(make_summary(2), "cpu", SHOWN), alarm_page(make_summary(2))):
        for block in re.findall(r"(?:^\|.*\n)+", page, re.M):
            assert len({line.count("|") for line in block.splitlines()}) == 1


def test_stage_rows_name_state_and_result(make_summary):
    summary = make_summary(1)
    summary = summary.model_copy(update={"refs": {"explore": summary.refs["pool"]}})
    rows = stage_rows(summary)
    assert [row["stage"] for row in rows] == list(summary.stages)
    assert rows[1]["made"] == f"pools {summary.refs['explore'].key}"
    assert rows[0]["made"] == ""


def test_iteration_rows_have_one_shape_and_an_end(make_summary):
    rows = iteration_rows([make_summary(step) for step in range(ROWS + 5)])
    assert len(rows) == ROWS
    assert len({tuple(row) for row in rows}) == 1
    assert rows[-1]["held-out scene"].endswith("± 0.011")
    assert rows[-1]["rank audited"] == ""


def test_the_alarm_says_what_was_found(make_summary):
    page = alarm_page(make_summary(4, metrics={"rank/kept_spearman": 0.04, "rank/alarm": 1.0}))
    assert "iteration 4" in page
    assert "0.04" in page
    assert "explore.steps" in page
