"""Damaged, hostile and missing files: errors that name the file."""

import contextlib
import json
import random
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ggmodel.chat import Reply, ReplyFormat
from ggmodel.convert.vocabulary import vocabulary
from ggmodel.convert.vocabulary.files import read_sentencepiece
from ggmodel.errors import ConfigError, Error, FormatError, TokenizerError

DATA = Path(__file__).parent / "data"
NAMES = sorted(path.name for path in DATA.iterdir())


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the directory of the parameter, free to be damaged."""
    return Path(shutil.copytree(DATA / getattr(request, "param", "llama3"), tmp_path / "hf"))


def made(folder: Path, **config: Any) -> dict[str, Any]:
    return vocabulary(folder, json.loads((folder / "config.json").read_text("utf-8")) | config)


def change(path: Path, **sections: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | sections), "utf-8")


def test_a_directory_without_a_vocabulary(tmp_path: Path):
    with pytest.raises(
        TokenizerError, match=r"no tokenizer\.json, tekken\.json, tiktoken\.model, tokenizer\.model"
    ):
        vocabulary(tmp_path, {})


@pytest.mark.parametrize("text", [b"{", b"[]", b"\xff{}", b"[" * 100_000, b"1" * 10_000])
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_file_that_is_no_json_object(folder: Path, name: str, text: bytes):
    (folder / name).write_bytes(text)
    with pytest.raises(FormatError, match=name.replace(".", r"\.")):
        made(folder)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"model": None}, "model is missing"),
        ({"model": {"type": "BPE", "vocab": [], "merges": []}}, r"model\.vocab"),
        ({"model": {"type": "BPE", "vocab": {"a": "b"}, "merges": []}}, r"model\.vocab"),
        ({"model": {"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": []}}, "one id for two"),
        ({"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}, "ids .* from -1"),
        ({"model": {"type": "BPE", "vocab": {"a": 1 << 70}, "merges": []}}, "the model has 344"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a"]}}, "a merge should be"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [[1, 2]]}}, "a merge should be"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", 2]]}}, "a pair of texts"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": True}}, "merges should be"),
        ({"added_tokens": [{"content": "x"}]}, "no text or no id"),
        ({"added_tokens": [{"content": ["x"], "id": 0}]}, "no text or no id"),
        ({"added_tokens": [{"content": "xyz", "id": 0}]}, "the id of another"),
        ({"added_tokens": 7}, "added_tokens"),
        ({"post_processor": {"type": "TemplateProcessing", "single": 7}}, "post_processor"),
        ({"post_processor": {"processors": [7]}}, "post_processor"),
        ({"pre_tokenizer": {"type": "Unheard"}}, "tokenizers package does not know"),
        ({"decoder": 7}, "tokenizers package does not know"),
    ],
)
def test_a_damaged_tokenizer_json(folder: Path, sections: dict[str, Any], message: str):
    change(folder / "tokenizer.json", **sections)
    with pytest.raises((FormatError, TokenizerError), match=message):
        made(folder)


def test_a_damaged_table_of_added_tokens(folder: Path):
    change(folder / "tokenizer_config.json", added_tokens_decoder={"7": {"content": {}}})
    with pytest.raises(FormatError, match="no text or no id"):
        made(folder)


@pytest.mark.parametrize("folder", ["bert_cased"], indirect=True)
def test_a_token_of_vocab_txt_that_is_no_text(folder: Path):
    change(folder / "tokenizer_config.json", mask_token=["[MASK]"])
    assert "▁[MASK]" in made(folder)["tokenizer.ggml.tokens"]


def test_a_model_type_that_is_none(folder: Path):
    assert made(folder, model_type=["llama"])["tokenizer.ggml.tokens"]


@pytest.mark.slow
@pytest.mark.parametrize("pattern", [r"(\s*)*x", r"(a*)*b", r"(?:(?=(\X+))\1)*q", "("])
def test_an_expression_made_to_take_long(folder: Path, pattern: str):
    cut = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    change(folder / "tokenizer.json", pre_tokenizer=cut)
    start = time.process_time()
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        made(folder)
    assert time.process_time() - start < 5


def test_kinds_that_are_not_supported(folder: Path):
    change(folder / "tokenizer.json", model={"type": "WordLevel", "vocab": {"a": 0}})
    with pytest.raises(TokenizerError, match=r"kind WordLevel, which needs its tokenizer\.model"):
        made(folder)


@pytest.mark.parametrize("size", [0, -1, "12", 1 << 40, True, 2.5])
def test_an_impossible_number_of_tokens(folder: Path, size: Any):
    with pytest.raises(ConfigError, match="vocab_size"):
        made(folder, vocab_size=size)


def test_half_a_character(folder: Path):
    change(folder / "tokenizer_config.json", chat_template="\ud83d")
    with pytest.raises(TokenizerError, match=r"chat_template holds the lone surrogate U\+D83D"):
        made(folder)


def test_a_vocabulary_of_another_model(folder: Path):
    with pytest.raises(FormatError, match=r"from 0 to \d+, but the model has 100"):
        made(folder, vocab_size=100)


@pytest.mark.parametrize("template", [7, ["text"], [{"name": 1, "template": "x"}]])
def test_a_chat_template_that_is_none(folder: Path, template: Any):
    change(folder / "tokenizer_config.json", chat_template=template)
    with pytest.raises(FormatError, match="chat_template"):
        made(folder)


@pytest.mark.parametrize("declared", [7, ["text"], "text"])
def test_a_declaration_of_replies_that_is_none(folder: Path, declared: Any):
    change(folder / "tokenizer_config.json", response_template=declared)
    with pytest.raises(FormatError, match="response_template should be an object"):
        made(folder)


def test_a_declaration_of_replies_goes_into_the_file(folder: Path):
    declared = {"start_anchor": "A", "fields": {"content": {"close": "é"}}}
    change(folder / "tokenizer_config.json", response_template=declared)
    form = ReplyFormat.from_metadata(made(folder))
    assert form.name == "declared"
    assert form.parse("Hello é") == Reply("Hello")


@pytest.mark.parametrize("folder", ["mistral_json"], indirect=True)
def test_merges_that_no_scores_can_give(folder: Path):
    model = json.loads((folder / "tokenizer.json").read_text("utf-8"))["model"]
    made_of = Counter("".join(pair) for pair in model["merges"])
    twice = next(text for text, count in made_of.items() if count > 1)
    gone = next(pair for pair in model["merges"] if "".join(pair) == twice)
    merges = [pair for pair in model["merges"] if pair != gone]
    change(folder / "tokenizer.json", model=model | {"merges": merges})
    with pytest.raises(
        TokenizerError, match=r"merges are not those of one.*add the tokenizer\.model"
    ):
        made(folder)


@pytest.mark.parametrize("folder", ["llama2"], indirect=True)
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no pieces"),
        (b"not a model", "SentencePiece model: byte"),
        (b"\x0a\x7f", "goes 127 bytes too far"),
        (b"\x0a", "does not end"),
        (b"\x80" * 20, "does not end"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "bytes too far"),
        (b"\x0a\x03\x0a\x01\xff", "no UTF-8"),
        (b"\x0a\x02\x18\x09", "unknown type 9"),
        (b"\x0a\x02\x08\x09", "wire type 0, not 2"),
        (b"\x0b", "no wire type 3"),
    ],
)
def test_a_file_that_is_no_sentencepiece_model(folder: Path, data: bytes, message: str):
    (folder / "tokenizer.model").write_bytes(data)
    with pytest.raises(FormatError, match=message):
        made(folder)


def test_a_damaged_sentencepiece_model_is_read_or_refused():
    whole = (DATA / "llama2" / "tokenizer.model").read_bytes()
    draw = random.Random(3)
    refused = 0
    for _ in range(150):
        data = bytearray(whole[: draw.randrange(1, len(whole))])
        for _ in range(draw.randrange(4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        try:
            read_sentencepiece(bytes(data), "tokenizer.model")
        except FormatError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize("folder", NAMES, indirect=True)
def test_any_damage_is_an_error_of_ours_or_none(folder: Path):
    """Values of the JSON files replaced at random by values of other types."""
    draw = random.Random(11)
    others = [None, 7, -1, 2.5, "x", "", True, [], {}, [7], {"x": 7}, 1 << 80, ["x", None]]
    files = sorted({*folder.glob("*.json")} - {folder / "expected.json", folder / "config.json"})
    for _ in range(20):
        file = draw.choice(files)
        whole = file.read_text("utf-8")
        value = content = json.loads(whole)
        while True:
            keys = [*value] if isinstance(value, dict) else range(len(value))
            key: Any = draw.choice(keys)
            inner = value[key]
            if not isinstance(inner, (dict, list)) or not inner or draw.random() < 0.2:
                break
            value = inner
        value[key] = draw.choice(others)
        file.write_text(json.dumps(content), "utf-8")
        with contextlib.suppress(Error):
            made(folder)
        file.write_text(whole, "utf-8")


# unigrams


@pytest.fixture
def unigrams(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA / "xlm_roberta_json", tmp_path / "unigrams"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab": [["a", 0.0], ["a", 1.0]]}, "two pieces of model.vocab have one text"),
        ({"vocab": [["a", "b"]]}, r"a text and its score, but is \['a', 'b'\]"),
        ({"vocab": {"a": 0}}, "a text and its score"),
        ({"unk_id": None}, "model.unk_id is None, no id of a token"),
        ({"unk_id": 999}, "model.unk_id is 999"),
    ],
)
def test_damaged_unigrams(unigrams: Path, changes: dict[str, Any], message: str):
    content = json.loads((unigrams / "tokenizer.json").read_text("utf-8"))
    change(unigrams / "tokenizer.json", model={**content["model"], **changes})
    with pytest.raises(FormatError, match=message):
        made(unigrams)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"normalizer": {"type": "Lowercase"}}, "prepares texts by Lowercase"),
        ({"pre_tokenizer": {"type": "WhitespaceSplit"}}, "prepares texts by no Metaspace"),
    ],
)
def test_unigrams_with_steps_of_their_own(unigrams: Path, changes: Any, message: str):
    change(unigrams / "tokenizer.json", **changes)
    with pytest.raises(TokenizerError, match=message):
        made(unigrams)


def test_a_charsmap_that_is_no_base64(unigrams: Path):
    step = {"type": "Precompiled", "precompiled_charsmap": "?"}
    change(unigrams / "tokenizer.json", normalizer=step)
    with pytest.raises(FormatError, match="is no base64"):
        made(unigrams)


@pytest.mark.parametrize("folder", ["rwkv"], indirect=True)
@pytest.mark.parametrize(
    "line",
    [b"2 'b'", b"3 'b' 1", b"2 'b' 2", b"2 b 1", b"2 7 1", b"2 '' 0", b"2 b'\\ 1", b""],
)
def test_a_damaged_line_of_rwkv_is_named(folder: Path, line: bytes):
    file = folder / "rwkv_vocab_v20230424.txt"
    file.write_bytes(b"1 'a' 1\n" + line + b"\n")
    with pytest.raises(FormatError, match=r"rwkv_vocab.* line 2 is"):
        made(folder)
    file.write_bytes(b"1 'a' 1\n2 'b' 1")
    with pytest.raises(FormatError, match="whole lines"):
        made(folder)
