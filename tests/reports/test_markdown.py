import re

import pytest
from markdown_it import MarkdownIt

from solrl_tasks.reports import images
from solrl_tasks.reports.markdown import render_linked, render_markdown
from solrl_tasks.reports.page import Page, Section, Settings, Table


@pytest.fixture
def text(page) -> str:
    return render_markdown(page)["report.md"].decode("utf-8")


def test_pictures_lie_beside_the_text_under_the_names_it_gives(page, text):
    files = render_markdown(page)
    named = re.findall(r"\]\(([0-9a-f]+\.png)\)", text)
    assert set(named) == set(files) - {"report.md"}
    assert len(named) == 2
    assert all(images.name(files[name]) == name for name in named)


def test_cells_stay_in_their_columns(hostile):
    page = Page("T", "s", (Section("S", (Table("Costs", ("a", "b"), ((hostile, "2"), ("3", "4"))),)),))
    text = render_markdown(page)["report.md"].decode("utf-8")
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    assert html.count("<td") == 4
    assert "<script" not in html
    assert "<a " not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; " in html


def test_names_of_settings_stay_as_they_are_in_their_cell():
    names = {"a|b": 1, "x_y_z": 2, "<b>": 3, "`tick`": {"in_ner": "v|w"}}
    text = render_markdown(Page("T", "s", (Section("S", (Settings(names),)),)))["report.md"].decode("utf-8")
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    cells = re.findall(r"<td>(.*?)</td>", html)
    assert cells == ["a|b", "1", "x_y_z", "2", "&lt;b&gt;", "3", "`tick`.in_ner", "v|w"]


def test_commands_cannot_end_their_block(text):
    html = MarkdownIt("commonmark").render(text)
    assert "echo '&lt;/code&gt;&lt;script&gt;' ```" in html


def test_the_line_of_every_figure_is_there(text):
    assert text.count("engine nvfp4-emulated (emulated); 8 seeds") == 3


def test_pictures_can_lie_elsewhere_or_be_left_out(page):
    linked = render_linked(page, lambda name: f"http://tracker/{name}")
    assert linked.count("](http://tracker/") == 2
    without = render_linked(page, lambda _: "")
    assert "rises over" not in without
    assert "*Curve*" in without
