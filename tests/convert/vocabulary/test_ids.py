"""Ids of tokens: beyond the config's number, named in other files, and made by no merge."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from ggmodel.convert.vocabulary import vocabulary
from ggmodel.errors import FormatError, TokenizerError
from ggmodel.tokenizer import Tokenizer

DATA = Path(__file__).parent / "data"
G = "tokenizer.ggml."
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}


def write(folder: Path, tokens: list[str], merges: list[str], **settings: Any) -> Path:
    """A byte-level tokenizer.json of these tokens and a tokenizer_config.json."""
    folder.mkdir(exist_ok=True)
    content = {
        "added_tokens": [],
        "pre_tokenizer": {**BYTE_LEVEL, "use_regex": True},
        "decoder": {**BYTE_LEVEL, "use_regex": True},
        "model": {"type": "BPE", "vocab": {t: i for i, t in enumerate(tokens)}, "merges": merges},
    }
    (folder / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    return folder


# ids beyond the config's number


@pytest.mark.parametrize("name", ["llama3", "gemma3_json", "gemma3"])
@pytest.mark.parametrize("more", [1, 3])
def test_tokens_have_ids_up_to_the_rows_of_the_embedding(tmp_path: Path, name: str, more: int):
    folder = Path(shutil.copytree(DATA / name, tmp_path / "hf"))
    config = json.loads((folder / "config.json").read_text("utf-8"))
    before = vocabulary(folder, config)[G + "tokens"]
    size = len(before)
    settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    added = settings.setdefault("added_tokens_decoder", {})
    added[str(size + more - 1)] = {"content": "<|image|>", "special": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    text = config.get("text_config", config)
    text["vocab_size"] = size
    made = vocabulary(folder, config, rows=size + 8)
    padding = [f"[PAD{id}]" for id in range(size, size + more - 1)]
    assert made[G + "tokens"] == [*before, *padding, "<|image|>"]
    assert made[G + "token_type"].tolist()[size:] == [5] * (more - 1) + [3]
    assert Tokenizer.from_metadata(made).encode("<|image|>")[-1] == size + more - 1


def test_tokens_beyond_the_rows_of_the_embedding_are_refused(tmp_path: Path):
    folder = write(tmp_path / "hf", ["a", "b", "c"], [])
    config = {"model_type": "llama", "vocab_size": 2}
    with pytest.raises(FormatError, match=r"go from 0 to 2, but the model has 2 \(vocab_size in"):
        vocabulary(folder, config, "gpt-2")
    with pytest.raises(FormatError, match=r"to 2, but the model has 2 \(rows of its embedding\)"):
        vocabulary(folder, config, "gpt-2", rows=2)
    assert vocabulary(folder, config, "gpt-2", rows=3)[G + "tokens"] == ["a", "b", "c"]


# tokens that other files name


@pytest.mark.parametrize("listed", ["added_tokens_decoder", "model"])
def test_an_end_is_found_wherever_it_is_named(tmp_path: Path, listed: str):
    tokens, settings = ["a", "b", "Ġ"], {"eos_token": "<stop>", "bos_token": {"content": "<go>"}}
    if listed == "model":
        tokens += ["<stop>", "<go>"]
    else:
        settings["added_tokens_decoder"] = {
            "3": {"content": "<stop>", "special": True},
            "4": {"content": "<go>", "special": True},
        }
    folder = write(tmp_path / "hf", tokens, [], **settings)
    made = vocabulary(folder, {"model_type": "qwen2", "vocab_size": 5}, "gpt-2")
    assert (made[G + "eos_token_id"], made[G + "bos_token_id"]) == (3, 4)
    tokenizer = Tokenizer.from_metadata(made)
    assert (tokenizer.eos, tokenizer.bos) == (3, 4) and 3 in tokenizer.eog
    assert tokenizer.is_special(3)


# merges


def test_the_end_of_muse_glimmers_turns():
    config = json.loads((DATA / "llama4" / "config.json").read_text("utf-8"))
    made = vocabulary(DATA / "llama4", {**config, "model_type": "muse_glimmer"})
    assert made[G + "tokens"][made[G + "eot_token_id"]] == "<|eot|>"


def test_byte_pairs_without_merges_are_characters(tmp_path: Path):
    folder = write(tmp_path / "hf", ["a", "b", "Ġ", "Ċ", "<s>"], [], bos_token="<s>")
    made = vocabulary(folder, {"model_type": "llama", "vocab_size": 5}, "gpt-2")
    assert G + "merges" not in made
    tokenizer = Tokenizer.from_metadata(made)
    assert tokenizer.encode("ab a\n<s>", add_special=False) == [0, 1, 2, 0, 3, 4]
    assert tokenizer.decode([0, 1, 2, 0, 3]) == "ab a\n"


def test_byte_pairs_whose_merges_are_lost_are_refused(tmp_path: Path):
    folder = write(tmp_path / "hf", ["a", "b", "ab"], [])
    with pytest.raises(TokenizerError, match=r"has no merges.*several characters, such as 'ab'"):
        vocabulary(folder, {"model_type": "llama", "vocab_size": 3}, "gpt-2")


def test_a_token_that_no_merge_makes_is_joined_by_none(tmp_path: Path):
    tokens = ["<unk>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "a", "b", "c", "ab", "abc"]
    content = {
        "version": "1.0",
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "model": {
            "type": "BPE",
            "vocab": {text: id for id, text in enumerate(tokens)},
            "merges": ["a b"],
            "byte_fallback": True,
            "unk_token": "<unk>",
        },
    }
    config = {"model_type": "llama", "vocab_size": len(tokens)}
    unknown = {"id": 0, "content": "<unk>", "special": True, "normalized": False}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
    content["added_tokens"] = [{**unknown, **flags}]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    original = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert original.encode("abc").tokens == ["ab", "c"]
    # Scores would join "ab" and "c", as SentencePiece does.
    with pytest.raises(TokenizerError, match=r"\('ab', 'c'\) do not join though 'abc' is a token"):
        vocabulary(tmp_path, config)
    content["model"]["merges"].append("ab c")
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    tokenizer = Tokenizer.from_metadata(vocabulary(tmp_path, config))
    assert [tokenizer.token(id) for id in tokenizer.encode("abc", add_special=False)] == ["abc"]
