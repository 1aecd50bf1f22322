"""Prompt sets keep their keys; prompt files give sensible results or clear errors."""

import pytest

from solrl_tasks.sampling.prompts import Prompt, PromptsError, PromptSet, read_prompts


def write(folder, data, name="p.txt"):
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    return str(folder / name)


def test_keys_name_content_and_occurrence():
    prompts = PromptSet((Prompt("a"), Prompt("b"), Prompt("a"), Prompt("a", {"n": 1})))
    contents, numbers = zip(*(key.rsplit("-", 1) for key in prompts.keys), strict=True)
    assert numbers == ("0", "0", "1", "0")
    assert contents[0] == contents[2]
    assert len(set(contents)) == 3
    assert all(len(content) >= 16 for content in contents)


def test_keys_do_not_depend_on_the_order_of_metadata():
    one, other = Prompt("a", {"x": 1, "y": [2, None]}), Prompt("a", {"y": [2, None], "x": 1})
    assert PromptSet((one,)).keys == PromptSet((other,)).keys


def test_a_subset_keeps_its_keys():
    prompts = PromptSet((Prompt("a"), Prompt("a"), Prompt("b")))
    subset = prompts.subset([2, 1])
    assert subset.texts == ("b", "a")
    assert subset.keys == (prompts.keys[2], prompts.keys[1])
    assert len(subset) == 2
    assert subset[0] == Prompt("b")
    assert subset.digest != prompts.digest
    assert subset.digest == prompts.subset([2, 1]).digest
    assert len(prompts.subset([])) == 0


def test_a_text_file_is_one_prompt_a_line(tmp_path):
    path = write(tmp_path, b'\xef\xbb\xbfa cat\r\n\r\n  two dogs \n\xe2\x80\xa8{"x": 1}\nna\xc3\xafve\x0bart\n\na cat')
    prompts = read_prompts(path)
    assert prompts.texts == ("a cat", "two dogs", '{"x": 1}', "naïve\x0bart", "a cat")
    assert prompts.keys[0][:-2] == prompts.keys[4][:-2]
    assert (prompts.keys[0][-2:], prompts.keys[4][-2:]) == ("-0", "-1")


def test_a_jsonl_file_carries_metadata(tmp_path):
    lines = '{"prompt": " a cat ", "n": 2}\n\n{"metadata": {"tag": ["x"]}, "prompt": "b", "n": null}\n'
    prompts = read_prompts(write(tmp_path, lines, "p.JSONL"))
    assert prompts[0] == Prompt("a cat", {"n": 2})
    assert prompts[1] == Prompt("b", {"n": None, "tag": ["x"]})


def test_relative_names_start_from_the_base(tmp_path, monkeypatch):
    write(tmp_path, "a")
    assert read_prompts("p.txt", base=tmp_path).texts == ("a",)
    monkeypatch.chdir(tmp_path)
    assert read_prompts("p.txt").texts == ("a",)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_prompts("~/p.txt", base=tmp_path / "elsewhere").texts == ("a",)


@pytest.mark.parametrize("source", ["scenes:train", "scenes:heldout"])
def test_scenes_are_built_in(source):
    prompts = read_prompts(source)
    assert len(prompts) >= 32
    assert len(set(prompts.keys)) == len(prompts)


def test_scene_sets_are_disjoint():
    assert not set(read_prompts("scenes:train").texts) & set(read_prompts("scenes:heldout").texts)


@pytest.mark.parametrize(
    ("data", "name", "message"),
    [
        ("", "p.txt", r"p\.txt is empty"),
        ("\n \r\n", "p.txt", r"p\.txt is empty"),
        ("good\nbad \xe9".encode("latin-1"), "p.txt", r"p\.txt:2: byte 9 \(0xe9\) is not UTF-8: save"),
        ("a cat".encode("utf-16"), "p.txt", r"p\.txt:1: byte 0 \(0xff\) is not UTF-8"),
        ("a\0c", "p.txt", "zero bytes"),
        ("a cat", "p.csv", r"end in \.txt"),
        ('{"prompt": "a"}\n{"prompt": ', "p.jsonl", r"p\.jsonl:2: not valid JSON .* column"),
        ('["a"]', "p.jsonl", r"p\.jsonl:1: must be an object .* found list"),
        ('{"text": "a"}', "p.jsonl", r'p\.jsonl:1: "prompt" must be a text .* no such key'),
        ('{"prompt": "  "}', "p.jsonl", r"not blank"),
        ('{"prompt": 3}', "p.jsonl", r"found 3"),
        ('{"prompt": "a", "metadata": 3}', "p.jsonl", r'"metadata" must be an object, found int'),
        ('{"prompt": "a", "n": 1, "metadata": {"n": 1}}', "p.jsonl", r"n stands both"),
        ('\n{"prompt": "a", "n": NaN}', "p.jsonl", r"p\.jsonl:2: n is nan: only finite"),
        ('{"prompt": "a", "n": [1e999]}', "p.jsonl", r"p\.jsonl:1: n\[0\] is inf: only finite"),
        ('{"prompt": "a\\ud800"}', "p.jsonl", r"p\.jsonl:1: .*surrogates not allowed"),
    ],
)
def test_malformed_files_are_refused_with_the_line(tmp_path, data, name, message):
    with pytest.raises(PromptsError, match=message):
        read_prompts(write(tmp_path, data, name))


def test_absent_sources_are_refused(tmp_path):
    with pytest.raises(PromptsError, match="does not exist"):
        read_prompts("nowhere.txt", base=tmp_path)
    (tmp_path / "folder.txt").mkdir()
    with pytest.raises(PromptsError, match="cannot be read"):
        read_prompts("folder.txt", base=tmp_path)
    with pytest.raises(PromptsError, match="scenes:train and scenes:heldout"):
        read_prompts("scenes:test")
