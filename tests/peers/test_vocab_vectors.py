"""The vocabularies and vectors that llama.cpp publishes: the same ids, and texts that come back.

Its vectors were made by the tokenizers of the models themselves.
"""

import random
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from ggmodel.errors import TokenizerError
from ggmodel.gguf_file import open_gguf
from ggmodel.tokenizer import Tokenizer
from ggmodel.tokenizer.pretokenizers import PRE_TOKENIZERS

pytestmark = pytest.mark.timeout(1200)  # the first test downloads what it compares with

SEPARATOR = "\n__ggml_vocab_test__\n"

# Texts of each vector file. A file that is not here, or has another number, fails the first test.
VECTORS = {
    "bert-bge": 46,
    "command-r": 46,
    "deepseek-coder": 46,
    "deepseek-llm": 46,
    "falcon": 46,
    "gemma-4": 46,
    "gpt-2": 46,
    "llama-bpe": 46,
    "llama-spm": 46,
    "mpt": 46,
    "phi-3": 46,
    "qwen2": 46,
    "qwen35": 50,
    "refact": 46,
    "starcoder": 46,
}
SENTENCEPIECE = ["llama-spm", "phi-3", "baichuan"]
# The bytes that occur in UTF-8, and how many of them have no token: a vocabulary drops those, as
# its own tokenizer does.
UTF8 = {*range(256)} - {0xC0, 0xC1, *range(0xF5, 0x100)}
LACKING = {"falcon": 15, "refact": 1, "starcoder": 1}
# No vectors; no pre-tokenizer named, or a kind of vocabulary that is not supported.
REFUSED = {"aquila": "pre", "gpt-neox": "pre"}


@cache
def metadata(folder: Path, name: str) -> dict:
    with open_gguf(folder / "models" / f"ggml-vocab-{name}.gguf") as file:
        return {
            key: value.tolist() if hasattr(value, "tolist") else value
            for key, value in file.metadata.items()
            if key.startswith(("tokenizer.", "general."))
        }


@cache
def tokenizer(folder: Path, name: str) -> Tokenizer:
    return Tokenizer.from_metadata(metadata(folder, name))


def vectors(folder: Path, name: str) -> list[tuple[str, list[int]]]:
    stem = folder / "models" / f"ggml-vocab-{name}.gguf"
    # A separator ends the file of texts, too.
    texts = Path(f"{stem}.inp").read_bytes().decode().removesuffix(SEPARATOR).split(SEPARATOR)
    lines = Path(f"{stem}.out").read_text("utf-8").splitlines()
    return list(zip(texts, [[*map(int, line.split())] for line in lines], strict=True))


def random_texts(count: int, pieces: list[str]) -> list[str]:
    """Seeded texts of three kinds: any characters, few characters, and pieces of words."""
    draw = random.Random(20240607)
    planes = [(0x20, 0x7F), (0x20, 0x250), (0x370, 0x700), (0x900, 0xE00), (0x3000, 0xD7FF)]
    planes += [(0xE000, 0xFFFF), (0x10000, 0x10FFFF), (0, 0x20)]
    few = " -=>#ab01'\n\t.é日🙂"
    texts = []
    for at in range(count):
        if at % 3 == 0:
            any_char = [chr(draw.randrange(*draw.choice(planes))) for _ in range(12)]
            texts.append("".join(any_char))
        elif at % 3 == 1:
            texts.append("".join(draw.choices(few, k=draw.randrange(60))))
        else:
            texts.append("".join(draw.choices(pieces, k=draw.randrange(12))))
    return texts


def test_every_published_vector_file_is_compared(llama_cpp_dir):
    published = sorted((llama_cpp_dir / "models").glob("ggml-vocab-*.gguf.inp"))
    names = [path.name.removeprefix("ggml-vocab-").removesuffix(".gguf.inp") for path in published]
    assert {name: len(vectors(llama_cpp_dir, name)) for name in names} == VECTORS


@pytest.mark.parametrize("name", VECTORS)
def test_ids_equal_the_published(llama_cpp_dir, name):
    built = tokenizer(llama_cpp_dir, name)
    wrong = {}
    for text, expected in vectors(llama_cpp_dir, name):
        ids = built.encode(text, add_special=False, parse_special=False)
        if ids != expected:
            wrong[text] = [built.token(id) for id in ids]
    assert wrong == {}


@pytest.mark.parametrize("name", [*VECTORS, "baichuan"])
def test_random_texts_come_back(llama_cpp_dir, name):
    built = tokenizer(llama_cpp_dir, name)
    pieces = [built.decode([id]) for id in range(0, built.size, 7)]
    byte_level = metadata(llama_cpp_dir, name)["tokenizer.ggml.model"] == "gpt2"
    single = {built.token_bytes(id) for id in range(built.size)}
    kept = {byte for byte in UTF8 if bytes([byte]) in single or not byte_level}
    assert len(UTF8) - len(kept) == LACKING.get(name, 0)
    for text in random_texts(600, [piece for piece in pieces if "\ufffd" not in piece]):
        for parse_special in (False, True):
            ids = built.encode(text, add_special=False, parse_special=parse_special)
            assert all(0 <= id < built.size for id in ids)
            # WordPiece folds case and space; phi-3's special tokens swallow space.
            if name == "bert-bge" or (name == "phi-3" and parse_special):
                continue
            expected = text if byte_level else text.replace("▁", " ")
            data = bytes(byte for byte in expected.encode() if byte in kept)
            assert built.decode(ids) == data.decode("utf-8", "replace")


@pytest.mark.parametrize("name", SENTENCEPIECE)
def test_sentencepiece_ids_equal_merging_by_score(llama_cpp_dir, name):
    """Against the definition: join the best-scoring neighbours, the leftmost of equals, repeat."""
    built = tokenizer(llama_cpp_dir, name)
    data = metadata(llama_cpp_dir, name)
    scores, types = data["tokenizer.ggml.scores"], data["tokenizer.ggml.token_type"]
    normal = {t: i for i, t in enumerate(data["tokenizer.ggml.tokens"]) if types[i] == 1}

    def by_definition(text: str) -> list[int | None]:
        parts = list(text.replace(" ", "▁"))
        while True:
            joined = [normal.get(a + b) for a, b in pairwise(parts)]
            best = max(
                (at for at, id in enumerate(joined) if id is not None),
                key=lambda at: (scores[joined[at]], -at),
                default=None,
            )
            if best is None:
                break
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        spelled = [
            [part] if part in normal else [f"<0x{b:02X}>" for b in part.encode()] for part in parts
        ]
        return [built.id_of(token) for tokens in spelled for token in tokens]

    pieces = [piece.replace("▁", " ") for piece in normal]
    texts = [text for text in random_texts(1500, pieces) if text]
    wrong = [
        text
        for text in texts
        if built.encode(text, add_special=False, parse_special=False) != by_definition(" " + text)
    ]
    assert wrong == []


@pytest.mark.parametrize(("name", "key"), REFUSED.items())
def test_what_cannot_be_exact_is_refused(llama_cpp_dir, name, key):
    with pytest.raises(TokenizerError, match=rf"tokenizer\.ggml\.{key}"):
        tokenizer(llama_cpp_dir, name)


def test_every_pre_tokenizer_of_llama_cpp_is_known(llama_cpp_dir):
    source = (llama_cpp_dir / "src" / "llama-vocab.cpp").read_text("utf-8")
    names = set(re.findall(r'tokenizer_pre == "([^"]+)"', source))
    # "whitespace" belongs to a kind of vocabulary of that name, which is not supported.
    assert names - {"whitespace"} == set(PRE_TOKENIZERS)


def test_phi_3_swallows_space_after_its_special_tokens(llama_cpp_dir):
    phi, llama = tokenizer(llama_cpp_dir, "phi-3"), tokenizer(llama_cpp_dir, "llama-spm")
    ids = phi.encode("<|user|>\nHi<|end|>\n", add_special=False)
    assert [phi.token(id) for id in ids] == ["<|user|>", "▁Hi", "<|end|>"]
    ids = llama.encode("</s>\nHi", add_special=False)
    assert [llama.token(id) for id in ids] == ["</s>", "▁", "<0x0A>", "Hi"]
