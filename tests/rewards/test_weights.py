import importlib
import pkgutil
import re
import shutil

import pytest
import torch
from safetensors.torch import save_file

from solrl_tasks import rewards
from solrl_tasks.config.recipe import RewardSpec
from solrl_tasks.rewards.base import RewardError
from solrl_tasks.rewards.loading import load_module
from solrl_tasks.rewards.scoring import make_reward
from solrl_tasks.rewards.weights import Folder, Hub, Random, fetch_tokenizer, fetch_weights, find_place, identify

PINNED = Hub("owner/judge", "0123abc")


@pytest.fixture
def folder(tmp_path):
    """A folder of weights."""
    path = tmp_path / "weights"
    path.mkdir()
    (path / "config.json").write_text("{}")
    save_file({"a": torch.zeros(2)}, path / "model.safetensors")
    return path


def test_places_are_told_apart(folder, monkeypatch):
    assert find_place("owner/judge", None, PINNED) == PINNED
    assert find_place("owner/judge", "main", PINNED) == Hub("owner/judge", "main")
    assert find_place("owner/other", None, PINNED) == Hub("owner/other", None)
    assert find_place(str(folder), None, PINNED) == Folder(folder)
    assert find_place("random", None, PINNED) == Random(None)
    assert find_place("random:vit-l-14", None, PINNED) == Random("vit-l-14")
    monkeypatch.setenv("HOME", str(folder.parent))
    assert find_place("~/weights", None, PINNED) == Folder(folder)


def test_a_folder_wins_over_a_hub_id(folder, monkeypatch):
    monkeypatch.chdir(folder.parent.parent)
    assert isinstance(find_place(f"{folder.parent.name}/weights", None, PINNED), Folder)


def test_refusals_say_what_is_allowed(folder):
    with pytest.raises(RewardError, match=r"source '/nowhere/at/all': there is no folder .* give a folder with config"):
        find_place("/nowhere/at/all", None, PINNED)
    with pytest.raises(RewardError, match="revision 'main' is for a hub id"):
        find_place(str(folder), "main", PINNED)
    with pytest.raises(RewardError, match="drop it"):
        find_place("random", "main", PINNED)


def test_the_published_weights_add_nothing_to_the_identity():
    assert identify(PINNED, PINNED) is None
    others = [Hub("owner/judge", None), Hub("owner/judge", "main"), Hub("owner/other", "0123abc"), Random("tiny")]
    assert len({str(identify(place, PINNED)) for place in others} - {"None"}) == len(others)


def test_a_folder_is_known_by_its_contents_not_by_its_place(folder, tmp_path):
    before = identify(Folder(folder), PINNED)
    (folder / "README.md").write_text("nothing that is loaded")
    shutil.copytree(folder, tmp_path / "copy")
    assert identify(Folder(tmp_path / "copy"), PINNED) == before
    for name, change in (("config.json", '{"a": 1}'), ("vocab.txt", "x")):
        (tmp_path / "copy" / name).write_text(change)
        changed = identify(Folder(tmp_path / "copy"), PINNED)
        assert changed != before
        before = changed
    save_file({"a": torch.ones(2)}, tmp_path / "copy" / "model.safetensors")
    assert identify(Folder(tmp_path / "copy"), PINNED) != before


def test_a_file_is_read_once(folder, monkeypatch):
    import hashlib

    read = []
    real = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda file, kind: read.append(file.name) or real(file, kind))
    first = identify(Folder(folder), None)
    count = len(read)
    assert count == 2 and identify(Folder(folder), None) == first and len(read) == count


def test_offline_says_what_to_fetch_and_how():
    with pytest.raises(RewardError) as caught:
        fetch_weights(Hub("owner/judge-that-is-not-cached", "abc"))
    text = str(caught.value)
    assert "the weights of owner/judge-that-is-not-cached are not in the local cache" in text
    assert "HF_HUB_OFFLINE is set" in text
    assert "`hf download owner/judge-that-is-not-cached --revision abc`" in text
    with pytest.raises(RewardError, match="the tokenizer of owner/reader are not in the local cache"):
        fetch_tokenizer(Hub("owner/reader", None))


def test_a_reward_whose_weights_are_absent_says_so_when_it_is_set_up():
    reward = make_reward(RewardSpec(name="clipscore"))
    with pytest.raises(RewardError, match=r"reward 'clipscore' cannot be set up: the weights of openai/clip-vit"):
        reward.prepare()
    assert reward.memory() == 0


def test_only_safetensors_are_read(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(RewardError, match=r"pytorch_model.bin could run code when read and is not"):
        fetch_weights(Folder(folder))
    (folder / "config.json").unlink()
    with pytest.raises(RewardError, match=r"holds no weights"):
        fetch_weights(Folder(folder))


def test_a_folder_without_vocabulary_is_no_tokenizer(folder):
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(RewardError, match="holds no vocabulary"):
        fetch_tokenizer(Folder(folder))


def test_cached_files_of_the_hub_are_used_without_network(folder, tmp_path, monkeypatch):
    from huggingface_hub import constants

    from solrl_tasks.rewards import weights

    cache, revision = tmp_path / "hub", "a" * 40
    snapshot = cache / "models--owner--cached" / "snapshots" / revision
    snapshot.parent.mkdir(parents=True)
    shutil.copytree(folder, snapshot)
    (snapshot.parent.parent / "refs").mkdir()
    (snapshot.parent.parent / "refs" / "main").write_text(revision)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    weights._download.cache_clear()
    assert fetch_weights(Hub("owner/cached", revision)) == snapshot
    assert fetch_weights(Hub("owner/cached", None)) == snapshot
    with pytest.raises(RewardError, match="are not in the local cache"):
        fetch_weights(Hub("owner/cached", "b" * 40))
    weights._download.cache_clear()


def test_what_is_published_on_the_hub_is_pinned_to_a_commit():
    """A branch that moves would change scores under the same name and version."""
    found = {}
    for module in pkgutil.iter_modules(rewards.__path__):
        names = vars(importlib.import_module(f"{rewards.__name__}.{module.name}"))
        found |= {value.hub_id: value.revision for value in names.values() if isinstance(value, Hub)}
    assert len(found) == 4
    assert all(re.fullmatch("[0-9a-f]{40}", str(revision)) for revision in found.values()), found


def test_files_that_change_between_version_and_loading_are_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    save_file({"weight": torch.ones(1, 2)}, tmp_path / "model.safetensors")

    def load():
        return load_module(lambda _: torch.nn.Linear(2, 1, bias=False), tmp_path, torch.device("cpu"))

    load()
    identify(Folder(tmp_path), None)
    assert load().weight.tolist() == [[1.0, 1.0]]
    (tmp_path / "README.md").write_text("nothing that is loaded")
    load()
    save_file({"weight": torch.zeros(1, 2)}, tmp_path / "model.safetensors")
    with pytest.raises(RewardError, match=r"have changed since .* put the old files back, or start the command again"):
        load()
    # Another version of the same folder does not make those right that were told of before.
    identify(Folder(tmp_path), None)
    with pytest.raises(RewardError, match="have changed since"):
        load()
