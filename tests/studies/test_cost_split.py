"""The split of a rollout's cost, from reports made by hand."""

import math

import pytest

from solrl_tasks.bench.reports.file import write_report
from solrl_tasks.bench.reports.rollout import Arm, RolloutReport, Split
from solrl_tasks.bench.reports.update import UpdateReport
from solrl_tasks.reports.page import Table
from solrl_tasks.stages.recorded import StudyError
from solrl_tasks.studies.cost_split import split_costs, split_page
from tests.support.bench_reports import model_facts, rollout_of, sampling_of, update_of


def arm(name: str, seconds: float, overlap: float = 0.0) -> Arm:
    split = Split(
        text=0.1, sync=0.1, denoise_explore=1.0, denoise_regenerate=1.0, decode=1.0, score=1.0, overlap=overlap
    )
    return Arm(name=name, images=96, kept=24, seconds=seconds, split=split)


PIPELINE = Arm(name="eager-pipeline", images=96, kept=24, seconds=60.0)
ARMS = (
    PIPELINE,
    arm("bf16-full", 36.0, 4.0),
    arm("bf16-two-stage", 22.0, 3.0),
    arm("fp8-two-stage", 16.0, 4.0),
    arm("fp8-full", 28.0, 2.0),
)


def rollout(*arms: Arm, kind: str = "real") -> RolloutReport:
    return rollout_of(arms, {"fp8@6x24": sampling_of("fp8", kind=kind), "bf16@10x24": sampling_of("bf16")})


def update() -> UpdateReport:
    return update_of(first_seconds=9.0, seconds=(7.0, 8.0, 9.0))


def test_the_whole_chain():
    (split,) = split_costs([rollout(*ARMS)])
    factors = [link.factor for link in split.chain.links]
    assert factors == pytest.approx([60 / 40, 40 / 25, 25 / 20, 20 / 16])
    assert split.chain.total == pytest.approx(60 / 16)
    assert math.prod(factors) == pytest.approx(60 / 16)
    assert (split.explorer, split.real, split.whole) == ("fp8", True, None)
    assert any("fp8 alone is 1.33 times" in note for note in split.notes)
    assert any("bench update" in note for note in split.notes)


def test_the_update_dilutes_every_factor():
    (split,) = split_costs([update(), rollout(*ARMS)])
    assert split.update_seconds == pytest.approx(8.0)
    assert split.whole is not None
    assert split.whole.total == pytest.approx((60 + 8) / (16 + 8))
    for link, rolled in zip(split.whole.links, split.chain.links, strict=True):
        assert 1 < link.factor < rolled.factor


def test_an_update_of_another_model_is_not_taken():
    other = update().model_copy(update={"model": model_facts().model_copy(update={"resolution": 64})})
    (split,) = split_costs([rollout(*ARMS), other])
    assert split.whole is None


def test_absent_arms_merge_causes_and_are_named():
    (split,) = split_costs([rollout(PIPELINE, arm("fp8-two-stage", 16.0, 4.0))])
    assert [len(link.causes) for link in split.chain.links] == [3, 1]
    assert split.chain.total == pytest.approx(60 / 16)
    assert any(note.startswith("Not measured: bf16-full") for note in split.notes)
    assert any("Not told apart" in note for note in split.notes)


def test_without_the_pipeline_the_chain_begins_at_the_compiled_engine():
    failed = Arm(name="eager-pipeline", error="Traceback …\nOutOfMemoryError: 200 GiB")
    (split,) = split_costs([rollout(failed, *ARMS[1:])])
    assert split.chain.total == pytest.approx(40 / 16)
    assert any("OutOfMemoryError: 200 GiB" in note for note in split.notes)
    assert any("Nothing measured speaks of: compiled engine" in note for note in split.notes)


def test_without_low_precision_there_is_no_such_factor():
    (split,) = split_costs([rollout(*ARMS[:3])])
    assert (split.explorer, split.chain.total) == ("bf16", pytest.approx(60 / 22))
    assert len(split.chain.links) == 3
    assert any("precision has no factor" in note for note in split.notes)


def test_each_explorer_has_a_chain_and_an_emulated_one_is_called_so():
    more = arm("nvfp4-emulated-two-stage", 90.0, -1.0)
    splits = split_costs([rollout(*ARMS, more, kind="emulated")])
    assert [split.explorer for split in splits] == ["fp8", "nvfp4-emulated"]
    assert not splits[0].real
    page = split_page(splits)
    assert "emulated" in page.summary
    assert len(page.sections) == 2
    assert any("factor below 1" in note for note in splits[1].notes)


def test_the_page_has_the_product_and_the_parts():
    page = split_page(split_costs([rollout(*ARMS), update()]))
    factors, whole, parts = (block for block in page.blocks if isinstance(block, Table))
    assert factors.rows[-1] == ("product", "eager-pipeline", "fp8-two-stage", "3.75", "")
    assert whole.rows[-1][3] == "2.83"
    assert [row[0] for row in parts.rows] == ["bf16-full", "bf16-two-stage", "fp8-two-stage", "fp8-full"]
    assert factors.provenance is not None and factors.provenance.engine == "fp8"


def test_reports_without_two_arms_are_refused():
    with pytest.raises(StudyError, match="no report of a rollout"):
        split_costs([update()])
    with pytest.raises(StudyError, match="two states that were measured"):
        split_costs([rollout(PIPELINE)])


def test_the_command(tmp_path, capsys):
    from typer.testing import CliRunner

    from flows.cli import app

    write_report(rollout(*ARMS), tmp_path / "rollout.json")
    done = CliRunner().invoke(app, ["study", "cost-split", str(tmp_path / "rollout.json"), "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "3.75" in done.output
    assert "3.75" in (tmp_path / "report.html").read_text("utf-8")
    assert "3.75" in (tmp_path / "report.md").read_text("utf-8")
