"""The page as browsers see it, by a parser: what it loads, what it runs, and whether everybody can read it."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from solrl_tasks.reports.html import render_html
from solrl_tasks.reports.page import Page, Section, Table, Text

EMPTY = {"meta", "img", "br", "hr", "link", "input"}


class Elements(HTMLParser):
    """Every element with its attributes, checking that they close in order; and all text."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def all(self, *tags: str) -> list[dict[str, str]]:
        return [attributes for tag, attributes in self.found if tag in tags]


def parse(html: str) -> Elements:
    elements = Elements()
    elements.feed(html)
    elements.close()
    assert elements.open == []
    return elements


@pytest.fixture
def elements(page) -> Elements:
    return parse(render_html(page))


def test_nothing_is_loaded_and_nothing_runs(elements):
    assert not elements.all("script", "link", "iframe", "object", "embed", "base", "form", "audio", "video", "source")
    for _, attributes in elements.found:
        assert not [name for name in attributes if name.startswith("on") or name in ("srcset", "background")]
    assert all(image["src"].startswith("data:image/png;base64,") for image in elements.all("img"))
    policy = next(meta["content"] for meta in elements.all("meta") if "http-equiv" in meta)
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def test_links_lead_into_the_page_or_to_the_web_alone(elements):
    targets = [link["href"] for link in elements.all("a")]
    assert targets
    assert all(re.match(r"#|https?://", target) for target in targets)
    places = {attributes["id"] for _, attributes in elements.found if "id" in attributes}
    assert {target[1:] for target in targets if target.startswith("#")} <= places


def test_the_style_names_no_address(page):
    style = re.search(r"<style>(.*?)</style>", render_html(page), re.DOTALL)
    assert style is not None
    assert "url(" not in style[1]
    assert "@import" not in style[1]
    assert "prefers-color-scheme: dark" in style[1]
    assert "@media print" in style[1]


def test_words_from_outside_are_words(page, elements, hostile):
    text = "".join(elements.text)
    assert text.count(hostile) >= 3, "title, table and labels show the prompt as it is written"
    assert "<script" not in render_html(page)
    assert "onerror" in text, "HTML in markdown is shown as text"


def test_every_picture_has_words(elements, hostile):
    images = elements.all("img")
    assert len(images) == 1 + 2 * 3
    assert all(image["alt"].strip() for image in images)
    assert images[0]["alt"] == f"rises over {hostile}"
    assert [image["alt"] for image in images[1:]][3:] == ["b, s0", "b, s1", "b, s2"]
    assert all(int(image["width"]) > 0 and int(image["height"]) > 0 for image in images)


def test_headings_are_in_order(elements):
    levels = [int(tag[1]) for tag, _ in elements.found if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_headers_of_tables_say_what_they_head(elements):
    headers = [attributes for attributes in elements.all("th") if attributes]
    assert headers
    assert {header["scope"] for header in headers} == {"col", "row"}


def test_what_is_wide_scrolls_within_itself_and_by_keyboard(page):
    html = render_html(page)
    elements = parse(html)
    boxes = [attributes for attributes in elements.all("div") if attributes.get("class") == "scroll"]
    assert len(boxes) == html.count("<table") + html.count('class="plot"')
    assert all(box["tabindex"] == "0" and box["role"] == "region" for box in boxes)


def test_it_is_a_page_for_narrow_screens_in_a_language(elements):
    assert elements.all("html") == [{"lang": "en"}]
    viewport = next(meta["content"] for meta in elements.all("meta") if meta.get("name") == "viewport")
    assert "width=device-width" in viewport
    assert "user-scalable" not in viewport


def test_numbers_stand_to_the_right(elements):
    cells = [attributes.get("class", "") for attributes in elements.all("td", "th") if attributes.get("scope") != "row"]
    assert cells.count("number") == 1 + 2, "the gains and their heading"


def test_the_line_of_every_figure_is_there(page):
    assert render_html(page).count("engine nvfp4-emulated (emulated); 8 seeds") == 3


def test_settings_are_dotted_and_folded(elements):
    text = "".join(elements.text)
    assert "model.family" in text
    assert "rewards.0.name" in text
    assert elements.all("details") == [{}]


def test_a_table_without_rows_says_so():
    page = Page("T", "s", (Section("S", (Table("Empty", ("a", "b"), ()),)),))
    assert "no rows" in "".join(parse(render_html(page)).text)


def test_the_same_page_makes_the_same_text(page):
    assert render_html(page) == render_html(replace(page))


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_stands_out_from_its_ground_in_light_and_dark(page):
    """WCAG 2.2, 1.4.3: a contrast of 4.5 to 1."""
    schemes = re.findall(r":root \{(.*?)\}", render_html(page), re.DOTALL)
    assert len(schemes) == 3
    for scheme in schemes:
        colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", scheme))
        for ink in ("ink", "soft", "link"):
            for ground in ("paper", "shade"):
                high, low = sorted((luminance(colours[ink]), luminance(colours[ground])), reverse=True)
                assert (high + 0.05) / (low + 0.05) >= 4.5, (ink, ground)


def test_text_in_markdown_keeps_to_its_level():
    html = render_html(Page("T", "s", (Section("S", (Text("# one\n\ntwo\n---\n\n###### six"),)),)))
    assert html.count("<h3>") == 3
    assert html.count("<h1") == 1
