"""The name of a pre-tokenizer, out of what published families have in their tokenizer.json."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ggmodel.convert.vocabulary import vocabulary
from ggmodel.errors import TokenizerError
from ggmodel.tokenizer.pretokenizers import PRE_TOKENIZERS
from tests.convert.vocabulary.published import (
    BYTES,
    LLAMA3,
    PUBLISHED,
    QWEN2,
    Published,
    byte_level,
    row,
    split,
)

FALCON = Path(__file__).parents[2] / "tokenizer" / "data" / "falcon.json"
ALPHABET = json.loads(FALCON.read_text("utf-8"))["metadata"]


def content(entry: Published) -> dict[str, Any]:
    """A tokenizer.json with these sections, and a small vocabulary."""
    kinds = ALPHABET["tokenizer.ggml.token_type"]
    tokens = [
        t for t, kind in zip(ALPHABET["tokenizer.ggml.tokens"], kinds, strict=True) if kind == 1
    ]
    return {
        "model": {
            "type": "BPE",
            "vocab": {token: id for id, token in enumerate(tokens)},
            "merges": ALPHABET["tokenizer.ggml.merges"],
            "ignore_merges": entry.ignore_merges,
        },
        "pre_tokenizer": entry.pre_tokenizer,
        "normalizer": entry.normalizer,
    }


def pre(folder: Path, entry: Published, **arguments: Any) -> str:
    (folder / "tokenizer.json").write_text(json.dumps(content(entry)), "utf-8")
    written = vocabulary(folder, {"model_type": entry.family}, **arguments)
    return written["tokenizer.ggml.pre"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_families_are_found(tmp_path: Path, name: str):
    assert pre(tmp_path, PUBLISHED[name]) == PUBLISHED[name].pre


# One name for each way; none that is known by something else.
BY_EXPRESSIONS = [
    name
    for name in {known: name for name, known in PRE_TOKENIZERS.items()}.values()
    if name not in ("default", "falcon") and PRE_TOKENIZERS[name].byte_level
]


@pytest.mark.parametrize("name", BY_EXPRESSIONS)
def test_every_known_way_is_told_from_all_others(tmp_path: Path, name: str):
    known = PRE_TOKENIZERS[name]
    steps = row(*map(split, known.splits), BYTES)
    found = pre(tmp_path, Published("", "", steps, None, known.ignore_merges))
    same = PRE_TOKENIZERS["qwen2" if name == "llada-moe" else name]  # the same in other words
    chosen = PRE_TOKENIZERS[found]
    assert (chosen.splits, chosen.ignore_merges) == (same.splits, same.ignore_merges)


def unknown() -> Iterator[Published]:
    """Each differs from a known one in one small thing."""
    yield Published("four digits", "llama", row(split(LLAMA3.replace("1,3", "1,4")), BYTES))
    yield Published("no case", "llama", row(split(LLAMA3.replace("(?i:'s", "(?:'s")), BYTES))
    yield Published("words", "qwen2", row(split(QWEN2.replace(r"]?\p{L}+", r"]?\p{L}")), BYTES))
    yield Published("spaces", "qwen2", row(split(QWEN2.replace(r"|\s+(?!\S)", "")), BYTES))
    yield Published("space in front", "gpt2", byte_level(prefix=True))
    yield Published("lower case", "gpt2", byte_level(), {"type": "Lowercase"})
    yield Published("not bytes", "gpt2", split(LLAMA3))


@pytest.mark.parametrize("entry", [*unknown()], ids=lambda entry: entry.pre)
def test_an_unknown_way_is_an_error_that_asks_for_a_name(tmp_path: Path, entry: Published):
    with pytest.raises(TokenizerError, match=r"--pre NAME.*llama-bpe"):
        pre(tmp_path, entry)
    assert pre(tmp_path, entry, pre="dbrx") == "dbrx"


def test_a_name_that_nothing_has_is_refused(tmp_path: Path):
    with pytest.raises(TokenizerError, match=r"'llama-9' is unknown; known are: .*llama-bpe"):
        vocabulary(tmp_path, {}, pre="llama-9")
