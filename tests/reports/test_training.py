"""The pages of runs from summaries alone."""

import re

import numpy as np
import pytest

from solrl_tasks.config.recipe import Recipe
from solrl_tasks.reports import images
from solrl_tasks.reports.evaluation import evaluation_page
from solrl_tasks.reports.html import render_html
from solrl_tasks.reports.page import Commands, Figure, Page, Settings, Table, Text
from solrl_tasks.reports.run_record import RunRecord
from solrl_tasks.reports.training import training_page
from solrl_tasks.reports.training_curves import spaced
from solrl_tasks.tracking.summary import StageCost, Summary

ENVIRONMENT = {"hardware": "NVIDIA H200", "device_class": "sm_90", "threads": 4, "libraries": {"torch": "2.13.0"}}


def summary(step: int, gain: float = 0.02, **changes) -> Summary:
    metrics = {"eval/scene": 0.3 + gain * step, "gpu_hours/spent": 0.1 * step, "gpu_hours/attributed": 0.08 * step}
    errors = {"eval/scene": 0.02}
    if step:
        metrics |= {"eval/gain_scene": gain * step, "reward/proxy": 0.2, "reward/bf16": 0.4, "rank/kept_spearman": 0.6}
        errors |= {"eval/gain_scene": 0.01, "reward/bf16": 0.03}
        metrics |= {"rank/alarm": float(step == 2), "select/invalid_candidates": 3.0, "train/loss": 4.0}
    cost = StageCost(seconds=2.0, device_seconds=1.5, attributed_seconds=1.0, state="Completed")
    stages = dict.fromkeys(("explore", "update", "evaluate") if step else ("evaluate",), cost)
    made = Summary(run_id="demo", step=step, timestamp_ms=1000 + step, metrics=metrics, stderr=errors, stages=stages)
    return made.model_copy(update=changes)


@pytest.fixture
def run(tmp_path):
    def make(steps: int = 3, asked: int = 3, **changes) -> RunRecord:
        summaries = changes.pop("summaries", [summary(step) for step in range(steps + 1)])
        recipe = changes.pop("recipe", Recipe(iterations=asked))
        environment = changes.pop("environment", ENVIRONMENT)
        return RunRecord("demo", recipe, summaries, "finished", environment, lambda step: tmp_path / f"{step:04d}")

    return make


def titles(page: Page) -> list[str]:
    return [section.title for section in page.sections]


def table(page: Page, caption: str) -> Table:
    return next(block for block in page.blocks if isinstance(block, Table) and block.caption.startswith(caption))


def test_the_answer_comes_first_with_its_interval(run):
    page = training_page(run())
    assert "Held-out **scene** went from 0.300 ± 0.020 to 0.360 ± 0.020: a gain of **0.060**" in page.summary
    low, high = map(float, re.search(r"interval (-?[\d.]+) to (-?[\d.]+)\)", page.summary).groups())
    assert low < 0.060 < high
    assert (high - low) / 2 == pytest.approx(2.04 * 0.01, abs=6e-4), "Student's t of 32 prompts"
    assert "3 of 3 iterations, finished" in page.summary
    assert "nvfp4-emulated (emulated)" in page.summary
    assert "GPU-hours: 0.3000 spent by this run, 0.2400 attributed" in page.summary


def test_a_gain_that_is_none_is_told_so(run):
    page = training_page(run(summaries=[summary(step, gain=0.001) for step in range(3)]))
    assert "which does not tell it from none" in page.summary


def test_a_run_that_evaluated_nothing_says_so(run):
    bare = [summary(step, metrics={"reward/proxy": 0.2}, stderr={}) for step in range(1, 3)]
    page = training_page(run(summaries=bare))
    assert page.summary.startswith("No gain was measured")
    assert "Held-out rewards" not in titles(page)


def test_a_baseline_alone_is_a_page(run):
    page = training_page(run(steps=0))
    assert "No gain was measured" in page.summary
    assert "Samples and ranks" not in titles(page)
    render_html(page)


def test_every_figure_and_measured_table_says_where_it_comes_from(run):
    page = training_page(run())
    figures = [block for block in page.blocks if isinstance(block, Figure)]
    assert len(figures) == 6
    for figure in figures:
        assert figure.provenance is not None
        assert figure.provenance.hardware == "NVIDIA H200"
    assert table(page, "Before and after").provenance.engine == "bf16"


def test_pictures_of_the_store_are_shown_and_lost_ones_told(run, tmp_path):
    shown = [summary(0), summary(1, images=["grid.png"]), summary(2, images=["grid.png", "heldout.png"])]
    (tmp_path / "0001").mkdir()
    (tmp_path / "0001" / "grid.png").write_bytes(images.encode(np.zeros((8, 8, 3), dtype=np.uint8)))
    page = training_page(run(summaries=shown))
    section = next(section for section in page.sections if section.title == "Images")
    assert [type(block) for block in section.blocks] == [Text, Figure, Text]
    assert "not in the store any more" in section.blocks[0].markdown


def test_what_went_wrong_is_counted_and_notes_are_words(run):
    noted = [summary(0), summary(1), summary(2, notes=["reward <b>scene</b> failed\non *3* images"])]
    page = training_page(run(summaries=noted))
    rows = {row[0]: row[1:] for row in table(page, "Checks").rows}
    assert rows["rank alarm: the proxy did not rank the kept seeds"] == ("1", "2")
    assert rows["explored candidates without a valid score"] == ("6", "1, 2")
    assert rows["micro-batches skipped: the loss was not finite"] == ("not known", "")
    assert "iteration 2: reward &lt;b&gt;scene&lt;/b&gt; failed on *3* images" in render_html(page)


def test_commands_and_settings_let_it_be_had_again(run):
    page = training_page(run())
    commands = next(block for block in page.blocks if isinstance(block, Commands)).lines
    assert [line.split()[:2] for line in commands] == [
        ["solrl", name] for name in ("train", "train", "export", "evaluate", "report")
    ]
    settings = next(block for block in page.blocks if isinstance(block, Settings))
    assert Recipe.model_validate(settings.values) == Recipe(iterations=3)


def test_costs_add_up(run):
    rows = {row[0]: row[1:] for row in table(training_page(run()), "Seconds by stage").rows}
    assert rows["explore"] == ("6.0", "4.5", "3.0", "30.0 %")
    assert rows["all"] == ("20.0", "15.0", "10.0", "100.0 %")


def test_long_runs_show_equally_spaced_iterations(run):
    page = training_page(run(steps=200, asked=200))
    rows = table(page, "Iterations").rows
    assert len(rows) == 60
    assert (rows[0][0], rows[-1][0]) == ("1", "200")
    assert "60 of 200" in table(page, "Iterations").note
    many = [summary(step) for step in range(500)]
    steps = [found.step for found in spaced(many, 60)]
    assert steps == sorted(set(steps))
    assert len(steps) == 60


def test_hardware_that_was_not_recorded_is_said_to_be_so(run):
    html = render_html(training_page(run(environment={})))
    assert "hardware not recorded" in html


def test_the_same_store_makes_the_same_page(run):
    assert render_html(training_page(run())) == render_html(training_page(run()))


def test_an_evaluation_has_a_page(run):
    metrics = {
        "eval/scene": 0.4, "eval/gain_scene": 0.05, "compare/reference_scene": 0.35, "compare/low_scene": 0.01,
        "compare/high_scene": 0.09, "compare/better_scene": 0.75, "policy/diversity": 0.3,
    }  # fmt: skip
    page = evaluation_page(run(summaries=[summary(3, metrics=metrics, stderr={}, notes=["a 3 (ema), against | base"])]))
    found = table(page, "Policy and reference")
    assert found.rows == (("scene", "0.4000", "0.3500", "0.0500", "0.0100 to 0.0900", "75 % of prompts"),)
    assert "against | base" in render_html(page)


def test_a_run_without_anything_is_refused(run):
    with pytest.raises(ValueError, match="committed nothing"):
        run(summaries=[])
