"""Reports survive a file; what is none is refused."""

import pytest

from solrl_tasks.bench.reports.file import ReportError, read_report, write_report


def test_a_report_survives_its_file(rollout_report, tmp_path):
    path = tmp_path / "deeper" / "report.json"
    write_report(rollout_report, path)
    assert read_report(path) == rollout_report


@pytest.mark.parametrize("content", ["", "[]", '{"bench": "rollout"}', '{"bench": "other"}', "{"])
def test_what_is_no_report_is_refused_by_name(content, tmp_path):
    path = tmp_path / "broken.json"
    path.write_text(content)
    with pytest.raises(ReportError, match=r"broken\.json is no report"):
        read_report(path)


def test_an_absent_report_is_refused_by_name(tmp_path):
    with pytest.raises(ReportError, match=r"absent\.json cannot be read"):
        read_report(tmp_path / "absent.json")
