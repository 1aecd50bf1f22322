import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from solrl_tasks.config.recipe import RewardSpec
from solrl_tasks.rewards import ocr
from solrl_tasks.rewards.base import RewardError
from solrl_tasks.rewards.ocr import OcrOptions
from solrl_tasks.rewards.scoring import make_reward, score

SAYS = 'a card that says "{}"'


def picture(text, size=192, points=28, ink="black", paper="white"):
    image = Image.new("RGB", (size, size), paper)
    ImageDraw.Draw(image).multiline_text((8, size // 3), text, fill=ink, font=ImageFont.load_default(points))
    return np.asarray(image)


def scores(pairs, **options):
    images = np.stack([image for image, _ in pairs])
    prompts = [prompt for _, prompt in pairs]
    return ocr.REWARD(OcrOptions(**options))(images, prompts, [{}] * len(pairs))


def test_what_is_written_is_read_and_compared():
    found = scores(
        [
            (picture("Hello World"), SAYS.format("Hello World")),
            (picture("Hello\nWorld"), SAYS.format("hello world")),
            (picture("Hello World"), SAYS.format("Hello")),
            (picture("Hello World"), SAYS.format("Jello World")),
            (picture("OPEN", ink="yellow", paper="navy"), SAYS.format("OPEN")),
            (picture(""), SAYS.format("OPEN")),
        ]
    )
    assert found == pytest.approx([1.0, 1.0, 0.5, 0.9, 1.0, 0.0])


def test_the_options_reach_the_comparison():
    pair = (picture("Hello World"), SAYS.format("HELLO"))
    assert scores([pair], surplus="ignore") == [1.0]
    assert scores([pair], surplus="ignore", case="match") == pytest.approx([0.2])
    assert scores([(picture("OPEN"), "a sign 'OPEN'")], single_quotes=True) == [1.0]
    assert scores([(picture("OPEN"), SAYS.format("OPEN"))], confidence=1.0) == [0.0]


def test_the_reader_is_given_blue_first():
    seen = []

    class Found:
        txts = ("OPEN",)

    def read(array):
        seen.append(array)
        return Found()

    reward = ocr.REWARD(OcrOptions())
    reward._readers.read = read
    assert reward.lines(picture("", ink="black", paper=(1, 2, 3))) == ("OPEN",)
    assert seen[0][0, 0].tolist() == [3, 2, 1]
    assert seen[0].flags.c_contiguous


def test_small_pictures_are_read_too():
    assert scores([(picture("CAT", 64, 16), SAYS.format("cat"))]) == [1.0]


def test_scores_are_the_same_in_every_batch_and_every_time():
    pairs = [(picture(text), SAYS.format("Hello World")) for text in ("Hello World", "Helo Wrld", "", "Held")]
    together = scores(pairs)
    assert together == [scores([pair])[0] for pair in pairs] == scores(pairs[::-1])[::-1]
    assert together == scores(pairs, threads=3)
    assert together[0] == 1 > together[1] > together[3] > together[2] == 0


def test_the_number_of_threads_is_not_part_of_what_a_score_means():
    versions = [
        make_reward(RewardSpec(name="ocr", options=options)).version
        for options in ({}, {"threads": 4}, {"case": "match"}, {"case": "match", "threads": 4})
    ]
    assert versions[0] == versions[1] == "1" != versions[2] == versions[3]


def test_a_prompt_that_quotes_nothing_makes_its_candidates_invalid_and_says_why():
    images = np.stack([picture("OPEN"), picture("OPEN")])
    found = score(make_reward(RewardSpec(name="ocr")), images, ["a sign", SAYS.format("OPEN")], [{}, {}])
    assert np.isnan(found.values[0])
    assert found.values[1] == 1
    assert "ocr: image 0: UnquotedError: prompt 'a sign' quotes no text" in found.failures[1]


def test_nothing_is_downloaded(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert scores([(picture("OPEN"), SAYS.format("OPEN"))]) == [1.0]


def test_other_models_than_those_of_the_version_are_refused(monkeypatch):
    monkeypatch.setitem(ocr.MODELS, "Rec", (ocr.MODELS["Rec"][0], "0" * 64))
    with pytest.raises(RewardError, match=r"holds another model PP-OCRv6_rec_small\.onnx"):
        ocr.REWARD(OcrOptions())
    monkeypatch.setitem(ocr.MODELS, "Rec", ("PP-OCRv9.onnx", "0" * 64))
    with pytest.raises(RewardError, match=r"lacks the model PP-OCRv9\.onnx"):
        ocr.REWARD(OcrOptions())


def test_a_missing_package_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setattr(ocr, "find_spec", lambda name: None)
    with pytest.raises(RewardError, match=r"needs rapidocr, which is not installed: pip install .*\[ocr\]"):
        ocr.REWARD(OcrOptions())


def test_reading_leaves_no_file_of_the_librarys_maker(tmp_path):
    """ONNX Runtime notes a device's number and events in the home of its user, unless it is told not to."""
    # The library is loaded by the first reading, not by setting up.
    code = (
        "import sys, numpy\nfrom solrl_tasks.rewards.ocr import Ocr, OcrOptions\n"
        "Ocr(OcrOptions()).lines(numpy.zeros((32, 32, 3), numpy.uint8))\nassert 'onnxruntime' in sys.modules"
    )
    env = {**os.environ, "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "PYTHONPATH": str(Path.cwd())}
    for name in ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME"):
        env.pop(name, None)
    subprocess.run([sys.executable, "-B", "-c", code], check=True, cwd=tmp_path, env=env)
    assert [str(path) for path in tmp_path.rglob("*") if path.is_file()] == []
