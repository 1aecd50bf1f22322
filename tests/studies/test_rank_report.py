"""The report of a study of ranks: from its result alone, the same for the same, with everything that was asked."""

import math

import pytest

from solrl_tasks.analysis.estimates import Bounded
from solrl_tasks.analysis.saturation import Saturation
from solrl_tasks.reports.html import render_html
from solrl_tasks.reports.page import Commands, Figure, Table, Text
from solrl_tasks.studies.rank_fidelity import make_study, settle_settings
from solrl_tasks.studies.rank_report import (
    FEW,
    caution,
    rank_curves,
    rank_metrics,
    rank_page,
    saturation_words,
    show_bounded,
)
from solrl_tasks.studies.rank_results import RankFidelity, measure_ranks

COMMAND = "solrl study rank-fidelity --steps 1,2"


@pytest.fixture
def result(opened):
    with opened("study") as session:
        asked = {"steps": (1, 2, 3), "engines": ("nvfp4-emulated", "bf16", "fp8"), "references": (3, 4), "prompts": 3}
        study = make_study(session, settle_settings(session.recipe, asked))
        return measure_ranks(session, study, command=COMMAND).result


def test_a_report_is_made_again_from_the_kept_result(result):
    again = RankFidelity.model_validate_json(result.model_dump_json())
    page = rank_page(result, {"seed": 7})
    assert page == rank_page(again, {"seed": 7})
    assert render_html(page) == render_html(rank_page(again, {"seed": 7}))
    assert rank_curves(again) == rank_curves(result)


def test_the_page_holds_what_was_asked_for(result):
    page = rank_page(result, {"seed": 7})
    figures = [block for block in page.blocks if isinstance(block, Figure)]
    tables = [block for block in page.blocks if isinstance(block, Table)]
    assert len(figures) == 2 * 4, "a heat map and three curves for each reference"
    assert all("NVFP4" in str(f.provenance.note).upper() for f in figures if f.provenance is not None)
    assert all(figure.provenance is not None for figure in figures)
    assert "fp8 (emulated)" in figures[0].provenance.note
    by_caption = {table.caption: table for table in tables}
    assert len(by_caption) == len(tables)
    assert len({figure.caption for figure in figures}) == len(figures)
    choice = by_caption["Correlation, and the choice of 4, against 3 steps"]
    assert len(choice.rows) == 9
    assert {"Spearman", "regret in std", "true rank of the worst"} <= set(choice.columns)
    assert sum("(the reference)" in row[0] for row in choice.rows) == 1
    assert any(row[0].startswith("fp8, euler, 32 px (emulated)") for row in choice.rows)
    assert [row[:2] for row in by_caption["References as proxies of longer ones"].rows] == [("3", "4")]
    assert len(by_caption["Saturation"].rows) == 3 * 2 * 2
    assert [block.lines for block in page.blocks if isinstance(block, Commands)] == [(COMMAND,)]
    words = " ".join(block.markdown for block in page.blocks if isinstance(block, Text))
    assert "0.500 at k = 4" in words, "chance of the strict overlap, 4 of 8"
    assert "Against bf16 at 4 steps" in page.summary


def test_few_prompts_are_said_to_be_few(result):
    assert caution(result).startswith(f"{len(result.prompts)} prompts are few: intervals")
    assert caution(result) in rank_page(result, {}).summary
    many = result.model_copy(update={"prompts": result.prompts * 12})
    assert caution(many) == ""


def saturated(result, step, units, low=-0.1, high=0.3):
    left = Bounded(mean=0.1, stderr=0.1, n=units, spread=0.2, low=low, high=high)
    found = Saturation(step=step, left=left, reason="as stored")
    each = tuple(one.model_copy(update={"found": found}) for one in result.saturation)
    return result.model_copy(update={"saturation": each})


def test_the_headline_of_saturation_is_no_surer_than_its_interval(result):
    few, many = saturated(result, 2, 4), saturated(result, 2, FEW)
    gain = "no gain beyond 2 steps is resolved: 0.1 [-0.1, 0.3] (95 %, {} prompts)"
    assert saturation_words(few, few.saturation[0]) == f"unresolved, {gain.format(4)}, which are too few to tell"
    assert saturation_words(many, many.saturation[0]) == gain.format(FEW)
    for one, words in ((few, "unresolved, "), (many, "")):
        page = rank_page(one, {})
        assert f"saturation: {words}no gain beyond 2 steps" in page.summary and "saturation at" not in page.summary
        (table,) = [block for block in page.blocks if isinstance(block, Table) and block.caption == "Saturation"]
        assert {row[3] for row in table.rows} == {"2 (unresolved)" if words else "2"}
        assert {row[5] for row in table.rows} == {saturation_words(one, one.saturation[0])}, "the same in the body"
    rising = saturated(result, None, FEW, low=0.02)
    assert "not reached within 3 steps: more steps still gain 0.1 [0.02, 0.3]" in rank_page(rising, {}).summary
    lone = saturated(result, None, 1)
    assert saturation_words(lone, lone.saturation[0]) == "as stored"


def test_equal_figures_have_no_spread():
    equal = Bounded(mean=0.545, stderr=0.0, n=2, spread=1.1e-16, low=0.545, high=0.545)
    assert show_bounded(equal) == "0.545 [0.545, 0.545] (0)"


def test_curves_go_over_steps_and_hold_no_nan(result):
    curves = rank_curves(result)
    assert [step for step, _ in curves["spearman/bf16 euler 32 px vs 4 steps"]] == [1, 2, 3]
    assert {"spearman_low", "spearman_high", "kendall", "top_match_4", "regret_std"} <= {
        name.split("/")[0] for name in curves
    }
    assert all(math.isfinite(value) for points in curves.values() for _, value in points)
    metrics = rank_metrics(result)
    assert "references_spearman/3 vs 4 steps" in metrics
    assert all(math.isfinite(value) for value in metrics.values())


def test_a_study_in_which_every_proxy_is_the_reference_has_a_page(opened):
    with opened("study") as session:
        asked = {"steps": (3,), "engines": ("bf16",), "references": (3,), "prompts": 1}
        result = measure_ranks(session, make_study(session, settle_settings(session.recipe, asked))).result
    page = rank_page(result, {})
    assert "Every proxy is the reference itself." in render_html(page)
    assert rank_metrics(result) == {}
