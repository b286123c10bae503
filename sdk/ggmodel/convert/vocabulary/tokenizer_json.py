"""tokenizer.json: tokens, merges, and the steps of a text; vocab.txt as the equivalent.

A few bytes of the steps can ask for all memory, for hours, or for the end of the process
(`tokenizers` aborts where memory lacks). So they are only ever applied in another process, whose
memory and time have limits. The tokenizer of a loaded model has none of them.
"""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from ... import concurrency
from ...bounds import limits
from ...errors import FormatError, TokenizerError
from ...platforms.processes import OUT_OF_TIME
from ...tokenizer.vocabulary import SPACE, TokenType, check_count, check_letters
from .files import NAMES, Files

NORMALIZED = ("a", "a b ")
PART = 400  # letters of the probe that exclude most pre-tokenizers

_CHARACTERS = "aZéЖǅʰ中ぁカ한ก́5٣Ⅷ½ \t\n\r\u00a0\u3000.,'!?/\\-_(=$<|`§€²ª🙂\u200d\u2060\x07"
_WORDS = (
    "'s 'T 're 'VE 'm 'LL 'd l' ' \" 's1 HelloWorld helloWORLD iPhone XMLHttp don't DON'T a1 1a "
    "12 123 1234 12345 1234567 12345678901 3.14 ٣٤٥ ½⅓ ________ ---- ==== .... !!! ?!/ /// a/b "
    "\r\n \n\n\n \t\t \n\t \u3000\u3000 //\n \\\\\n ...\n !\r\n. a\u0301b\u0308 한국어 中文字 "
    "ひらがなカタカナ 中a中 a中 1中 中1 ภาษาไทย ພາສາລາວ ខ្មែរ မြန်မာ العربية हिन्दी Straße ÀÉ ǅ Ⅷ "
    "🙂🙂🚀 👩\u200d🚀 ʰʰ <|a|> <sentinel:1> IMGIMGABZ $x ^y ~z `w` @a #b +c “q” …。、！？ »«"
).split(" ")


@cache
def probe() -> str:
    """A text in which kinds of characters meet in all pairs, and pieces of texts at random."""
    draw = random.Random(0)
    pairs = ["".join(pair) for pair in product(_CHARACTERS, repeat=2)]
    spaces = [" ", "  ", "   ", "\n", "\n\n", " \n", "\n ", "\t", "", "", ""]
    spaced = [word + draw.choice(spaces) for _ in range(40) for word in draw.sample(_WORDS, 60)]
    chosen = ["".join(draw.choices(_CHARACTERS, k=8)) for _ in range(600)]
    blanks = [
        n * " " + c + n * d for n in range(1, 40) for c, d in ("a ", "\n ", "a1", "1\n", " .")
    ]
    return "".join([*spaced, *pairs, *chosen, *blanks, *spaced[:60]])


@cache
def lines_probe() -> str:
    """The probe in SentencePiece's spelling."""
    return probe().replace(" ", SPACE)


def probes() -> tuple[str, ...]:
    """The texts whose pieces are compared."""
    return probe()[:PART], probe(), lines_probe()


SECTIONS = ("normalizer", "pre_tokenizer", "decoder")

_PROGRAM = Path(__file__).with_name("steps_child.py")
# Seconds by the clock for each of the processor: a busy machine has other work.
_PATIENCE = 6
_AGAIN = "get the file again"
_HOST = "convert the model with the command ggmodel, and load the GGUF file"


class Steps:
    """Applies the steps; one process answers all questions.

    Args:
        name: the file's, for messages.
        content: of the tokenizer.json.
        questions: kind, as `steps_child` knows it → the texts that may be asked about.
    """

    def __init__(
        self, name: str, content: Mapping[str, Any], questions: Mapping[str, Iterable[str]]
    ):
        self._name = name
        self._texts = {kind: list(dict.fromkeys(texts)) for kind, texts in questions.items()}
        self._sections = {section: content.get(section) for section in SECTIONS}

    def result(self, kind: str, text: str) -> Any:
        """The text after the normalizer or the decoder, or the pieces that a text is cut into.

        Raises:
            TokenizerError: the package does not know the steps, or they need more memory or time
                than the limits `tokenizer_bytes` and `tokenizer_seconds`.
        """
        answer = self._answers[kind][text]
        if isinstance(answer, str):
            raise TokenizerError(
                f"{self._name}: the installed tokenizers package does not know its normalizer, "
                f"pre_tokenizer or decoder, or cannot use it: {answer:.300}; get the file again, "
                f"or a newer version of the package"
            )
        return answer[0]

    @cached_property
    def _answers(self) -> dict[str, dict[str, Any]]:
        request = json.dumps({"steps": self._sections, **self._texts})
        try:
            answers = _answered(request, limits.tokenizer_bytes, limits.tokenizer_seconds)
        except _Failed as failed:
            raise TokenizerError(
                f"{self._name}: its normalizer, pre_tokenizer or decoder {failed}"
            ) from None
        return {kind: dict(zip(self._texts[kind], answers[kind], strict=True)) for kind in answers}


class _Failed(Exception):
    """The process gave no answer; the message says why, and what to do."""


@lru_cache(maxsize=8)
def _answered(request: str, memory: int, seconds: float) -> dict[str, list[Any]]:
    """Starts the process, which takes 0.1 s, and reads its answers."""
    try:
        status, output = _run(request.encode(), memory, seconds)
    except subprocess.TimeoutExpired:
        raise _Failed(_too_slow()) from None
    except OSError as error:
        raise _Failed(
            f"need a Python process of their own, which cannot start: {error}; {_HOST}"
        ) from None
    if status == 0:
        with suppress(ValueError):
            answers = json.loads(output)
            if isinstance(answers, dict):
                return answers
        raise _Failed(f"got no answer from {sys.executable} (sys.executable); {_HOST}")
    if status in OUT_OF_TIME:
        raise _Failed(_too_slow())
    raise _Failed(
        f"break the tokenizers package (status {status}), or need more than "
        f"{memory:,} bytes (the limit tokenizer_bytes); {_AGAIN}"
    )


def _run(request: bytes, memory: int, seconds: float) -> tuple[int, bytes]:
    """The status and the output of the process."""
    with concurrency.start_python(
        [str(_PROGRAM), str(memory), str(math.ceil(seconds))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            output, _ = process.communicate(request, timeout=_PATIENCE * seconds)
        except BaseException:
            process.kill()
            raise
    return process.returncode, output


def _too_slow() -> str:
    seconds = f"{limits.tokenizer_seconds:g} s"
    return f"take more than {seconds} (the limit tokenizer_seconds); {_AGAIN}"


@dataclass
class Added:
    """A token that is cut from the text before all others.

    Attributes:
        special: it is for the model rather than for readers.
        normalized: it is compared with the text after the normalizer.
    """

    special: bool
    normalized: bool


class TokenizerJson:
    """A checked tokenizer.json, with what tokenizer_config.json adds to it.

    Attributes:
        source: name of the file, or of the one that stands for it.
        kind: kind of model, such as "BPE".
        model: the section on the model.
        ids: id of each token of the model and of the added ones.
        added: the added tokens by text.
        scores: of the model's pieces, by id, if they have any.
    """

    scores: Sequence[float] = ()

    def __init__(self, files: Files):
        self._files = files
        content = files.tokenizer
        if content is None:
            raise FileNotFoundError(files.folder / files.source)
        self.source = files.source
        self.content: dict[str, Any] = content
        self.model = self._section("model")
        self.kind = self.model.get("type") or ("BPE" if "merges" in self.model else None)
        self.ids = self._vocab()
        self.added = self._added()

    def wrong(self, what: str) -> FormatError:
        return self._files.damaged(self.source, what)

    def _section(self, name: str) -> dict[str, Any]:
        section = self.content.get(name) or {}
        if not isinstance(section, dict):
            raise self.wrong(f"{name} should be an object, but is {section!r:.80}")
        return section

    def _vocab(self) -> dict[str, int]:
        vocab = self.model.get("vocab")
        if self.kind == "Unigram":
            vocab = {text: id for id, text in enumerate(self._scored(vocab))}
        if not isinstance(vocab, dict) or not set(map(type, vocab.values())) <= {int}:
            raise self.wrong(f"model.vocab of a {self.kind} should give an id for each token")
        check_count(f"{self.source}: model.vocab", len(vocab))
        check_letters(f"{self.source}: model.vocab", vocab)
        return dict(vocab)

    def _scored(self, vocab: Any) -> list[str]:
        """The texts of a list of pieces, each a text and its score, which goes into `scores`."""
        check_count(f"{self.source}: model.vocab", len(vocab) if isinstance(vocab, list) else 0)
        for piece in vocab if isinstance(vocab, list) else [vocab]:
            fits = isinstance(piece, list) and len(piece) == 2 and isinstance(piece[0], str)
            if not fits or type(piece[1]) not in (int, float):
                raise self.wrong(f"a piece should be a text and its score, but is {piece!r:.80}")
        self.scores = [float(score) for _, score in vocab]
        texts = [text for text, _ in vocab]
        if len(set(texts)) < len(texts):
            raise self.wrong("two pieces of model.vocab have one text")
        return texts

    def _added(self) -> dict[str, Added]:
        """The added tokens; ids of those that the model lacks go into `ids`."""
        added: dict[str, Added] = {}
        ids = set(self.ids.values())
        for item in self._listed():
            text, id = item["content"], item["id"]
            if text not in self.ids:  # else the model's own id counts
                if id in ids:
                    raise self.wrong(f"the added token {text!r:.80} has the id of another, {id}")
                self.ids[text] = id
                ids.add(id)
            special = bool(item.get("special"))
            added[text] = Added(special, bool(item.get("normalized", not special)))
        settings = self._files.settings or {}
        more = settings.get("additional_special_tokens") or []
        # Special if named there, even if tokenizer.json does not say so.
        id = max(self.ids.values(), default=-1)
        named = [settings.get(f"{name}_token") for name in NAMES]
        for token in [*named, *(more if isinstance(more, list) else [])]:
            text = token.get("content") if isinstance(token, dict) else token
            if not isinstance(text, str):
                continue
            if text not in self.ids:  # transformers gives it the next id, if there is room
                if id + 1 >= (self._files.vocab_size or 0):
                    continue
                self.ids[text] = id = id + 1
            added.setdefault(text, Added(True, False)).special = True
        return added

    def _listed(self) -> list[dict[str, Any]]:
        """The added tokens of tokenizer.json, and those only in tokenizer_config.json."""
        listed = self.content.get("added_tokens") or []
        decoder = (self._files.settings or {}).get("added_tokens_decoder") or {}
        if not isinstance(listed, list) or not isinstance(decoder, dict):
            raise self.wrong(f"added_tokens should be a list, but is {listed!r:.80}")
        check_count(f"{self.source}: added_tokens", len(listed) + len(decoder))
        self._check(listed)
        texts = {item["content"] for item in listed}
        more = [
            {**item, "id": int(id[:20])}
            for id, item in decoder.items()
            if isinstance(item, dict) and id.isdecimal()
        ]
        self._check(more)
        return listed + [item for item in more if item["content"] not in texts]

    def _check(self, listed: list[Any]) -> None:
        for item in listed:
            fits = isinstance(item, dict) and isinstance(item.get("content"), str)
            if not fits or type(item.get("id")) is not int:
                raise self.wrong(f"an added token has no text or no id: {item!r:.80}")

    def tokens(self) -> tuple[list[str], list[int]]:
        """Texts and types of all ids up to the number of tokens.

        Unused ids become [PADn]. An added token is spelled as in a text, unless it is compared
        after the normalizer.

        Raises:
            FormatError: an id lies outside the embedding.
        """
        by_id = {id: text for text, id in self.ids.items()}
        if len(by_id) != len(self.ids) or not by_id:
            raise self.wrong("model.vocab has no tokens, or one id for two of them")
        first, last, rows = min(by_id), max(by_id), self._files.rows
        size = self._files.size_for(last, len(by_id))
        if first < 0 or last >= size:
            limit = "vocab_size in config.json" if rows is None else "rows of its embedding"
            raise self.wrong(
                f"the ids of its tokens go from {first} to {last}, but the model has "
                f"{rows or size} ({limit}); it may belong to another model"
            )
        tokens, types = [], []
        for id in range(size):
            text = by_id.get(id)
            added = None if text is None else self.added.get(text)
            kind = TokenType.NORMAL
            if text is None:
                text, kind = f"[PAD{id}]", TokenType.UNUSED
            elif added is not None:
                text = text if added.normalized else self._steps.result("decode", text)
                kind = TokenType.CONTROL
                if not added.special and not looks_special(text):
                    text, kind = text.replace(SPACE, " "), TokenType.USER_DEFINED
            tokens.append(text)
            types.append(int(kind))
        return tokens, types

    def normalized(self, text: str) -> str:
        """The normalizer's result for a text of `NORMALIZED`.

        Raises:
            TokenizerError: as `Steps.result`; `cut` and `cut_normalized` too.
        """
        return self._steps.result("normalize", text)

    def cut(self, text: str) -> list[str]:
        """The pre-tokenizer's pieces of a normalized text of `probes()`."""
        return self._steps.result("cut", text)

    def cut_normalized(self, text: str) -> list[str]:
        """The pieces of what the normalizer makes of a text of `NORMALIZED`."""
        return self._steps.result("cut_normalized", text)

    def merges(self) -> list[tuple[str, str]]:
        """Pairs in order of rank.

        Raises:
            FormatError: they are no pairs.
        """
        merges = self.model.get("merges") or []
        if not isinstance(merges, list):
            raise self.wrong(f"merges should be a list, but are {merges!r:.80}")
        check_count(f"{self.source}: merges", len(merges), "vocabulary_merges")
        pairs = [tuple(m.split(" ", 1)) if isinstance(m, str) else m for m in merges]
        for pair in pairs:
            fits = isinstance(pair, (tuple, list)) and [type(part) for part in pair] == [str, str]
            if not fits:
                raise self.wrong(f"a merge should be a pair of texts, but is {pair!r:.80}")
        return [(left, right) for left, right in pairs]

    @cached_property
    def _steps(self) -> Steps:
        """The steps, and all that may be asked about them."""
        questions = {
            "normalize": NORMALIZED,
            "cut": probes(),
            "cut_normalized": NORMALIZED,
            "decode": [text for text, added in self.added.items() if not added.normalized],
        }
        return Steps(str(self._files.folder / self.source), self.content, questions)


def looks_special(text: str) -> bool:
    """Whether a token looks like one for the model; some publishers do not mark them."""
    return (
        text in ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
        or (text.startswith("<|") and text.endswith("|>"))
        or (text.startswith("<｜") and text.endswith("｜>"))
        or (text.startswith("<unused") and text.endswith(">"))
    )


_NAMED = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}


def tokenizer_of_vocab_txt(files: Files, text: str) -> dict[str, Any]:
    """The content of a tokenizer.json for `text`, with the settings of tokenizer_config.json.

    Raises:
        FormatError: the settings are damaged.
        TokenizerError: it has more lines than the limit `vocabulary_tokens`.
    """
    check_count(str(files.folder / "vocab.txt"), text.count("\n"))
    settings = files.settings or {}
    vocab = {token: id for id, token in enumerate(text.removesuffix("\n").split("\n"))}
    vocab = {token.removesuffix("\r"): id for token, id in vocab.items()}
    names = {}
    for name, default in _NAMED.items():
        token = settings.get(f"{name}_token", default)
        names[name] = token.get("content") if isinstance(token, dict) else token
    files.settings = {**{f"{name}_token": token for name, token in names.items()}, **settings}
    first, last = ({"SpecialToken": {"id": names[name], "type_id": 0}} for name in ("cls", "sep"))
    a, b = ({"Sequence": {"id": id, "type_id": 0}} for id in "AB")
    return {
        "added_tokens": [
            {"id": vocab[token], "content": token, "special": True, "normalized": False}
            for token in names.values()
            if isinstance(token, str) and token in vocab
        ],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "lowercase": settings.get("do_lower_case", True),
            "strip_accents": settings.get("strip_accents"),
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [first, a, last],
            "pair": [first, a, last, b, last],
        },
        "model": {"type": "WordPiece", "vocab": vocab},
    }
