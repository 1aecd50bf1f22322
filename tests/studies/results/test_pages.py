from pathlib import Path

import pytest

from solrl_tasks.reports.html import render_html
from solrl_tasks.reports.markdown import render_markdown
from solrl_tasks.studies.results.comparison import add_measurements, find_results
from solrl_tasks.studies.results.drawings import draw
from solrl_tasks.studies.results.pages import PARTS, MarksError, fill_docs, make_page, marks, sections_of
from solrl_tasks.studies.results.ranks import ProxyRow, Ranking
from solrl_tasks.studies.results.times import ArmTime, RolloutTimes
from tests.support.arm_records import ARMS, ROLES, arm_record

DOCS = Path(__file__).resolve().parents[3] / "docs" / "results.md"


def estimate(mean):
    return {"mean": mean, "stderr": 0.01, "n": 40}


@pytest.fixture(scope="module")
def found():
    records = [
        arm_record(name, seed, [0.3 + rise * min(at, 5) + 0.001 * seed * min(at, 1) for at in range(11)])
        for name, rise in ARMS.items()
        for seed in (1, 2, 3)
    ]
    row = ProxyRow(
        engine="nvfp4-emulated",
        kind="emulated",
        steps=6,
        reference_engine="bf16",
        reference_steps=10,
        spearman=estimate(0.41),
        kendall=estimate(0.3),
        overlap={4: estimate(0.2)},
        match={4: estimate(0.7)},
        contrast=estimate(0.5),
    )
    ranks = Ranking(pools=("a",), reward="scene", hardware="Some GPU", prompts=40, candidates=96, keep=24, rows=(row,))
    arms = (ArmTime(name="fp8-two-stage", kind="real", seconds=25, over_precise=1.55, over_pipeline=2.2),)
    times = RolloutTimes(
        source="random:flux.1-dev",
        family="flux",
        resolution=512,
        hardware="NVIDIA H200",
        command="solrl bench rollout",
        candidates=96,
        keep=24,
        arms=arms,
        published=2.33,
        published_iteration=1.62,
    )
    about = {"command": "python benchmarks/results.py", "recipe": {"name": "results"}, "absent": {"arm-x": "no units"}}
    return add_measurements(find_results(records, ROLES, 10), ranks, (times,), "nvfp4-emulated").model_copy(
        update=about
    )


@pytest.fixture(scope="module")
def pictures(found):
    return draw(found)


def test_everything_is_drawn(pictures):
    names = {"controls-iterations", "controls-gpu-hours", "steps", "candidates", "direct", "speed-ups"}
    assert set(pictures) == names
    assert all(png.startswith(b"\x89PNG") for png in pictures.values())


def test_a_page_has_all_sections_and_renders(found, pictures):
    page = make_page(found, pictures)
    assert set(sections_of(found, pictures)) == set(PARTS) - {"summary"}
    files = render_markdown(page)
    text = files["report.md"].decode()
    assert "<title>Results of the embedded model</title>" in render_html(page)
    assert f"Of {len(found.claims)} published statements of arXiv 2604.06916:" in text and len(found.claims) == 12
    assert "nvfp4-emulated, emulated, 6 steps" in text and "arm-x cannot run here: no units." in text
    assert "Modelled on nominal rates of NVIDIA B200; rewards measured on Some GPU" in text
    assert "Published, NVFP4 in hardware: 2.33 times faster in two stages" in text
    for claim in found.claims:
        assert claim.line in text


def test_costs_of_different_kinds_stand_in_tables_of_their_own(found, pictures):
    section = sections_of(found, pictures)["time-to-reward"]
    captions = [block.caption for block in section.blocks if hasattr(block, "columns")]
    units = [caption.rpartition(", ")[2] for caption in captions]
    assert units == ["iterations"] * 2 + ["modelled GPU-hours"] * 2
    assert any("measured device-seconds" in getattr(block, "markdown", "") for block in section.blocks)


def test_measured_seconds_of_an_emulated_engine_say_so(found, pictures):
    timed = found.model_copy(update={"races": (found.races[0].model_copy(update={"unit": "measured device-seconds"}),)})
    notes = [getattr(block, "note", "") for block in sections_of(timed, pictures)["time-to-reward"].blocks]
    assert "solrl-nvfp4, nvfp4-direct: emulated: its seconds say nothing." in notes[0]
    assert "emulated" not in sections_of(found, pictures)["time-to-reward"].blocks[0].note


def test_mean_curves_of_fewer_seeds_say_that_their_levels_are_their_own(pictures):
    records = [
        arm_record(name, seed, [0.3 + rise * min(at, 5) + 0.001 * seed * min(at, 1) for at in range(11)])
        for name, rise in ARMS.items()
        for seed in ((1, 2, 3) if name == "bf16-24of24" else (1, 2))
    ]
    fewer = find_results(records, ROLES, 10)
    names = [row[0] for row in sections_of(fewer, pictures)["time-to-reward"].blocks[1].rows]
    assert names[:2] == ["bf16-96full, mean curves, own levels of 2 of 3 seeds", "bf16-96full, 2 pairs"]


def test_measured_seconds_say_how_far_equal_work_lies_apart(pictures):
    records = [
        arm_record(name, seed, [0.3 + rise * min(at, 5) + 0.001 * seed for at in range(11)], timed=timed)
        for (name, rise), timed in zip(ARMS.items(), ({"update": 1.0}, *[{"update": 1.5}] * 4), strict=True)
        for seed in (1, 2, 3)
    ]
    sections = sections_of(find_results(records, ROLES, 10), pictures)
    noted = [block for name in ("time-to-reward", "budgets") for block in sections[name].blocks]
    noted = [block for block in noted if "from arm to arm: update 1.00 to 1.50 s." in getattr(block, "note", "")]
    assert len(noted) == 2 and all("measured device-seconds" in block.caption for block in noted)


def test_a_censored_arm_says_how_many_came_there(found, pictures):
    section = sections_of(found, pictures)["time-to-reward"]
    rows = {row[0]: row for row in section.blocks[0].rows}
    assert rows["nvfp4-direct"][-1] == "- (0 of 3)"
    ratios = {row[0]: row for row in section.blocks[1].rows}
    assert ratios["nvfp4-direct, 3 pairs"][-1].startswith(("at most", "unknown"))


@pytest.fixture
def docs(tmp_path):
    text = DOCS.read_text("utf-8")
    for part in PARTS:
        begin, end = marks(part)
        text = f"{text.split(begin)[0]}{begin}\n\nNot measured yet.\n\n{end}{text.split(end)[1]}"
    path = tmp_path / "results.md"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_page_of_the_documentation_is_filled_between_its_marks(docs, found, pictures):
    before = docs.read_text("utf-8")
    fill_docs(docs, found, pictures)
    text = docs.read_text("utf-8")
    assert "Not measured yet." not in text
    for picture in ("steps", "speed-ups"):
        assert f"](images/results-{picture}.png)" in text
        assert (docs.parent / "images" / f"results-{picture}.png").read_bytes() == pictures[picture]
    for part in PARTS:
        begin, end = marks(part)
        own = text.split(begin)[1].split(end)[0]
        assert "## " not in own and own.strip(), part
    outside = [line for line in before.splitlines() if line.startswith(("#", "- **", "Published"))]
    assert all(line in text for line in outside)


def test_filling_twice_changes_nothing(docs, found, pictures):
    fill_docs(docs, found, pictures)
    once = docs.read_bytes()
    fill_docs(docs, found, pictures)
    assert docs.read_bytes() == once


def test_a_part_without_results_keeps_what_it_has(docs, found, pictures):
    fill_docs(docs, found.model_copy(update={"ranking": None, "rank_claims": ()}), pictures)
    begin, end = marks("ranks")
    assert docs.read_text("utf-8").split(begin)[1].split(end)[0].strip() == "Not measured yet."


def test_marks_that_are_missing_or_crossed_are_named(docs, found, pictures):
    good = docs.read_text("utf-8")
    begin, end = marks("steps")
    for wrong in (good.replace(end, ""), good.replace(begin, f"{begin}{begin}"), good.replace(begin, "x") + begin):
        docs.write_text(wrong, encoding="utf-8")
        with pytest.raises(MarksError, match="results: steps"):
            fill_docs(docs, found, pictures)
        assert docs.read_text("utf-8") == wrong
    with pytest.raises(MarksError, match="cannot be read"):
        fill_docs(docs.with_name("absent.md"), found, pictures)


def test_the_committed_page_has_all_marks_and_names_no_others():
    text = DOCS.read_text("utf-8")
    assert text.count("<!-- results: ") == text.count("<!-- end of results: ") == len(PARTS)
