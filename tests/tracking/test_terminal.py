import io
import re

import pytest
from rich.console import Console

from solrl_tasks.stages.outcome import StageOutcome
from solrl_tasks.tracking.devices import device_kind
from solrl_tasks.tracking.summary import StageCost
from solrl_tasks.tracking.terminal import RichReporter, eval_names, metrics_table, results, value


def outcome(stage="explore", state="Completed", message="384 candidates [new]"):
    return StageOutcome(stage=stage, state=state, message=message, seconds=2.5)


def plain(width=80):
    return Console(file=io.StringIO(), width=width, force_terminal=False, highlight=False)


def terminal(width=80):
    return Console(file=io.StringIO(), width=width, force_terminal=True, highlight=False, legacy_windows=False)


def text(console):
    return console.file.getvalue()


def show(thing, width=80):
    console = plain(width)
    console.print(thing)
    return text(console)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_a_pipe_gets_one_plain_line_a_stage():
    console = plain()
    with RichReporter(console, iterations=2) as reporter:
        for step in (0, 1):
            reporter.stage_started(step, "explore", "8 prompts")
            reporter.progress(step, "explore", 1, 4, "blocks")
            reporter.stage_finished(step, outcome(state="Reused" if step else "Completed"))
    assert text(console).splitlines() == [
        "baseline: the untrained policy",
        "  explore     Completed     2.5 s   384 candidates [new]",
        "iteration 1 of 2",
        "  explore     Reused        2.5 s   384 candidates [new]",
    ]


def test_a_pipe_gets_long_messages_whole():
    console = plain(width=40)
    reporter = RichReporter(console)
    reporter.note("word " * 50)
    reporter.stage_finished(1, outcome(message="long " * 30))
    assert len(text(console).splitlines()) == 3


def test_a_pipe_gets_progress_now_and_then():
    console, clock = plain(), Clock()
    reporter = RichReporter(console, clock=clock)
    reporter.stage_started(3, "explore", "")
    for done in range(101):
        clock.now += 0.3
        reporter.progress(3, "explore", done, 100, "blocks")
    lines = text(console).splitlines()[1:]
    assert len(lines) == 2
    assert all(re.fullmatch(r"  explore     \d+ of 100 blocks", line) for line in lines)


def test_a_terminal_gets_a_bar_that_goes_away():
    console = terminal()
    with RichReporter(console) as reporter:
        reporter.stage_started(1, "explore", "8 prompts")
        reporter.progress(1, "explore", 1, 4, "blocks")
        reporter.progress(1, "explore", 4, 4, "blocks")
        reporter.stage_finished(1, outcome())
    shown = text(console)
    assert "1/4" in shown or "4/4" in shown
    assert "8 prompts" in shown
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1


def test_a_stage_that_fails_gives_the_terminal_back():
    console = terminal()
    with pytest.raises(KeyboardInterrupt), RichReporter(console) as reporter:
        reporter.progress(1, "explore", 1, 4, "blocks")
        raise KeyboardInterrupt
    assert text(console).endswith("\x1b[?25h") or text(console).rfind("\x1b[?25h") > text(console).rfind("\x1b[?25l")


def test_a_line_never_breaks_a_terminal_line():
    console = terminal(width=50)
    RichReporter(console).stage_finished(1, outcome(message="long " * 30))
    assert len(text(console).splitlines()) == 2


def test_results_hold_what_a_reader_looks_for(history):
    shown = show(results(history, "cpu"))
    row = next(line for line in shown.splitlines() if line.split()[:1] == ["3"])
    assert row.split() == ["3", "0.293", "0.323", "0.70", "-", "0.330", "±", "0.011"]
    assert "CPU device-hours" in shown
    assert "GPU-hours" in show(results(history, "cuda"))
    unknown = show(results(history, device_kind({})))
    assert "of which device is not known" in unknown and "GPU" not in unknown and "CPU" not in unknown


def test_results_fit_eighty_columns_with_every_stage(make_summary):
    stages = ("quantize", "explore", "select", "regenerate", "audit", "update", "evaluate")
    cost = StageCost(seconds=123.4, device_seconds=1, attributed_seconds=1, state="Completed")
    shown = show(results([make_summary(1, stages=dict.fromkeys(stages, cost))], "cpu"))
    assert all(name in shown for name in stages)
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert "863.8" in shown


def test_stages_stand_in_their_order_even_if_the_first_summaries_lack_some(make_summary):
    cost = StageCost(seconds=1, device_seconds=1, attributed_seconds=1, state="Completed")
    stages = dict.fromkeys(("explore", "audit", "evaluate"), cost)
    short = {"evaluate": cost}
    shown = show(results([make_summary(0, stages=short), make_summary(1, stages=stages)], "cpu"))
    assert re.search(r"explore\s+audit\s+evaluate\s+all", shown)


def test_an_alarm_is_told(make_summary):
    calm, loud = make_summary(1), make_summary(2, metrics={"rank/alarm": 1.0})
    assert "alarm" not in show(results([calm], "cpu"))
    assert "did not rank the kept seeds in iteration 2" in show(results([calm, loud], "cpu"))


def test_no_summary_is_said():
    assert "no iteration" in show(results([], "cpu"))


def test_gains_stand_in_a_column_of_their_own(make_summary):
    summary = make_summary(1, metrics={"eval/gain_scene": 0.123, "eval/scene": 0.2}, stderr={"eval/gain_scene": 0.045})
    assert eval_names([summary]) == ["scene"]
    assert "0.123 ± 0.045" in show(results([summary], "cpu"))


def test_the_metrics_table_has_every_metric_and_error(make_summary):
    summary = make_summary(2)
    shown = show(metrics_table(summary))
    assert all(name in shown for name in summary.metrics)
    assert "0.011" in shown


def test_values_with_and_without_error(make_summary):
    summary = make_summary(1)
    assert value(summary, "eval/scene") == "0.310 ± 0.011"
    assert value(summary, "rank/kept_spearman", 2) == "0.70"
    assert value(summary, "rank/audit_spearman") == "-"


def test_held_out_rewards_stand_in_the_recipes_order_and_the_first_has_its_gain_shown(make_summary):
    metrics = {f"eval/{name}": 0.5 for name in ("a", "b", "c")} | {f"eval/gain_{name}": 0.1 for name in ("a", "b", "c")}
    summary = make_summary(1, metrics=metrics)
    assert eval_names([summary], ["c", "a"]) == ["c", "a", "b"]
    titles = show(results([summary], "cpu", ["c", "a"])).splitlines()
    named = next(line for line in titles if line.split()[:1] == ["iter"])
    assert named.split()[-4:] == ["c", "a", "b", "c"]
