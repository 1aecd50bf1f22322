"""Tables: whole, honest about what is scaled or failed, and with the command that made them."""

import pytest

from solrl_tasks.bench.reports.ceiling import CeilingReport
from solrl_tasks.bench.reports.sync import EngineSync, SyncBenchReport
from solrl_tasks.bench.tables import tables_of, to_markdown
from tests.support.bench_reports import environment, model_facts, update_of


def rows(report, table: int = 0) -> dict[str, dict[str, str]]:
    shown = tables_of(report)[table]
    assert all(len(row) == len(shown.columns) for row in shown.rows)
    return {row[0]: dict(zip(shown.columns, row, strict=True)) for row in shown.rows}


def test_arms_stand_beside_their_baselines(rollout_report):
    arm = rows(rollout_report)["fp8-two-stage"]
    assert arm["s"] == "25.00 (scaled)"
    assert (arm["x bf16-full"], arm["x eager pipeline"], arm["images/s"]) == ("1.60", "2.40", "4.80")
    assert arm["GiB"] == "60.0"


def test_an_arm_that_failed_says_why(rollout_report):
    assert rows(rollout_report)["nvfp4-two-stage"]["s"] == "failed: EngineError: engine 'nvfp4' cannot run"


def test_shares_of_peak_and_floor_are_those_of_the_hardware(rollout_report):
    network = tables_of(rollout_report)[2].rows
    (fp8,) = [row for row in network if row[:2] == ("fp8", "6")]
    seconds = 3.6 / (24 * 6)
    assert fp8[4] == f"{seconds * 1e3:.2f}"
    assert fp8[6] == f"{100 * 20e12 / seconds / 790e12:.0f} %"
    floor = 16e12 / 1370e12 + 4e12 / 790e12
    assert fp8[7] == f"{100 * floor / seconds:.0f} %"


def test_unknown_hardware_has_no_shares(rollout_report):
    report = rollout_report.model_copy(update={"environment": environment("Some other card")})
    network = tables_of(report)[2]
    assert {row[6] for row in network.rows} == {row[7] for row in network.rows} == {"-"}
    assert "No peak is known for Some other card" in network.notes[0]


def test_notes_tell_the_ceiling_the_overhead_and_the_scaling(rollout_report):
    notes = " ".join(tables_of(rollout_report)[0].notes)
    assert "Two stages cost +25.0 % over fp8 alone at full steps." in notes
    assert "without any quantisation by 1.18" in notes
    assert "Scaled: one chunk and then 3 chunks were timed" in notes


def test_markdown_has_where_when_and_the_command_but_no_file_name(rollout_report):
    page = to_markdown(rollout_report)
    assert "NVIDIA H200, driver 580.1; torch 2.11.0; 2026-01-02." in page
    assert "```bash\nsolrl bench rollout\n```" in page
    assert "| fp8-two-stage | 25.00 (scaled) | 1.60 |" in page


@pytest.mark.parametrize("command", ["solrl bench ceiling --json=a.json", "solrl bench ceiling --json a.json"])
def test_arithmetic_has_no_place_and_is_the_same_everywhere(command):
    report = CeilingReport(
        environment=environment("Somewhere", command),
        models=(model_facts(),),
        candidates=96,
        keep=24,
        explore_steps=6,
        full_steps=10,
    )
    page = to_markdown(report)
    assert "Somewhere" not in page
    assert "```bash\nsolrl bench ceiling\n```" in page
    assert "| rollout, free exploration | 4.00 |" in page


def test_updates_and_syncs():
    update = update_of()
    (row,) = rows(update).values()
    assert (row["rows"], row["s a row"], row["s an update"], row["peak GiB"]) == ("48", "0.500", "24.00", "70.0")
    sync = EngineSync(
        engine="fp8",
        kind="real",
        execution="compiled",
        first_seconds=0.5,
        first_tensors=418,
        seconds=(0.06, 0.07, 0.05),
        hash_seconds=0.02,
        tensors=266,
        replaced=418,
        graphs=3,
        new_graphs=0,
        bytes=9 * 2**30,
    )
    report = SyncBenchReport(
        environment=environment(), model=model_facts(), lora="rank 32", engines=(sync,), failed={"nvfp4": "no\nwhy"}
    )
    (shown,) = tables_of(report)
    assert shown.rows[0] == ("fp8", "compiled", "500", "418", "60", "20", "266", "3", "0", "9.00")
    assert shown.rows[1][:2] == ("nvfp4", "failed: why")
