"""The texts by which a pre-tokenizer is recognised."""

from __future__ import annotations

import random
from functools import cache
from itertools import product

from ...tokenizer.vocabulary import SPACE

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
