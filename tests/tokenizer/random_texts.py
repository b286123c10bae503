"""Ids of seeded random texts beside those of transformers' tokenizers, as a command:

    .cache/reference/bin/python -m tests.tokenizer.random_texts [KIND…] [--count 5000] [--seed 1]

`--published FOLDER` adds the vocabularies of XLM-RoBERTa and BERT that llama.cpp publishes, in its
folder `models`. The reference is transformers' class for a vocabulary, built of its pieces alone;
ours is read from the files that this class saves, or from the GGUF. Needs transformers. With the
packages rwkv and tiktoken their vocabularies are compared with their own classes, too.
"""
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import argparse
import base64
import importlib.util
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ggmodel.convert.vocabulary import vocabulary
from ggmodel.convert.vocabulary.files import RWKV_WORLD, read_sentencepiece
from ggmodel.gguf_file import open_gguf
from ggmodel.tokenizer import Tokenizer
from tests.convert.vocabulary.published import KIMI, QWEN2

TESTS = Path(__file__).parents[1]
FOLDERS = TESTS / "convert" / "vocabulary" / "data"
CORPUS = (TESTS / "tokenizer" / "data" / "corpus.txt").read_text("utf-8")
G = "tokenizer.ggml."
# First and last code point of what texts are drawn from, beside pieces and the corpus.
RANGES = (
    (0x20, 0x7E),
    (0x00, 0x1F),
    (0x7F, 0xFF),
    (0x100, 0x24F),
    (0x300, 0x36F),
    (0x370, 0x5FF),
    (0x600, 0x6FF),
    (0x900, 0xDFF),
    (0xE00, 0xE7F),
    (0x1100, 0x11FF),
    (0x1E00, 0x1EFF),
    (0x2000, 0x206F),
    (0x2100, 0x214F),
    (0x3000, 0x30FF),
    (0x4E00, 0x9FFF),
    (0xAC00, 0xD7A3),
    (0xE000, 0xE0FF),
    (0xF900, 0xFAFF),
    (0xFB00, 0xFDFF),
    (0xFE00, 0xFE6F),
    (0xFF00, 0xFFFD),
    (0x10300, 0x1034F),
    (0x1D400, 0x1D7FF),
    (0x1F1E6, 0x1F1FF),
    (0x1F300, 0x1FAFF),
    (0x20000, 0x2FA1D),
    (0xE0100, 0xE01EF),
)
SPACES = " \u00a0\u1680\u2003\u200b\u200d\u2028\u202f\u2060\u3000\ufeff\t\n\r\x0b\x0c\x85▁"

Encode = Callable[[str], list[int]]


class Pair(NamedTuple):
    """Two ways to ids with the special tokens that a text gets, and texts of tokens."""

    ours: Encode
    reference: Encode
    pieces: list[str]


def texts(pieces: list[str], count: int, seed: int) -> Iterator[str]:
    """Texts of up to 200 pieces, words, spaces and characters of any script."""
    draw = random.Random(seed)
    words = CORPUS.split()

    def part() -> str:
        kind = draw.random()
        if kind < 0.35:
            return draw.choice(pieces).replace("▁", draw.choice(" ▁"))
        if kind < 0.6:
            return draw.choice(words) + draw.choice(["", " ", " ", "  "])
        if kind < 0.7:
            return draw.choice(SPACES) * draw.choice([1, 1, 2, 5])
        return chr(draw.randint(*draw.choice(RANGES)))

    for _ in range(count):
        most = draw.choice([4, 12, 12, 40, 200])
        yield "".join(part() for _ in range(draw.randrange(most)))


def encoder(metadata: dict[str, Any]) -> Encode:
    built = Tokenizer.from_metadata(metadata)
    return lambda text: built.encode(text)


def saved(tokenizer: Any, config: dict[str, Any], pieces: list[str]) -> Pair:
    """A tokenizer of transformers, and ours of the files that it saves."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        made = vocabulary(Path(folder), {**config, "vocab_size": len(tokenizer)})
    family = {"general.architecture": config["model_type"]}
    return Pair(encoder(made | family), lambda text: tokenizer(text).input_ids, pieces)


def scored(metadata: dict[str, Any]) -> tuple[list[tuple[str, float]], bytes]:
    """Pieces with their scores, and the charsmap."""
    values = (np.asarray(metadata[G + name]).tolist() for name in ("tokens", "scores"))
    charsmap = np.asarray(metadata[G + "precompiled_charsmap"], np.uint8)
    return list(zip(*values, strict=True)), charsmap.tobytes()


def small(name: str) -> dict[str, Any]:
    return json.loads((TESTS / "tokenizer" / "data" / f"{name}.json").read_text("utf-8"))[
        "metadata"
    ]


def xlm_roberta(metadata: dict[str, Any] | None = None) -> Pair:
    """The published vocabulary as a GGUF has it, or the small one through saved files."""
    from transformers import XLMRobertaTokenizer

    pieces, charsmap = scored(metadata or small("unigram"))
    names = [text for text, _ in pieces]
    built = XLMRobertaTokenizer(vocab=pieces, _spm_precompiled_charsmap=charsmap)
    if metadata is None:
        return saved(built, {"model_type": "xlm-roberta"}, names)
    return Pair(encoder(metadata), lambda text: built(text).input_ids, names)


def t5(bytes_too: bool = False) -> Pair:
    """The small T5's spiece.model; or unigrams that spell unknown characters in bytes."""
    import tokenizers
    from transformers import T5Tokenizer

    if bytes_too:
        metadata = small("unigram-bytes")
        pieces, charsmap = scored(metadata)
        options = {"extra_ids": 0, "bos_token": "<s>"}
        built = T5Tokenizer(vocab=pieces, _spm_precompiled_charsmap=charsmap, **options)
        content = json.loads(built.backend_tokenizer.to_str())
        content["model"]["byte_fallback"] = True
        library = tokenizers.Tokenizer.from_str(json.dumps(content))
        ours = Tokenizer.from_metadata(metadata)
        return Pair(
            lambda text: ours.encode(text, add_special=False),
            lambda text: library.encode(text, add_special_tokens=False).ids,
            [text for text, _ in pieces],
        )
    folder = FOLDERS / "t5"
    read = read_sentencepiece((folder / "spiece.model").read_bytes(), "spiece.model")
    names = [text for text in read.pieces if not text.startswith("<extra")]
    pieces = list(zip(read.pieces, read.scores, strict=True))[: len(names)]
    built = T5Tokenizer(vocab=pieces, _spm_precompiled_charsmap=read.charsmap, extra_ids=0)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    return Pair(
        encoder(vocabulary(folder, config)), lambda text: built(text).input_ids, list(read.pieces)
    )


def bert(metadata: dict[str, Any] | None = None, **options: Any) -> Pair:
    """WordPiece: published as a GGUF has it, or small through saved files, with options of
    `BertTokenizer`."""
    from transformers import BertTokenizer

    marked = [_marked(text) for text in (metadata or small("wordpiece"))[G + "tokens"]]
    built = BertTokenizer(vocab={text: id for id, text in enumerate(marked)}, **options)
    if metadata is None:
        return saved(built, {"model_type": "bert"}, marked)
    return Pair(encoder(metadata), lambda text: built(text).input_ids, marked)


def _marked(text: str) -> str:
    """A token of a GGUF as vocab.txt has it."""
    if text.startswith("[") and text.endswith("]"):
        return text
    return text[1:] if text.startswith("▁") else f"##{text}"


def tekken() -> Pair:
    """Ranks of byte pairs, as tiktoken has them."""
    from transformers.integrations.mistral.tokenizer import MistralConverter

    folder = FOLDERS / "tekken"
    config = json.loads((folder / "config.json").read_text("utf-8"))
    ours = Tokenizer.from_metadata(vocabulary(folder, config))
    library = MistralConverter(str(folder / "tekken.json")).converted()
    return Pair(
        lambda text: ours.encode(text, add_special=False),
        lambda text: library.encode(text, add_special_tokens=False).ids,
        [ours.decode([id]) for id in range(ours.size)],
    )


def rwkv(folder: Path | None = None) -> Pair:
    """The longest bytes: the small vocabulary, or that of a folder."""
    from rwkv.rwkv_tokenizer import TRIE_TOKENIZER

    folder = folder or FOLDERS / "rwkv"
    library = TRIE_TOKENIZER(str(folder / RWKV_WORLD))
    ours = Tokenizer.from_metadata(vocabulary(folder, {}))
    return Pair(
        lambda text: ours.encode(text, parse_special=False),
        library.encode,
        [ours.decode([id]) for id in range(1, ours.size)],
    )


def _with_rwkv() -> dict[str, Callable[[], Pair]]:
    spec = importlib.util.find_spec("rwkv")
    if spec is None or spec.origin is None:
        return {}
    return {"rwkv": rwkv, "rwkv-published": lambda: rwkv(Path(spec.origin or "").parent)}


def tiktoken(name: str, pattern: str) -> Pair:
    """Ranks of byte pairs in base64, as the package tiktoken takes them."""
    import tiktoken

    folder = FOLDERS / name
    config = json.loads((folder / "config.json").read_text("utf-8"))
    ours = Tokenizer.from_metadata(vocabulary(folder, config))
    (path,) = folder.glob("*tiktoken*")
    rows = (line.split() for line in path.read_bytes().splitlines())
    ranks = {base64.b64decode(token): int(rank) for token, rank in rows}
    added = {ours.token(id): id for id in range(len(ranks), ours.size)}
    special = {text: id for text, id in added.items() if "[PAD" not in text or text == "[PAD]"}
    library = tiktoken.Encoding(
        name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special
    )
    return Pair(
        lambda text: ours.encode(text, add_special=False),
        lambda text: library.encode(text, allowed_special="all"),
        [ours.decode([id]) for id in range(ours.size)],
    )


def _with_tiktoken() -> dict[str, Callable[[], Pair]]:
    if importlib.util.find_spec("tiktoken") is None:
        return {}
    patterns = {"kimi": KIMI, "qwen": QWEN2}
    return {f"tiktoken-{name}": partial(tiktoken, name, patterns[name]) for name in patterns}


KINDS: dict[str, Callable[[], Pair]] = {
    "xlm-roberta": xlm_roberta,
    "t5": t5,
    "unigram-bytes": lambda: t5(bytes_too=True),
    "bert-uncased": bert,
    "bert-cased": lambda: bert(do_lower_case=False),
    "bert-accents": lambda: bert(strip_accents=False),
    "bert-cased-stripped": lambda: bert(do_lower_case=False, strip_accents=True),
    "tekken": tekken,
    **_with_rwkv(),
    **_with_tiktoken(),
}
PUBLISHED: dict[str, tuple[str, Callable[[dict[str, Any]], Pair]]] = {
    "xlm-roberta-published": ("nomic-bert-moe", xlm_roberta),
    "bert-published": ("bert-bge", bert),
}


def wrong(pair: Pair, count: int, seed: int) -> list[tuple[str, list[int], list[int]]]:
    """Texts whose ids differ, with ours and the reference's."""
    others = []
    for text in texts(pair.pieces, count, seed):
        ids, expected = pair.ours(text), pair.reference(text)
        if ids != expected:
            others.append((text, ids, expected))
    return others


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tokenizer.random_texts")
    parser.add_argument("kinds", nargs="*", metavar="KIND")
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--published", type=Path)
    args = parser.parse_args()
    kinds = dict(KINDS)
    for name, (file, pair) in PUBLISHED.items() if args.published else ():
        with open_gguf(args.published / f"ggml-vocab-{file}.gguf") as opened:
            metadata = {
                k: v if isinstance(v, str) else np.asarray(v).tolist()
                for k, v in opened.metadata.items()
            }
        kinds[name] = lambda pair=pair, metadata=metadata: pair(metadata)
    bad = 0
    for name in args.kinds or kinds:
        start = time.monotonic()
        others = wrong(kinds[name](), args.count, args.seed)
        print(f"{name}: {args.count} texts, {len(others)} differ, {time.monotonic() - start:.0f} s")
        for text, ids, expected in sorted(others, key=lambda row: len(row[0]))[:3]:
            print(f"  {text!r:.200}\n    {ids}\n    {expected}")
        bad += len(others)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
