"""Special tokens: found in texts, added around them, ending generations."""

import random
import re
import time

import pytest

from ggmodel.errors import ConfigError
from ggmodel.tokenizer import Tokenizer
from ggmodel.tokenizer.special import Splitter

CONTROL, USER_DEFINED, NORMAL = 3, 4, 1
G = "tokenizer.ggml."


def with_tokens(metadata: dict, *names: str, type: int = CONTROL) -> dict:
    extra = {}
    for key, value in (("tokens", list(names)), ("token_type", [type] * len(names))):
        extra[G + key] = metadata[G + key] + value
    if G + "scores" in metadata:
        extra[G + "scores"] = metadata[G + "scores"] + [0.0] * len(names)
    return {**metadata, **extra}


def test_control_tokens_need_parse_special(metadata):
    tokenizer = Tokenizer.from_metadata(metadata)
    eot, tool = tokenizer.id_of("<|eot_id|>"), tokenizer.id_of("<tool>")
    assert tokenizer.encode("<|eot_id|>", add_special=False) == [eot]
    plain = tokenizer.encode("<|eot_id|><tool>", add_special=False, parse_special=False)
    assert eot not in plain
    assert plain[-1] == tool


def test_a_whole_word_never_becomes_a_control_token(vocabularies):
    # llama-bpe looks whole pieces up before it merges.
    metadata = with_tokens(vocabularies["llama-bpe"]["metadata"], "keeperstop")
    tokenizer = Tokenizer.from_metadata(metadata)
    stop = tokenizer.id_of("keeperstop")
    assert tokenizer.encode("keeperstop", add_special=False, parse_special=True) == [stop]
    plain = tokenizer.encode("keeperstop", add_special=False, parse_special=False)
    assert stop not in plain
    assert tokenizer.decode(plain) == "keeperstop"


@pytest.mark.parametrize("metadata", ["llama-bpe"], indirect=True)
def test_a_control_token_that_merges_name_stays_reachable(metadata):
    # Some files mark ordinary words as control tokens.
    whole = metadata[G + "merges"][-1].replace(" ", "")
    types = list(metadata[G + "token_type"])
    id = metadata[G + "tokens"].index(whole)
    types[id] = CONTROL
    tokenizer = Tokenizer.from_metadata({**metadata, G + "token_type": types})
    text = whole.replace("Ġ", " ")
    assert text.isascii()
    assert tokenizer.encode(text, add_special=False, parse_special=False) == [id]


@pytest.mark.parametrize("metadata", ["spm-bytes"], indirect=True)
def test_sentencepiece_never_spells_a_control_or_byte_token(metadata):
    tokenizer = Tokenizer.from_metadata(metadata)
    ids = tokenizer.encode("<s></s><unk><0x41>", add_special=False, parse_special=False)
    assert not {"<s>", "</s>", "<unk>", "<0x41>"} & {tokenizer.token(id) for id in ids}


@pytest.mark.parametrize("metadata", ["spm-bytes"], indirect=True)
def test_sentencepiece_puts_a_space_after_special_tokens_too(metadata):
    tokenizer = Tokenizer.from_metadata(metadata)
    the = tokenizer.encode("the", add_special=False)
    assert tokenizer.encode("</s>the", add_special=False) == [tokenizer.eos, *the]
    metadata[G + "add_space_prefix"] = False
    without = Tokenizer.from_metadata(metadata)
    assert without.encode(" the", add_special=False) == the


def test_runs_with_equal_scores_grow_from_the_left():
    # Llama's own vocabulary gives all runs of spaces one score.
    tokens = ["<unk>", "<s>", "</s>", "▁", "a", "▁▁", "▁▁▁", "▁▁▁▁", "▁a"]
    metadata = {
        G + "model": "llama",
        G + "tokens": tokens,
        G + "scores": [0.0, 0.0, 0.0, -2.0, -3.0, -1e9, -1e9, -1e9, -1.0],
        G + "token_type": [2, CONTROL, CONTROL, *[NORMAL] * 6],
    }
    tokenizer = Tokenizer.from_metadata(metadata)
    for spaces, expected in ((1, [2]), (6, [4, 3]), (7, [4, 4]), (8, [4, 4, 1])):
        ids = tokenizer.encode(" " * spaces, add_special=False)
        assert [len(tokenizer.token(id)) for id in ids] == expected
    ids = tokenizer.encode("    a", add_special=False)
    assert [tokenizer.token(id) for id in ids] == ["▁▁▁▁", "▁a"]


def scored(scores: dict[str, float], **keys: object) -> Tokenizer:
    """A SentencePiece vocabulary with these pieces behind its three special tokens."""
    metadata = {
        G + "model": "llama",
        G + "tokens": ["<unk>", "<s>", "</s>", *scores],
        G + "scores": [0.0, 0.0, 0.0, *scores.values()],
        G + "token_type": [2, CONTROL, CONTROL, *[NORMAL] * len(scores)],
        G + "add_space_prefix": False,
    }
    return Tokenizer.from_metadata(metadata | {G + key: value for key, value in keys.items()})


def spelled(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.token(id) for id in tokenizer.encode(text, add_special=False)]


def test_the_better_score_joins_first():
    letters = {"a": -9.0, "b": -9.0, "c": -9.0}
    assert spelled(scored({**letters, "ab": -2.0, "bc": -1.0}), "abc") == ["a", "bc"]
    assert spelled(scored({**letters, "ab": -1.0, "bc": -2.0}), "abc") == ["ab", "c"]


def test_pieces_of_256_characters_join_and_longer_ones_do_not():
    runs = scored({"a" * 2**n: -float(n) for n in range(10)})
    assert spelled(runs, "a" * 512) == ["a" * 256] * 2
    assert spelled(scored({"a": -1.0, "a" * 256: -2.0, "a" * 257: -3.0, "b": -4.0}), "b") == ["b"]
    odd = {"a" * 128: -1.0, "a" * 129: -2.0, "a": -3.0, "a" * 257: 0.0}
    runs = {"a" * 2**n: -float(9 - n) for n in range(8)}
    assert "a" * 257 not in spelled(scored(runs | odd), "a" * 257)


def test_the_unknown_token_is_number_0_by_default():
    assert spelled(scored({"a": -1.0}), "a?a") == ["a", "<unk>", "a"]
    other = scored({"a": -1.0, "[unk]": -2.0}, unknown_token_id=4)
    assert spelled(other, "a?a") == ["a", "[unk]", "a"]


def test_byte_level_text_takes_no_space_in_front(metadata):
    plain = Tokenizer.from_metadata(metadata).encode("the", add_special=False)
    metadata[G + "add_space_prefix"] = True
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.encode("the", add_special=False) == plain
    assert tokenizer.decode(tokenizer.encode(" the", add_special=False)) == " the"


@pytest.mark.parametrize(
    ("metadata", "add_bos", "add_eos"),
    [("gpt-2", False, False), ("llama-bpe", True, False), ("spm-bytes", True, False)],
    indirect=["metadata"],
)
def test_tokens_around_the_text(metadata, add_bos, add_eos):
    tokenizer = Tokenizer.from_metadata(metadata)
    assert (tokenizer.add_bos, tokenizer.add_eos) == (add_bos, add_eos)
    bare = tokenizer.encode("the", add_special=False)
    assert tokenizer.encode("the") == [tokenizer.bos] * add_bos + bare
    metadata[G + "add_bos_token"], metadata[G + "add_eos_token"] = not add_bos, True
    turned = Tokenizer.from_metadata(metadata)
    assert turned.encode("the") == [turned.bos] * (not add_bos) + bare + [turned.eos]


def test_gemma_4_has_a_first_token_whatever_the_file_says(vocabularies):
    base = dict(vocabularies["gpt-2"]["metadata"])
    metadata = {**base, G + "model": "gemma4", G + "add_bos_token": False}
    assert Tokenizer.from_metadata(metadata).add_bos


@pytest.mark.parametrize("key", ["add_bos_token", "add_eos_token"])
def test_a_token_to_add_must_be_named(metadata, key):
    id_key = G + key.replace("add_", "") + "_id"
    metadata.pop(id_key)
    metadata[G + key] = True
    with pytest.raises(ConfigError, match=rf"{G}{key} is true.* {id_key} "):
        Tokenizer.from_metadata(metadata)


def test_ends_by_key_and_by_name(metadata):
    metadata = with_tokens(metadata, "<|im_end|>", "<|file_sep|>", "</s>", "<stop>", "<msg>")
    first = len(metadata[G + "tokens"]) - 5
    metadata[G + "eot_token_id"], metadata[G + "eom_token_id"] = first + 3, first + 4
    tokenizer = Tokenizer.from_metadata(metadata)
    names = {tokenizer.token(id) for id in tokenizer.eog}
    ends = {"<|eot_id|>", "<|im_end|>", "<|file_sep|>", "</s>", "<stop>", "<msg>"}
    assert names == ends


def test_html_is_no_end(metadata):
    tokenizer = Tokenizer.from_metadata(with_tokens(metadata, "</s>", type=USER_DEFINED))
    assert tokenizer.id_of("</s>") not in tokenizer.eog


def test_a_harmony_message_ends_no_turn(metadata):
    alone = Tokenizer.from_metadata(with_tokens(metadata, "<|end|>"))
    assert alone.id_of("<|end|>") in alone.eog
    harmony = Tokenizer.from_metadata(with_tokens(metadata, "<|end|>", "<|return|>", "<|call|>"))
    assert harmony.id_of("<|end|>") not in harmony.eog
    assert harmony.id_of("<|return|>") in harmony.eog
    solar = Tokenizer.from_metadata(with_tokens(metadata, "<|end|>", "<|flush|>", "<|calls|>"))
    assert solar.id_of("<|end|>") not in solar.eog


def test_only_sentencepiece_has_a_default_end(vocabularies):
    for name, ends in (("spm-bytes", {2}), ("gpt-2", set())):
        metadata = {k: v for k, v in vocabularies[name]["metadata"].items() if "_token_id" not in k}
        metadata |= {G + "add_bos_token": False}
        named = {i for i, text in enumerate(metadata[G + "tokens"]) if text.startswith("<|")}
        assert Tokenizer.from_metadata(metadata).eog - named == ends


def test_phi_3_swallows_space_on_the_right_and_llama_does_not(vocabularies):
    text = "<|end|>\n the"
    base = with_tokens(vocabularies["spm-bytes"]["metadata"], "<|end|>", "<|endoftext|>")
    llama = Tokenizer.from_metadata({**base, "general.name": "Llama"})
    assert llama.decode(llama.encode(text, add_special=False)) == text
    for names in ({"general.name": "Phi-3 mini"}, {"general.architecture": "phi3"}):
        phi = Tokenizer.from_metadata({**base, **names})
        assert phi.decode(phi.encode(text, add_special=False)) == "<|end|>the"
        kept = "<|endoftext|>\n the"
        assert phi.decode(phi.encode(kept, add_special=False)) == kept


def test_the_mask_of_modern_bert_swallows_space_on_the_left(metadata):
    metadata[G + "pre"] = "modern-bert"
    tokenizer = Tokenizer.from_metadata(with_tokens(metadata, "[MASK]"))
    assert tokenizer.decode(tokenizer.encode("a \n[MASK] b", add_special=False)) == "a[MASK] b"


def test_is_special_and_lookup(metadata):
    tokenizer = Tokenizer.from_metadata(metadata)
    eot, tool = tokenizer.id_of("<|eot_id|>"), tokenizer.id_of("<tool>")
    assert eot is not None
    assert tool is not None
    assert tokenizer.is_special(eot)
    assert not tokenizer.is_special(tool)
    assert not tokenizer.is_special(0)
    assert tokenizer.token(eot) == "<|eot_id|>"
    assert tokenizer.id_of("no such token") is None


def test_a_token_is_found_by_the_text_that_it_stands_for(metadata):
    tokens = metadata[G + "tokens"]
    bytewise = Tokenizer.from_metadata(metadata)
    assert bytewise.id_of("\n") is None and bytewise.id_of_text("\n") == tokens.index("Ċ")
    assert bytewise.id_of_text(" ") == tokens.index("Ġ")
    assert bytewise.id_of_text("<|eot_id|>") == bytewise.id_of("<|eot_id|>") is not None
    # "é" spells the byte 0xE9 there, which is no text; the text is two bytes.
    accent = bytewise.id_of_text("é")
    assert accent is not None and bytewise.token(accent) == "Ã©" and bytewise.id_of("é") != accent
    assert bytewise.id_of_text("Ċ") is None and bytewise.id_of_text("no such token") is None


def test_a_token_of_sentencepiece_is_found_by_its_text():
    names = ["<unk>", "<s>", "</s>", "<0x0A>", "▁", "▁a", "<image>"]
    built = Tokenizer.from_metadata(
        {
            G + "model": "llama",
            G + "tokens": names,
            G + "token_type": [2, 3, 3, 6, 1, 1, 4],
            G + "scores": [0.0, 0.0, 0.0, 0.0, -2.0, -1.0, 0.0],
        }
    )
    texts = {"<s>": 1, "\n": 3, " ": 4, " a": 5, "<image>": 6, "a": None, "é": None, "": None}
    assert {text: built.id_of_text(text) for text in texts} == texts


def test_an_unknown_character_is_left_out_with_special_tokens():
    built = Tokenizer.from_metadata(
        {
            G + "model": "llama",
            G + "tokens": ["<unk>", "<s>", "</s>", "▁", "a", "b", "▁a"],
            G + "token_type": [2, 3, 3, 1, 1, 1, 1],
            G + "scores": [0.0, 0.0, 0.0, -5.0, -3.0, -4.0, -1.0],
        }
    )
    ids = built.encode("aξb")
    assert 0 in ids and built.is_special(0)
    assert built.decode(ids) == "<s>a<unk>b"
    assert built.decode(ids, skip_special=True) == "ab"
    assert built.decode([0, 6], skip_special=True) == "a"  # the first text loses its space


def test_the_longest_token_at_the_leftmost_place_wins():
    splitter = Splitter({"<a": 1, "<a>": 2, "b": 3, "\n\n": 4, "<": 5})
    assert list(splitter.split("x<a><a<b\n\n\ny")) == ["x", 2, 1, 5, 3, 4, "\ny"]
    assert list(Splitter({}).split("<a>")) == ["<a>"]
    assert list(splitter.split("")) == []


def test_stripping_does_not_eat_into_neighbours():
    splitter = Splitter({"<a>": 1, "  ": 2}, frozenset({"<a>"}), frozenset({"<a>"}))
    assert list(splitter.split("x <a>  y")) == ["x", 1, "y"]
    assert list(splitter.split("<a> <a>")) == [1, 1]
    assert list(splitter.split("  <a>\x1cy")) == [2, 1, "\x1cy"]
    assert list(splitter.split("x\x1c\u3000<a>")) == ["x\x1c", 1]


@pytest.mark.parametrize("metadata", ["spm-bytes"], indirect=True)
def test_gemma_takes_no_space_in_front_even_where_the_file_does_not_say_so(metadata):
    metadata.pop(G + "add_space_prefix", None)
    ids = {}
    for architecture in ("llama", "gemma3"):
        metadata["general.architecture"] = architecture
        ids[architecture] = Tokenizer.from_metadata(metadata).encode("the", add_special=False)
    assert ids["llama"] != ids["gemma3"]
    metadata[G + "add_space_prefix"] = True
    assert Tokenizer.from_metadata(metadata).encode("the", add_special=False) == ids["llama"]


def test_white_space_is_that_of_unicode():
    swallowing = Splitter({"<x>": 0}, strip_right=frozenset({"<x>"}))
    for space in "\t \x85\xa0\u2000\u200a\u3000":
        assert list(swallowing.split(f"<x>{space}a")) == [0, "a"], ascii(space)
    for letter in "\x1c\x1f\u200b":
        assert list(swallowing.split(f"<x>{letter}a")) == [0, f"{letter}a"], ascii(letter)


def test_tokens_are_found_as_an_alternation_finds_them():
    random_ = random.Random(7)
    for _ in range(100):
        names = {"".join(random_.choices("ab é", k=random_.randint(1, 6))) for _ in range(8)}
        left, right = (frozenset(random_.sample(sorted(names), 2)) for _ in "lr")
        ids = {name: id for id, name in enumerate(sorted(names))}
        text = "".join(random_.choices("ab é", k=random_.choice([5, 3000])))
        assert list(Splitter(ids, left, right).split(text)) == _slowly(ids, left, right, text)


def _slowly(ids: dict[str, int], left: frozenset, right: frozenset, text: str) -> list[str | int]:
    longest = re.compile("|".join(map(re.escape, sorted(ids, key=len, reverse=True))))
    pieces, done = list[str | int](), 0
    while match := longest.search(text, done):
        before = text[done : match.start()]
        pieces += filter(None, [before.rstrip(" ") if match[0] in left else before])
        pieces.append(ids[match[0]])
        done = match.end()
        if match[0] in right:
            done += len(text[done:]) - len(text[done:].lstrip(" "))
    return pieces + list(filter(None, [text[done:]]))


@pytest.mark.parametrize("size", [300, 20_000, 50_000])
def test_a_token_longer_than_a_window_is_found(size: int):
    splitter = Splitter({"a" * size: 1, "ab": 2})
    assert list(splitter.split("a" * size * 2 + "b" * 40_000 + "ab")) == [1, 1, "b" * 40_000, 2]


def test_tokens_that_begin_alike_take_a_time_that_grows_with_the_text():
    splitter = Splitter({"a" * n + "b": n for n in range(1, 3000)})
    began = time.monotonic()
    assert list(splitter.split("a" * 100_000)) == ["a" * 100_000]
    assert list(splitter.split("a" * 5000 + "b")) == ["a" * 2001, 2999]
    assert time.monotonic() - began < 10  # 8,000 letters once took 14 s
