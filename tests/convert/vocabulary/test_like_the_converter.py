"""Against llama.cpp's converter: the same keys, values and types for the directories of data/."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggmodel.convert.vocabulary import vocabulary

DATA = Path(__file__).parent / "data"
EXPECTED = {
    path.parent.name: json.loads(path.read_text("utf-8")) for path in DATA.glob("*/e*.json")
}
ARRAYS = {"int32": "INT32", "float32": "FLOAT32", "uint8": "UINT8"}

# The differences, and their reasons: keys that the converter leaves out (None) or has otherwise.
BETTER: dict[tuple[str, str], dict[str, Any]] = {
    # It gives all tokens one score, and the order of merging is lost.
    # It names one of llama.cpp's own templates, whatever the folder has, and writes scores of a
    # type that the format does not have.
    **{
        (f"tekken{end}", "metadata"): {
            "chat_template": ["STRING", f"mistral-{name}-tekken"],
            "scores": ["ARRAY INT32", [0] * 440],
        }
        for end, name in (("", "v7"), ("_v3", "v3"))
    },
    # All added tokens are control tokens to it, those that are text to a reader, too; without a
    # tokenizer.json it takes ids of special tokens from config.json.
    ("kimi", "metadata"): {
        "token_type": ["ARRAY INT32", [1] * 480 + [3] * 256],
        "unknown_token_id": None,
    },
    ("mistral_json", "metadata"): {"scores": ["ARRAY FLOAT32", [-1000.0] * 480]},
    # It leaves out the end of a model that has several.
    **{("gemma3", case): {"eos_token_id": None} for case in ("metadata", "gemma", "gemma2")},
    # A setting of decoding, clean_up_tokenization_spaces, is no word on spaces of a text.
    ("xlm_roberta_json", "metadata"): {"remove_extra_whitespaces": ["BOOL", False]},
    # It takes ids from tokenizer.json only, and leaves it to readers to know bert-base's by heart.
    ("bert_cased", "metadata"): dict.fromkeys(
        "bos_token_id eos_token_id unknown_token_id seperator_token_id padding_token_id "
        "mask_token_id add_bos_token add_eos_token add_sep_token normalizer.lowercase".split()
    ),
}


def typed(value: Any) -> list[Any]:
    """A value as expected.json has it."""
    if isinstance(value, np.ndarray):
        return [f"ARRAY {ARRAYS[value.dtype.name]}", value.tolist()]
    if isinstance(value, list):
        return ["ARRAY STRING", value]
    names = {str: "STRING", bool: "BOOL", int: "UINT32"}
    return [names[type(value)], value]


def float32(expected: list[Any]) -> list[Any]:
    kind, value = expected
    return [kind, np.float32(value).tolist() if "FLOAT32" in kind else value]


CASES = [(name, case) for name, cases in EXPECTED.items() for case in cases if case != "ids"]


@pytest.mark.parametrize(("name", "case"), CASES)
def test_metadata_equal_the_converters(name: str, case: str):
    config = json.loads((DATA / name / "config.json").read_text("utf-8"))
    if case != "metadata":
        config["model_type"] = case
    written = {key: typed(value) for key, value in vocabulary(DATA / name, config).items()}
    expected = {key: float32(value) for key, value in EXPECTED[name][case].items()}
    for key, value in BETTER.get((name, case), {}).items():
        key = f"tokenizer.{'' if key == 'chat_template' else 'ggml.'}{key}"
        assert expected.pop(key, None) == value
        assert written.pop(key, None) != value
    if name == "xlm_roberta":
        add_mask(expected)
    for key in sorted(written.keys() | expected.keys()):
        assert written.get(key) == expected.get(key), key


def add_mask(expected: dict[str, list[Any]]) -> None:
    """The last token of XLM-RoBERTa, which its model of pieces lacks, and the converter fills."""
    for key, filler, own in (
        ("tokens", "[PAD180]", "<mask>"),
        ("scores", -10000.0, 0.0),
        ("token_type", 5, 3),
    ):
        values = expected[f"tokenizer.ggml.{key}"][1]
        assert values[-1] == filler
        values[-1] = own


def test_every_kind_is_among_the_directories():
    models = {cases["metadata"]["tokenizer.ggml.model"][1] for cases in EXPECTED.values()}
    assert models == {"gpt2", "llama", "bert", "t5", "rwkv"}
    types = {t for c in EXPECTED.values() for t in c["metadata"]["tokenizer.ggml.token_type"][1]}
    assert types == {1, 2, 3, 4, 5, 6}
