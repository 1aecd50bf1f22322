"""Which files of a dataset hold the prompts that are asked for; the hub is only asked for those."""

from types import SimpleNamespace

import pytest

from solrl_tasks.config.recipe import PromptSource
from solrl_tasks.prompts.datasets import choose_files
from solrl_tasks.prompts.errors import PromptsError
from solrl_tasks.prompts.read import read_prompts

SHARDS = ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet", "data/test-00000-of-00001.parquet"]
README = """---
license: mit
configs:
- config_name: plain
  data_files:
  - split: train
    path: plain/a*.jsonl
  - split: extra
    path: [plain/b.jsonl, plain/c.jsonl]
- config_name: rich
  data_dir: rich
---
# A dataset
"""


def choose(names, readme="", **asked):
    return choose_files(PromptSource(source="set", **asked), names, readme)


def test_splits_are_known_by_the_names_of_files_and_folders():
    assert choose(SHARDS, split="test") == ["data/test-00000-of-00001.parquet"]
    assert choose(SHARDS, split="train") == SHARDS[:2]
    assert choose(["README.md", "x/validation/a.csv", "x/train/a.csv"], split="train") == ["x/train/a.csv"]
    assert choose(["prompts.txt", "license.txt", ".cache/a.txt"]) == ["prompts.txt"]
    assert choose(["mine.jsonl", "trained.jsonl"], split="mine") == ["mine.jsonl"]


def test_the_readme_comes_before_names():
    names = ["plain/a1.jsonl", "plain/b.jsonl", "plain/c.jsonl", "rich/test.csv", "rich/train.csv"]
    assert choose(names, README, subset="plain", split="train") == ["plain/a1.jsonl"]
    assert choose(names, README, subset="plain", split="extra") == ["plain/b.jsonl", "plain/c.jsonl"]
    assert choose(names, README, subset="rich", split="test") == ["rich/test.csv"]


@pytest.mark.parametrize(
    ("names", "readme", "asked", "message"),
    [
        (SHARDS, "", {}, r"several splits \(train, test\): name one as `split`"),
        (SHARDS, "", {"split": "dev"}, "no split 'dev': there is train, test"),
        (SHARDS[1:], "", {"split": "train"}, r"1 of 2 files data/train-… are there"),
        (["a.bin"], "", {}, "no data files"),
        (["a.csv", "a.jsonl"], "", {}, "several forms"),
        (["x/a.csv", "y/a.csv"], "", {"subset": "z"}, "no folder is called so, only x, y"),
        (["plain/a1.jsonl"], README, {"split": "train"}, r"several subsets \(plain, rich\)"),
        (["plain/a1.jsonl"], README, {"subset": "plain"}, r"several splits \(train, extra\)"),
        (["plain/a1.jsonl"], README, {"subset": "plain", "split": "extra"}, "that its README names are not there"),
        (["plain/a1.jsonl"], README, {"subset": "poor"}, "no subset 'poor': there is plain, rich"),
    ],
)
def test_what_is_not_clear_is_refused(names, readme, asked, message):
    with pytest.raises(PromptsError, match=message):
        choose(names, readme, **asked)


def test_a_folder_is_read_in_the_order_of_names(tmp_path):
    (tmp_path / "set").mkdir()
    for name, text in (("test-b.txt", "two"), ("test-a.txt", "one"), ("train.txt", "three")):
        (tmp_path / "set" / name).write_text(text)
    assert read_prompts(PromptSource(source="set", split="test"), tmp_path).texts == ("one", "two")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub of one dataset; what was fetched is written down."""
    import huggingface_hub
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    fetched = []

    def dataset_info(self, name, revision=None):
        if name != "owner/set":
            raise ConnectionError("no route")
        files = ["README.md", "data/train.csv", "data/test.csv", "pictures.parquet"]
        return SimpleNamespace(sha="c0ffee", siblings=[SimpleNamespace(rfilename=name) for name in files])

    def snapshot_download(name, repo_type, revision, allow_patterns=None, local_files_only=False):
        assert (repo_type, revision) == ("dataset", "c0ffee")
        fetched.extend(allow_patterns)
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n")
        (tmp_path / "data" / "test.csv").write_text("caption\na cat\n")
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", dataset_info)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return fetched


def test_the_hub_is_asked_for_the_files_that_are_needed(hub):
    source = PromptSource(source="hf:owner/set", split="test", column="caption")
    assert read_prompts(source).texts == ("a cat",)
    assert set(hub) == {"README.md", "data/test.csv"}


def test_a_hub_that_does_not_answer_says_what_to_do(hub):
    with pytest.raises(PromptsError, match=r"hub cannot be reached or read \(no route\): run `hf download other/set"):
        read_prompts("hf:other/set")


def test_offline_the_cache_alone_is_asked(monkeypatch):
    """The tests run offline: nothing is fetched, and the message says why."""
    with pytest.raises(PromptsError, match=r"owner/set of the hub is not in the local cache, .* HF_HUB_OFFLINE is set"):
        read_prompts("hf:owner/set")


LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60))


@pytest.mark.parametrize(
    "head",
    [
        "date: 2020-13-45\n",
        "a: " + "[" * 5000 + "\n",
        LAUGHS + "configs: [{config_name: *a59, data_files: train.txt}]\n",
        LAUGHS + "configs: [{data_dir: *a59, data_files: train.txt}]\n",
        LAUGHS + "configs: [{data_files: [{split: *a59, path: train.txt}]}]\n",
        LAUGHS + "configs: [{data_files: [*a59, train.txt]}]\n",
    ],
)
def test_a_hostile_readme_is_read_as_far_as_it_makes_sense(head):
    assert choose(["train.txt"], f"---\n{head}---\n") == ["train.txt"]


@pytest.mark.parametrize("files", ["[]", "{}", "[{path: [[train.txt]]}]"])
def test_a_readme_that_names_no_file_is_told(files):
    with pytest.raises(PromptsError, match="that its README names are not there"):
        choose(["train.txt"], f"---\nconfigs: [{{data_files: {files}}}]\n---\n")
