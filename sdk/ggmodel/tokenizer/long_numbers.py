"""Cuts texts within long numbers, for pre-tokenizers that group digits by threes from the right.

Their expressions look from each group to the end of the number, so that a number of 100,000 digits
takes minutes. A number may be cut between two groups beforehand, without another result.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

_LONG = 999  # digits; a multiple of 3
_DIGITS = r"\d"  # the same characters for Python and for the `tokenizers` package
# By the expression that groups: the digits it knows, and whether a word may go on behind them.
_GROUPING = {
    r"\d{1,3}(?=(?:\d{3})*\b)": (False, False),
    r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))": (True, True),
    r"(?=(\d{3})+(?!\d))": (False, True),
}


def cut(text: str, splits: tuple[str, ...]) -> Iterator[str]:
    """The parts of a text, in which no number is long.

    Args:
        splits: the expressions of a pre-tokenizer.
    """
    grouping = next(filter(None, map(_GROUPING.get, splits)), None)
    done = 0
    if grouping is not None and len(text) > _LONG:
        all_numbers, within_words = grouping
        for number in _long_numbers(all_numbers).finditer(text):
            if within_words or not _goes_on(text, number.end()):
                first = len(number[0]) % _LONG or _LONG
            elif number.start() and unicodedata.category(text[number.start() - 1])[0] == "N":
                continue  # groups begin within the fraction or the like in front
            else:  # nothing groups from the right, and so groups begin on the left
                first = _LONG
            for at in range(number.start() + first, number.end(), _LONG):
                yield text[done:at]
                done = at
    yield text[done:]


def _goes_on(text: str, at: int) -> bool:
    """Whether a word goes on there, as the expressions see it."""
    return at < len(text) and _in_words(text[at])


@lru_cache(maxsize=1 << 12)
def _in_words(character: str) -> bool:
    """Whether there is no `\\b` between a digit and this character. The package's own table of
    words differs from Unicode's categories for a thousand characters."""
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import Split

    split = Split(Regex(r"1\b"), "isolated")
    return len(split.pre_tokenize_str(f"1{character}")) == 1


@lru_cache
def _long_numbers(all_numbers: bool) -> re.Pattern[str]:
    kinds = _numbers() if all_numbers else _DIGITS
    return re.compile(f"[{kinds}]{{{_LONG + 1},}}")


def _numbers() -> str:
    """All characters of numbers, for an expression."""
    codes = range(sys.maxunicode + 1)
    return "".join(c for c in map(chr, codes) if unicodedata.category(c)[0] == "N")
