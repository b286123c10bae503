"""Makes the small vocabularies in this folder and what their original libraries say to them.

Needs `tokenizers`, `sentencepiece` and `transformers`; run it from anywhere:
python tests/tokenizer/data/make.py

Each file holds `metadata` as a GGUF would (tokens, types, merges or scores), and `expected`: for
every text of TEXTS the ids that the library which trained the vocabulary gives, computed from its
own file. `plain` says that special tokens in the text were taken as plain text. The trainer of
WordPiece orders ties at random: that vocabulary comes out differently each time, the others do not.
"""

import io
import json
import random
import tempfile
from pathlib import Path

import sentencepiece  # pyright: ignore[reportMissingImports]
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from tokenizers.pre_tokenizers import ByteLevel, Digits, Punctuation, Sequence, Split
from transformers import (  # pyright: ignore[reportMissingImports]
    T5Tokenizer,
    XLMRobertaTokenizer,
)

from ggmodel.convert.vocabulary.files import read_sentencepiece

HERE = Path(__file__).parent
CORPUS = (HERE / "corpus.txt").read_text("utf-8")
NORMAL, UNKNOWN, CONTROL, USER, BYTE = 1, 2, 3, 4, 6

TEXTS = [
    "",
    " ",
    "   ",
    "\n",
    "\n\n \n",
    "\t\ttabs\t",
    "Hello world",
    " Hello  world ",
    "the ships that pass, and the token?!",
    "they'll DON'T he'S it's we've",
    "3 33 333 3333 12345678",
    "x=1;y = x+2  # ok\n    return y\n",
    "Größe, café, señora, naïve",
    "рыбак смотрит на воду",
    "小さな船が港に着きました。",
    "오늘은 바람이 강합니다.",
    "القارب الصغير في الميناء",
    "🙂🚀👩‍🚀",
    "\u0301a\u0308 \u200b\ufeff\u0085\u00a0\u2028",
    "a\x00b\x1fc\x7f",
    "░▁▂▁ Ġ Ċ <0x0A> ##s",
    "𐍈ꙮ🇪🇺",
    "....!!!???---===",
    "                                        forty",
]
SPECIAL_TEXTS = [
    "<|begin|>system<|eot_id|>\n\nHi<|eot_id|>",
    "<|begin|><|begin|>",
    "a <tool> b<tool>c",
    "<|eot_id|",
    "< tool><tool><|eot_id|><tool> ",
    "  <|begin|>  x",
]


def byte_level(name, pre, pre_tokenizer, size=560, ignore_merges=False):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS.splitlines(keepends=True), trainer)
    tokenizer.add_special_tokens(["<|begin|>", "<|eot_id|>"])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False, special=False)])
    vocab = tokenizer.get_vocab()
    types = [NORMAL] * len(vocab)
    for special in ("<|begin|>", "<|eot_id|>"):
        types[vocab[special]] = CONTROL
    types[vocab["<tool>"]] = USER
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": sorted(vocab, key=vocab.__getitem__),
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.bos_token_id": vocab["<|begin|>"],
        "tokenizer.ggml.eos_token_id": vocab["<|eot_id|>"],
    }
    write(name, metadata, expected_by(tokenizer, TEXTS + SPECIAL_TEXTS))


def expected_by(tokenizer, texts):
    expected = []
    for plain in (False, True):
        tokenizer.encode_special_tokens = plain
        for text in texts:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            expected.append({"text": text, "plain": plain, "ids": ids})
    return expected


def sentence_piece(name, texts, **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS.splitlines()),
        model_writer=model,
        model_type="bpe",
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
        **options,
    )
    library = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ids = range(library.vocab_size())
    kinds = (
        (library.is_unknown, UNKNOWN),
        (library.is_byte, BYTE),
        (library.is_control, CONTROL),
    )
    user = set(options.get("user_defined_symbols", []))
    types = []
    for i in ids:
        kind = next((kind for is_kind, kind in kinds if is_kind(i)), NORMAL)
        types.append(USER if library.id_to_piece(i) in user else kind)
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [library.id_to_piece(i) for i in ids],
        "tokenizer.ggml.scores": [library.get_score(i) for i in ids],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": library.bos_id(),
        "tokenizer.ggml.eos_token_id": library.eos_id(),
        "tokenizer.ggml.unknown_token_id": library.unk_id(),
        "tokenizer.ggml.add_space_prefix": options.get("add_dummy_prefix", True),
    }
    # SentencePiece never takes a control token from the text, hence plain.
    write(name, metadata, [{"text": t, "plain": True, "ids": library.encode(t)} for t in texts])


def word_piece(name):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=500, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(CORPUS.splitlines(), trainer)
    vocab = tokenizer.get_vocab()
    pieces = sorted(vocab, key=vocab.__getitem__)
    metadata = {
        "tokenizer.ggml.model": "bert",
        # As converters write it: the first piece of a word is the marked one.
        "tokenizer.ggml.tokens": [
            p if p in special else p[2:] if p.startswith("##") else "▁" + p for p in pieces
        ],
        "tokenizer.ggml.token_type": [CONTROL if p in special else NORMAL for p in pieces],
        "tokenizer.ggml.unknown_token_id": vocab["[UNK]"],
        "tokenizer.ggml.cls_token_id": vocab["[CLS]"],
        "tokenizer.ggml.seperator_token_id": vocab["[SEP]"],
    }
    texts = [*TEXTS, "Counting [MASK] ships [SEP] again", "x" * 101]
    write(name, metadata, expected_by(tokenizer, texts))


RULES = "41\t61\nFB01\t66 69\n9\t20\n3000\t20\n65 301\tE9\n2026\t2E 2E 2E\nAD\t\n"


def fuzzed(count):
    """Seeded texts of the corpus' words and characters, and of all others."""
    draw = random.Random(11)
    few = "  ▁\n\t ﬁA…é\u0301日🙂\u00ad"
    words = [*CORPUS.split(), "<mask>", "<s>", "</s>", "<unk>", "<0x0A>", "<mask> "]
    texts = []
    for i in range(count):
        if i % 2:
            texts.append("".join(draw.choices(CORPUS + few * 30, k=draw.randrange(40))))
        else:
            some = draw.choices(words, k=draw.randrange(8))
            texts.append("".join(word + draw.choice(["", " ", "  ", "\n"]) for word in some))
    return texts


def unigrams(name, tokenizer, config, bytes_too=False):
    """As `transformers` builds a tokenizer of a SentencePiece model of unigrams."""
    model = io.BytesIO()
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as rules:
        rules.write(RULES)
        rules.flush()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(CORPUS.splitlines()),
            model_writer=model,
            model_type="unigram",
            vocab_size=540 if bytes_too else 290,
            byte_fallback=bytes_too,
            character_coverage=0.98,
            normalization_rule_tsv=rules.name,
            minloglevel=2,
        )
    read = read_sentencepiece(model.getvalue(), name)
    pieces, types = list(zip(read.pieces, read.scores, strict=True)), list(read.types)
    if tokenizer is XLMRobertaTokenizer:
        first = ["<s>", "<pad>", "</s>", "<unk>"]
        pieces = [*((text, 0.0) for text in first), *pieces[3:], ("<mask>", 0.0)]
        types = [CONTROL, CONTROL, CONTROL, UNKNOWN, *types[3:], CONTROL]
    built = tokenizer(vocab=pieces, _spm_precompiled_charsmap=read.charsmap, **config)
    library = built.backend_tokenizer
    if bytes_too:
        model = json.loads(library.to_str())
        model["model"]["byte_fallback"] = True
        library = Tokenizer.from_str(json.dumps(model))
    ids = {text: id for id, (text, _) in enumerate(pieces)}
    metadata = {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.tokens": [text for text, _ in pieces],
        "tokenizer.ggml.scores": [score for _, score in pieces],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.unknown_token_id": ids["<unk>"],
        "tokenizer.ggml.eos_token_id": ids["</s>"],
        "tokenizer.ggml.bos_token_id": ids["<s>"],
        "tokenizer.ggml.add_space_prefix": True,
        "tokenizer.ggml.remove_extra_whitespaces": True,
        "tokenizer.ggml.precompiled_charsmap": list(read.charsmap),
    }
    texts = [*TEXTS, *fuzzed(140)]
    expected = [
        {"text": t, "plain": False, "ids": library.encode(t, add_special_tokens=False).ids}
        for t in texts
    ]
    write(name, metadata, expected)


def write(name, metadata, expected):
    lines = [f"  {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in metadata.items()]
    rows = [f"  {json.dumps(row)}" for row in expected]
    text = '{"metadata": {\n' + ",\n".join(lines) + '\n}, "expected": [\n' + ",\n".join(rows)
    (HERE / f"{name}.json").write_text(text + "\n]}\n", "utf-8")


LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The pre-tokenizers are composed of the parts the package itself has, not of our expressions.
byte_level("gpt-2", "gpt-2", ByteLevel(add_prefix_space=False))
byte_level(
    "starcoder",
    "starcoder",
    Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]),
)
byte_level(
    "falcon",
    "falcon",
    Sequence(
        [
            Punctuation("contiguous"),
            ByteLevel(add_prefix_space=False),
            Digits(individual_digits=False),
            Split(Regex("[0-9][0-9][0-9]"), "isolated"),
        ]
    ),
)
byte_level(
    "llama-bpe",
    "llama-bpe",
    Sequence(
        [Split(Regex(LLAMA3), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    ),
    ignore_merges=True,
)
sentence_piece("spm-bytes", TEXTS, vocab_size=700, byte_fallback=True, character_coverage=0.98)
sentence_piece(
    "spm-plain",
    [*TEXTS, "a <tool>b<tool>"],
    vocab_size=400,
    add_dummy_prefix=False,
    user_defined_symbols=["<tool>"],
)
word_piece("wordpiece")
unigrams("unigram", XLMRobertaTokenizer, {})
unigrams("unigram-bytes", T5Tokenizer, {"extra_ids": 0}, bytes_too=True)
