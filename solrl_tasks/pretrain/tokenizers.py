"""Tokenizers made from the grammar's words alone: no training, no files from elsewhere."""

from __future__ import annotations

import string
from typing import Any

from transformers import CLIPTokenizer, T5Tokenizer

from solrl_tasks.scenes.grammar import words

MAX_TOKENS = 16


def _padded(count: int) -> int:
    return -(-count // 8) * 8


def clip_tokenizer() -> Any:
    """A byte-pair CLIP tokenizer in which every word of the grammar is one token; bos is 0, eos and padding are 1."""
    symbols = ["<|startoftext|>", "<|endoftext|>", *string.ascii_lowercase]
    symbols += [letter + "</w>" for letter in string.ascii_lowercase]
    merges: list[tuple[str, str]] = []
    for word in words():
        tail = word[-1] + "</w>"
        for letter in reversed(word[:-1]):
            if (letter, tail) not in merges:
                merges.append((letter, tail))
                symbols.append(letter + tail)
            tail = letter + tail
    vocabulary = {symbol: index for index, symbol in enumerate(dict.fromkeys(symbols))}
    end = "<|endoftext|>"
    return CLIPTokenizer(
        vocab=vocabulary, merges=merges, model_max_length=MAX_TOKENS, pad_token=end, unk_token=end, eos_token=end
    )


def t5_tokenizer() -> Any:
    """A unigram T5 tokenizer in which every word of the grammar is one token; padding is 0, eos is 1."""
    pieces: list[tuple[str, float]] = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    pieces += [(f"▁{word}", -1.0) for word in words()]
    known = {piece for piece, _ in pieces}
    pieces += [(letter, -8.0) for letter in string.ascii_lowercase if letter not in known]
    return T5Tokenizer(vocab=pieces, extra_ids=0, model_max_length=MAX_TOKENS)


def vocabulary_size(tokenizer: Any) -> int:
    """Rows that an embedding for this tokenizer needs, rounded up to a multiple of 8."""
    return _padded(len(tokenizer))
