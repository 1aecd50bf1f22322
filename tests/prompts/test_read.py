"""Prompt files of every form give the same prompts, or errors that name file and line."""

import json
from pathlib import Path

import pyarrow as arrow
import pytest
from pyarrow import parquet

from solrl_tasks.config.recipe import PromptSource
from solrl_tasks.prompts.errors import PromptsError
from solrl_tasks.prompts.read import read_prompts
from solrl_tasks.sampling.prompts import Prompt


def write(folder: Path, data: str | bytes, name: str = "p.txt") -> str:
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    return str(folder / name)


def write_parquet(folder: Path, columns: dict, name: str = "p.parquet") -> str:
    parquet.write_table(arrow.table(columns), folder / name)
    return str(folder / name)


def test_a_text_file_is_one_prompt_a_line(tmp_path):
    path = write(
        tmp_path, b'\xef\xbb\xbfa cat\r\n\r\n  two dogs \n\xe2\x80\xa8{"x": 1}\nna\xc3\xafve\xe2\x80\xa8art\n\na cat'
    )
    prompts = read_prompts(path)
    assert prompts.texts == ("a cat", "two dogs", '{"x": 1}', "naïve\u2028art", "a cat")
    assert prompts.keys[0][:-2] == prompts.keys[4][:-2]
    assert (prompts.keys[0][-2:], prompts.keys[4][-2:]) == ("-0", "-1")


def test_a_jsonl_file_carries_metadata(tmp_path):
    lines = '{"prompt": " a cat ", "n": 2}\n\n{"metadata": {"tag": ["x"]}, "prompt": "b", "n": null}\n'
    prompts = read_prompts(write(tmp_path, lines, "p.JSONL"))
    assert prompts[0] == Prompt("a cat", {"n": 2})
    assert prompts[1] == Prompt("b", {"n": None, "tag": ["x"]})


def test_a_csv_file_has_a_header_and_texts(tmp_path):
    text = 'n,prompt,metadata\n2,"a cat, a dog","{""tag"": ""x""}"\n\n3,"two\nlines\u2028here",\n'
    prompts = read_prompts(write(tmp_path, text, "p.csv"))
    assert prompts[0] == Prompt("a cat, a dog", {"n": "2", "tag": "x"})
    assert prompts[1] == Prompt("two\nlines\u2028here", {"n": "3"})


def test_a_parquet_file_keeps_its_types(tmp_path):
    columns = {"prompt": ["a cat", "b"], "n": [2, None], "include": [[{"class": "cat", "count": 1}], []]}
    prompts = read_prompts(write_parquet(tmp_path, columns))
    assert prompts[0] == Prompt("a cat", {"n": 2, "include": [{"class": "cat", "count": 1}]})
    assert prompts[1] == Prompt("b", {"n": None, "include": []})


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_one_prompt_has_one_key_in_every_form(tmp_path, form):
    rows = [{"caption": "a cat", "tag": "x", "id": "7"}, {"caption": "two dogs", "tag": "y", "id": "8"}]
    if form == "jsonl":
        path = write(tmp_path, "".join(json.dumps(row) + "\n" for row in rows), "p.jsonl")
    elif form == "csv":
        path = write(tmp_path, "caption,tag,id\na cat,x,7\ntwo dogs,y,8\n", "p.csv")
    else:
        path = write_parquet(tmp_path, {name: [row[name] for row in rows] for name in rows[0]})
    prompts = read_prompts(PromptSource(source=path, column="caption", metadata=("tag",)))
    same = write(tmp_path, '{"prompt": "a cat", "tag": "x"}\n{"prompt": "two dogs", "tag": "y"}\n', "same.jsonl")
    assert prompts.keys == read_prompts(same).keys


def test_pictures_beside_texts_are_not_read(tmp_path):
    path = write_parquet(tmp_path, {"prompt": ["a"], "image": [b"\x89PNG"], "n": [1]})
    with pytest.raises(PromptsError, match=r"column 'image' holds bytes .* in `metadata`"):
        read_prompts(path)
    assert read_prompts(PromptSource(source=path, metadata=("n",)))[0] == Prompt("a", {"n": 1})
    assert read_prompts(PromptSource(source=path, metadata=()))[0] == Prompt("a")


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
        ("good\n\na \x1b[31mcat", "p.txt", r"p\.txt:3: the prompt 'a' goes on with the control character U\+001B"),
        ("a\x85c", "p.txt", r"p\.txt:1: .*U\+0085 \(its character 2\)"),
        ('\n{"prompt": "a\\u0007"}', "p.jsonl", r"p\.jsonl:2: .*U\+0007"),
        ('prompt\nfine\n"a\x0bc"', "p.csv", r"p\.csv:3: .*U\+000B"),
        ("a cat", "p.tsv", r"end in \.txt"),
        ('{"prompt": "a"}\n{"prompt": ', "p.jsonl", r"p\.jsonl:2: not valid JSON .* column"),
        ('["a"]', "p.jsonl", r"p\.jsonl:1: must be an object .* found list"),
        ('{"text": "a"}', "p.jsonl", r'p\.jsonl:1: "prompt" must be a text .* found only text'),
        ('{"prompt": "  "}', "p.jsonl", r"not blank"),
        ('{"prompt": 3}', "p.jsonl", r"found 3"),
        ('{"prompt": "a", "metadata": 3}', "p.jsonl", r'"metadata" must be an object, found int'),
        ('{"prompt": "a", "n": 1, "metadata": {"n": 1}}', "p.jsonl", r"n stands both"),
        ('\n{"prompt": "a", "n": NaN}', "p.jsonl", r"p\.jsonl:2: n is nan: only finite"),
        ('{"prompt": "a", "n": [1e999]}', "p.jsonl", r"p\.jsonl:1: n\[0\] is inf: only finite"),
        ('{"prompt": "a\\ud800"}', "p.jsonl", r"p\.jsonl:1: .*surrogates not allowed"),
        ("", "p.csv", r"p\.csv is empty|no column"),
        ("text\na", "p.csv", r"p\.csv:1: there is no column 'prompt' in the header, only 'text'"),
        ("prompt,n,n\na,1,2", "p.csv", r"p\.csv:1: the header names 'n' twice"),
        ("prompt,n\na,1\n\na, b,2", "p.csv", r"p\.csv:4: 3 values in a file of 2 columns"),
        ('prompt\n"a', "p.csv", r"p\.csv:\d: not valid CSV"),
        ("prompt,metadata\na,{", "p.csv", r"p\.csv:2: not valid JSON"),
        ("no parquet", "p.parquet", r"p\.parquet cannot be read as Parquet"),
    ],
)
def test_malformed_files_are_refused_with_the_line(tmp_path, data, name, message):
    with pytest.raises(PromptsError, match=message):
        read_prompts(write(tmp_path, data, name))


def test_a_parquet_row_is_named_by_its_number(tmp_path):
    path = write_parquet(tmp_path, {"prompt": ["a", None], "n": [1.0, 2.0]})
    with pytest.raises(PromptsError, match=r"p\.parquet, row 2: \"prompt\" must be a text"):
        read_prompts(path)
    path = write_parquet(tmp_path, {"prompt": ["a", "b"], "n": [1.0, float("nan")]})
    with pytest.raises(PromptsError, match=r"row 2: n is nan"):
        read_prompts(path)
    with pytest.raises(PromptsError, match=r"no column 'caption', only 'prompt', 'n'"):
        read_prompts(PromptSource(source=path, column="caption"))


def test_columns_that_nobody_has_are_refused(tmp_path):
    path = write(tmp_path, '{"prompt": "a", "n": 1}\n{"prompt": "b"}', "p.jsonl")
    assert read_prompts(PromptSource(source=path, metadata=("n",)))[1] == Prompt("b")
    with pytest.raises(PromptsError, match="no row has m, which `metadata` names"):
        read_prompts(PromptSource(source=path, metadata=("n", "m")))


def test_huge_prompts_are_cut_in_messages(tmp_path):
    with pytest.raises(PromptsError) as refused:
        read_prompts(write(tmp_path, "word " * 100_000 + "\x07"))
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"source": "nowhere.txt"}, "does not exist"),
        ({"source": "nowhere.parquet"}, "does not exist"),
        ({"source": "folder.txt"}, "cannot be read"),
        ({"source": "scenes:test"}, "scenes:train and scenes:heldout"),
        ({"source": "scenes:train", "split": "train"}, "built in: they have no split"),
        ({"source": "p.txt", "split": "train"}, "a file has no split"),
        ({"source": "p.txt", "revision": "main"}, "`revision` is of a dataset of the hub"),
        ({"source": "owner/name"}, "a dataset of the hub is named hf:"),
        ({"source": "hf:name"}, "named like hf:OWNER/NAME"),
    ],
)
def test_sources_that_are_none_are_refused(tmp_path, source, message):
    write(tmp_path, "a")
    (tmp_path / "folder.txt").mkdir()
    with pytest.raises(PromptsError, match=message):
        read_prompts(PromptSource(**source), base=None if source["source"] == "owner/name" else tmp_path)


def test_a_parquet_column_that_stands_twice_is_refused(tmp_path):
    columns = [arrow.array(["a"]), arrow.array(["b"])]
    parquet.write_table(arrow.Table.from_arrays(columns, names=["prompt", "prompt"]), tmp_path / "p.parquet")
    with pytest.raises(PromptsError, match="several columns 'prompt'"):
        read_prompts(str(tmp_path / "p.parquet"))
