"""tekken.json: which file counts, what it may leave out, damage and bounds.

That the metadata equals llama.cpp's and the ids mistral_common's is in `test_like_the_converter`
and `test_round_trip`.
"""

from __future__ import annotations

import base64
import json
import os
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ggmodel import limits
from ggmodel.convert.vocabulary import vocabulary
from ggmodel.errors import FormatError, TokenizerError
from ggmodel.tokenizer import Tokenizer

DATA = Path(__file__).parent / "data"
G = "tokenizer.ggml."
Content = dict[str, Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA / "tekken", tmp_path / "hf"))


def read(folder: Path) -> Content:
    return json.loads((folder / "tekken.json").read_text("utf-8"))


def write(folder: Path, content: Content) -> None:
    (folder / "tekken.json").write_text(json.dumps(content), "utf-8")


def made(folder: Path, **config: Any) -> Content:
    return vocabulary(folder, {"model_type": "voxtral", **config})


# which file counts, and for what


def test_a_tokenizer_json_goes_before_it(folder: Path):
    shutil.copy(DATA / "llama3" / "tokenizer.json", folder)
    (folder / "tekken.json").write_text("{")
    assert made(folder)[G + "pre"] == "llama-bpe"


@pytest.mark.parametrize("other", ["llama2/tokenizer.model", "bert_cased/vocab.txt"])
def test_it_goes_before_other_files(folder: Path, other: str):
    before = made(folder)
    shutil.copy(DATA / other, folder)
    assert made(folder)[G + "tokens"] == before[G + "tokens"]


def test_a_tokenizer_config_speaks_of_templates_alone(folder: Path):
    before = made(folder)
    settings = {"bos_token": "[INST]", "add_eos_token": True, "added_tokens_decoder": {"7": {}}}
    settings |= {"additional_special_tokens": ["a"], "chat_template": "of the config"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    after = made(folder)
    assert after.pop("tokenizer.chat_template") == "of the config"
    del before["tokenizer.chat_template"]
    assert {k: str(v) for k, v in after.items()} == {k: str(v) for k, v in before.items()}


def test_a_folder_without_a_template_has_none():
    assert not [key for key in made(DATA / "tekken_v3") if "template" in key]


def test_a_named_pre_tokenizer_counts(folder: Path):
    content = read(folder)
    content["config"]["pattern"] = "[^a]+|a"
    write(folder, content)
    with pytest.raises(TokenizerError, match=r"tekken\.json cuts texts as no known"):
        made(folder)
    found = vocabulary(folder, {"model_type": "voxtral"}, "gpt-2")
    assert found[G + "pre"] == "gpt-2"


def test_rows_of_the_embedding_beyond_its_tokens(folder: Path):
    size = read(folder)["config"]["default_vocab_size"]
    assert made(folder, vocab_size=size + 2)[G + "tokens"][-1] == f"[PAD{size + 1}]"
    with pytest.raises(FormatError, match=r"tekken\.json: the ids .* but the model has 300"):
        made(folder, vocab_size=300)


def test_special_tokens_are_found_by_name_and_never_in_a_text(folder: Path):
    tokenizer = Tokenizer.from_metadata(made(folder))
    assert tokenizer.encode("[TRANSCRIBE]", add_special=False) == [34]
    plain = tokenizer.encode("[TRANSCRIBE]<s>", add_special=False, parse_special=False)
    assert min(plain) >= 40 and tokenizer.decode(plain) == "[TRANSCRIBE]<s>"
    assert tokenizer.encode("a")[0] == tokenizer.bos == 1 and tokenizer.eos == 2


# damage


def config(**changed: Any) -> Callable[[Content], None]:
    return lambda content: content["config"].update(changed)


def top(**changed: Any) -> Callable[[Content], None]:
    return lambda content: content.update(changed)


def token(at: int, **changed: Any) -> Callable[[Content], None]:
    return lambda content: content["vocab"][at].update(changed)


def special(at: int, **changed: Any) -> Callable[[Content], None]:
    return lambda content: content["special_tokens"][at].update(changed)


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


DAMAGE: list[tuple[Callable[[Content], None], str]] = [
    (top(config=None), r"config\.pattern"),
    (config(pattern=7), r"config\.pattern"),
    (config(default_vocab_size=None), r"config\.default_vocab_size should be a number"),
    (config(default_vocab_size=True), r"config\.default_vocab_size should be a number"),
    (config(default_vocab_size=100), r"leaves 60 others, which should be 256 to 410"),
    (config(default_vocab_size=1000), r"leaves 960 others, which should be 256 to 410"),
    (config(default_num_special_tokens=0), "default_num_special_tokens should be a number"),
    (config(default_num_special_tokens=9), "names 36 special tokens, but .* is 9"),
    (top(vocab={}), "vocab should be a list"),
    (top(special_tokens=7), "special_tokens should be a list"),
    (top(special_tokens=["<s>"]), r"special_tokens\[0\] should have rank 0"),
    (top(special_tokens=[]), "its special tokens lack <s>"),
    (special(3, rank=4), r"special_tokens\[3\] should have rank 3"),
    (special(3, token_str=""), r"special_tokens\[3\] should have"),
    (special(3, token_str="</s>"), "has the token '</s>' twice"),
    (special(3, token_str="a"), "has the token 'a' twice"),
    (special(2, token_str="<end>"), "its special tokens lack </s>"),
    (token(5, rank=6), r"vocab\[5\] should have rank 5"),
    (token(5, token_bytes="?"), r"vocab\[5\] should have"),
    (token(5, token_bytes="é"), r"vocab\[5\] should have"),
    (token(5, token_bytes=None), r"vocab\[5\] should have"),
    (token(5, token_bytes=""), r"vocab\[5\] should have"),
    (token(5, token_bytes=encoded(b"ab")), "first 256 tokens of vocab should be the single bytes"),
    (token(256, token_bytes=encoded(b"a" * 257)), r"vocab\[256\] .* 1 to 256 token_bytes"),
    (token(260, token_bytes=encoded(b"a")), "has the token 'a' twice"),
    (token(256, token_bytes=encoded(b"qxz")), r"vocab\[256\], 'qxz', is not made of two other"),
]


@pytest.mark.parametrize(("change", "message"), DAMAGE)
def test_a_damaged_file(folder: Path, change: Callable[[Content], None], message: str):
    content = read(folder)
    change(content)
    write(folder, content)
    with pytest.raises(FormatError, match=rf"tekken\.json: .*{message}.*get the file again"):
        made(folder)


@pytest.mark.parametrize("version", ["v11", "v99", None])
def test_later_versions_name_their_special_tokens(tmp_path: Path, version: str | None):
    folder = Path(shutil.copytree(DATA / "tekken_v3", tmp_path / "hf"))
    content = read(folder)
    content["config"]["version"] = version
    write(folder, content)
    with pytest.raises(FormatError, match="special_tokens should be a list, but is None"):
        made(folder)


# bounds


def test_it_is_measured_before_it_is_read(folder: Path):
    os.truncate(folder / "tekken.json", 3 << 30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(FormatError, match=r"tekken\.json has 3,221,225,472 .*tokenizer_file_bytes"):
        made(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20 << 10  # kB


@pytest.mark.parametrize("name", ["default_vocab_size", "default_num_special_tokens"])
def test_numbers_of_tokens_have_a_limit(folder: Path, name: str):
    content = read(folder)
    content["config"][name] = 1 << 60
    write(folder, content)
    with pytest.raises(TokenizerError, match=rf"tekken\.json: config\.{name}.*vocabulary_tokens"):
        made(folder)


@pytest.mark.parametrize(("limit", "of"), [("merges", "its merges"), ("letters", "vocab")])
def test_merges_and_letters_have_a_limit(
    folder: Path, monkeypatch: pytest.MonkeyPatch, limit: str, of: str
):
    monkeypatch.setattr(limits, f"vocabulary_{limit}", 100)
    with pytest.raises(TokenizerError, match=rf"tekken\.json: {of} has .*vocabulary_{limit}"):
        made(folder)


def test_an_expression_that_backtracks_is_ended(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "tokenizer_seconds", 1.0)
    content = read(folder)
    content["config"]["pattern"] = r"[^#]{0,300}[^#]{0,300}(?=[#\d][#b][#\d][#c]\d)"
    write(folder, content)
    started = time.monotonic()
    with pytest.raises(TokenizerError, match=r"tekken\.json: .*tokenizer_seconds"):
        made(folder)
    assert time.monotonic() - started < 30


def test_tokens_of_one_letter_each_longer_than_the_last(folder: Path):
    """Each is made of all shorter ones in all ways: the most merges that a length allows."""
    content = read(folder)
    runs = [{"token_bytes": encoded(b"a" * length)} for length in range(2, 257)]
    vocab = [*content["vocab"][:256], *runs]
    content["vocab"] = [{**item, "rank": rank} for rank, item in enumerate(vocab)]
    content["config"]["default_vocab_size"] = len(vocab) + 40
    write(folder, content)
    started = time.monotonic()
    found = made(folder)
    assert len(found[G + "merges"]) == 255 * 256 // 2
    tokenizer = Tokenizer.from_metadata(found)
    assert len(tokenizer.encode("a" * 300, add_special=False)) == 2
    assert time.monotonic() - started < 20
