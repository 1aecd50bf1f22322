"""``solrl convert`` as a person sees it."""

import hashlib
from pathlib import Path

import torch

from tests.flows.test_cli import Solrl
from tests.support import published


def test_a_checkpoint_is_converted_and_told(solrl: Solrl, tmp_path: Path):
    source = tmp_path / "head.pth"
    torch.save(published.head_tensors(768), source)
    said = solrl("convert", "aesthetic", source, tmp_path / "weights" / "aesthetic")
    assert said.code == 0, said.err
    assert hashlib.sha256(source.read_bytes()).hexdigest() in said.out
    assert "10 tensors with 927,969 parameters for aesthetic@1" in said.out
    assert "The key map is unverified" in said.out
    assert (tmp_path / "weights" / "aesthetic" / "model.safetensors").is_file()


def test_mistakes_are_told_in_words(solrl: Solrl, tmp_path: Path):
    source = tmp_path / "odd.pt"
    torch.save({"a": torch.zeros(1)}, source)
    for arguments, message in (
        (("hpsv2", source), "1 tensor that the key map does not know (a)"),
        (("hpsv2", tmp_path / "none.pt"), "there is no file"),
        (("pickscore", source), "has no weights to convert; those that have: aesthetic, hpsv2, imagereward"),
        (("beauty", source), "unknown reward 'beauty'"),
    ):
        said = solrl("convert", *arguments, tmp_path / "out")
        assert said.code == 1 and message in said.err, said.err
        assert "Traceback" not in said.err
        assert not (tmp_path / "out").exists()
