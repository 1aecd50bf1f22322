import numpy as np
import pytest
from markdown_it import MarkdownIt

from solrl_tasks.reports.page import Figure, Pictures, Provenance, Settings, Table, plain

IMAGES = np.zeros((2, 3, 4, 4, 3), dtype=np.uint8)


def test_the_line_of_a_figure_says_hardware_engine_and_whether_it_is_real():
    line = Provenance("NVIDIA H200", "nvfp4-emulated", False, "measured", "8 seeds").line
    assert line == "Measured on NVIDIA H200; engine nvfp4-emulated (emulated); 8 seeds"
    assert Provenance("", "fp8", True, "modelled").line == "Modelled; engine fp8 (real)"
    assert Provenance("", "", None, "measured").line == "Measured, hardware not recorded"
    assert Provenance("CPU", "", None, "measured").line == "Measured on CPU"


@pytest.mark.parametrize(("engine", "real"), [("fp8", None), ("", True)])
def test_an_engine_without_a_word_on_whether_it_is_real_is_refused(engine, real):
    with pytest.raises(ValueError, match="real or emulated"):
        Provenance("CPU", engine, real, "measured")


def test_numbers_are_measured_or_modelled():
    with pytest.raises(ValueError, match="measured or modelled"):
        Provenance("CPU", "", None, "guessed")


def test_rows_are_as_wide_as_the_columns():
    with pytest.raises(ValueError, match=r"'Costs': row 1 has 1 cells, and there are 2 columns \(a, b\)"):
        Table("Costs", ("a", "b"), (("1", "2"), ("3",)))
    with pytest.raises(ValueError, match="no columns"):
        Table("Costs", (), ())
    with pytest.raises(ValueError, match="no text"):
        Table("Costs", ("a",), ((1,),))


def test_a_figure_is_a_png_with_words():
    with pytest.raises(ValueError, match="no PNG"):
        Figure("Curve", b"GIF89a", "rises")
    with pytest.raises(ValueError, match="needs words"):
        Figure("Curve", b"\x89PNG\r\n\x1a\n", " ")


@pytest.mark.parametrize(
    ("images", "rows", "columns", "captions", "said"),
    [
        (IMAGES.astype(np.float32), 2, 3, (), "uint8"),
        (IMAGES[0], 2, 3, (), "uint8"),
        (IMAGES[:0], 0, 3, (), "uint8"),
        (IMAGES, 1, 3, (), "1 row labels"),
        (IMAGES, 2, 4, (), "4 column labels"),
        (IMAGES, 2, 3, (("a",) * 3,), "captions need 2 rows of 3"),
    ],
)
def test_labels_fit_the_pictures(images, rows, columns, captions, said):
    with pytest.raises(ValueError, match=said):
        Pictures("Seeds", images, ("r",) * rows, ("c",) * columns, captions)


@pytest.mark.parametrize(
    "text",
    [
        "- a list",
        "1. one",
        "# head",
        "a * b * c",
        "[x](y)",
        "<b>",
        "a | b",
        "`code`",
        "a\n\nb",
        "--- x",
        "&amp;",
        "-1.5",
    ],
)
def test_plain_text_is_shown_as_it_is(text):
    shown = MarkdownIt("commonmark").render(plain(text))
    expected = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert shown == f"<p>{expected}</p>\n"


def test_numbers_are_not_escaped():
    assert plain("-0.12 ± 0.03") == "-0.12 ± 0.03"


@pytest.mark.parametrize("value", [IMAGES, float("nan"), object()])
def test_settings_are_json(value):
    with pytest.raises(ValueError, match="settings hold plain JSON values"):
        Settings({"a": {"b": value}})
