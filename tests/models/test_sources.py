"""Sources: what they resolve to, what their digest sees, and what a failed download says."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from diffusers import DiffusionPipeline
from huggingface_hub import errors

from solrl_tasks.config.recipe import ModelSpec
from solrl_tasks.models import sources
from solrl_tasks.models.sources import EMBEDDED, SourceError, base_digest, fetch, read_config, resolve_source


@pytest.fixture
def own_copy(micro_model, tmp_path):
    return shutil.copytree(micro_model, tmp_path / "copy")


def digest(folder, tmp_path):
    return base_digest(ModelSpec(source=str(folder)), tmp_path / "cache")


def test_folders_hub_ids_and_the_embedded_model_are_told_apart(own_copy, monkeypatch):
    assert resolve_source(ModelSpec(source=str(own_copy))) == own_copy
    assert resolve_source(ModelSpec(source="owner/name.v-1")) == "owner/name.v-1"
    monkeypatch.chdir(own_copy.parent)
    assert fetch(ModelSpec(source="copy")).resolve() == own_copy
    monkeypatch.setenv("HOME", str(own_copy.parent))
    assert fetch(ModelSpec(source="~/copy")) == own_copy
    monkeypatch.setattr(sources, "EMBEDDED", own_copy)
    assert fetch(ModelSpec(source="embedded")) == own_copy
    assert EMBEDDED.parts[-2:] == ("models", "embedded")


@pytest.mark.parametrize("source", ["/no/such/folder", "./nowhere", "a/b/c", "name", "~/nowhere-at-all"])
def test_what_is_neither_folder_nor_hub_id_is_refused(source):
    with pytest.raises(SourceError, match="there is no folder"):
        resolve_source(ModelSpec(source=source))


def test_folders_must_hold_a_pipeline(tmp_path, own_copy):
    with pytest.raises(SourceError, match=r"has no model_index\.json"):
        resolve_source(ModelSpec(source=str(tmp_path)))
    with pytest.raises(SourceError, match="is a folder: drop it"):
        resolve_source(ModelSpec(source=str(own_copy), revision="main"))
    (own_copy / "vae" / "config.json").write_text("[1]")
    with pytest.raises(SourceError, match="no JSON object"):
        read_config(own_copy, "vae")
    with pytest.raises(SourceError, match=r"nowhere.config\.json cannot be read"):
        read_config(own_copy, "nowhere")


def test_the_digest_does_not_depend_on_the_place(own_copy, micro_model, tmp_path):
    assert digest(own_copy, tmp_path) == digest(micro_model, tmp_path)
    assert len(digest(own_copy, tmp_path)) == 64


def test_the_digest_ignores_what_decides_nothing(own_copy, micro_model, tmp_path):
    (own_copy / "README.md").write_text("hello")
    (own_copy / "vae" / "notes.md").write_text("hello")
    (own_copy / "flux1-dev.safetensors").write_text("the same weights in another format")
    (own_copy / ".cache").mkdir()
    (own_copy / ".cache" / "x.json").write_text("{}")
    assert digest(own_copy, tmp_path) == digest(micro_model, tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "transformer/diffusion_pytorch_model.safetensors",
        "text_encoder_2/model.safetensors",
        "tokenizer/tokenizer.json",
        "scheduler/scheduler_config.json",
        "model_index.json",
    ],
)
def test_the_digest_sees_every_content_file(own_copy, tmp_path, name):
    before = digest(own_copy, tmp_path)
    data = bytearray((own_copy / name).read_bytes())
    data[-3] ^= 1
    if name == "model_index.json":
        data = json.dumps({**json.loads((own_copy / name).read_bytes()), "added": 1}).encode()
    (own_copy / name).write_bytes(data)
    assert digest(own_copy, tmp_path) != before


def test_the_digest_sees_names(own_copy, tmp_path):
    before = digest(own_copy, tmp_path)
    (own_copy / "vae" / "config.json").rename(own_copy / "vae" / "other.json")
    assert digest(own_copy, tmp_path) != before


def test_files_are_hashed_once(own_copy, tmp_path, monkeypatch):
    first = digest(own_copy, tmp_path)
    hashed = []
    real = sources._sha256
    monkeypatch.setattr(sources, "_sha256", lambda path: hashed.append(path.name) or real(path))
    assert digest(own_copy, tmp_path) == first
    assert hashed == []
    os.utime(own_copy / "vae" / "config.json", ns=(0, 0))
    assert digest(own_copy, tmp_path) == first
    assert hashed == ["config.json"]


def test_a_damaged_memory_is_forgotten(own_copy, tmp_path):
    first = digest(own_copy, tmp_path)
    (memory,) = (tmp_path / "cache" / "base-digests").iterdir()
    for content in ("", "[]", memory.read_text().replace("a", "b")):
        memory.write_text(content)
        assert digest(own_copy, tmp_path) == first


def hub_error(kind):
    import httpx

    response = httpx.Response(403, request=httpx.Request("GET", "https://huggingface.co/x"))
    return kind("refused", response=response)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (errors.OfflineModeIsEnabled("off"), "HF_HUB_OFFLINE is set: .*hf download owner/name"),
        (OSError("no route"), r"cannot be reached or read \(no route\).*hf download owner/name"),
        (errors.GatedRepoError, "gated: accept its terms at https://huggingface.co/owner/name"),
        (errors.RepositoryNotFoundError, "does not exist, or is private"),
        (errors.RevisionNotFoundError, "has no revision 'v9'"),
    ],
)
def test_failed_downloads_say_what_to_do(monkeypatch, error, message):
    cause = hub_error(error) if isinstance(error, type) else error

    def download(*args, **kwargs):
        raise OSError("Cannot load model") from cause

    monkeypatch.setattr(DiffusionPipeline, "download", download)
    with pytest.raises(SourceError, match=message) as caught:
        fetch(ModelSpec(source="owner/name", revision="v9"))
    assert "'owner/name'" in str(caught.value)


def test_a_hub_id_is_resolved_once_a_process(monkeypatch, own_copy):
    asked = []
    monkeypatch.setattr(DiffusionPipeline, "download", lambda *a, **k: asked.append((a, k)) or str(own_copy))
    spec = ModelSpec(source="owner/resolved-once", revision="v1")
    assert fetch(spec) == fetch(spec) == own_copy
    assert asked == [(("owner/resolved-once",), {"revision": "v1", "use_safetensors": True})]


def test_an_absent_hub_id_offline_is_a_clear_error():
    code = (
        "from solrl_tasks.config.recipe import ModelSpec\n"
        "from solrl_tasks.models.sources import SourceError, fetch\n"
        "try: fetch(ModelSpec(source='black-forest-labs/FLUX.1-dev'))\n"
        "except SourceError as error: print(error)\n"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": "/nonexistent"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True, timeout=120
    )
    assert "black-forest-labs/FLUX.1-dev" in done.stdout
    assert "HF_HUB_OFFLINE is set" in done.stdout
    assert "hf download" in done.stdout


def test_a_folder_loads_without_any_socket(micro_model, monkeypatch):
    import socket

    import torch

    from solrl_tasks.models.families.flux import Flux

    def refuse(*args, **kwargs):
        raise AssertionError("a local folder must not touch the network")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    Flux.load(ModelSpec(source=str(micro_model), resolution=32), torch.device("cpu"))


def test_changed_weights_under_an_old_date_are_seen(own_copy, tmp_path):
    path = own_copy / "vae" / "config.json"
    status = path.stat()
    before = digest(own_copy, tmp_path)
    path.write_bytes(path.read_bytes().replace(b"0.", b"1.", 1))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert digest(own_copy, tmp_path) != before


@pytest.mark.parametrize("component", ["tokenizer", "tokenizer_2", "vae"])
def test_a_pipeline_that_lacks_a_part_is_refused(own_copy, component):
    sources.require_components(own_copy)
    shutil.rmtree(own_copy / component)
    with pytest.raises(SourceError, match=f"lacks {component}/"):
        sources.require_components(own_copy)


def test_a_tokenizer_without_words_is_refused(own_copy):
    (own_copy / "tokenizer_2" / "tokenizer.json").unlink()
    with pytest.raises(SourceError, match="holds no vocabulary"):
        sources.require_components(own_copy)
