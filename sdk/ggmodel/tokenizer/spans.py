"""Places in texts, and texts of a pair that are cut."""

from __future__ import annotations


def cut_pair(one: list[int], two: list[int], most: int) -> tuple[list[int], list[int]]:
    """The first ids of two texts, `most` in all: the longer one is cut, and both in halves if the
    other has more than half; of an odd number the longer one keeps one more, the second if they are
    equally long (`longest_first` of the package tokenizers)."""
    if len(one) + len(two) <= most:
        return one, two
    short = min(len(one), len(two), most // 2)
    return (
        (one[: most - short], two[:short])
        if len(one) > len(two)
        else (one[:short], two[: most - short])
    )


def trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """A place in a text without the blanks around it; of blanks alone, their end."""
    inner = text[start:end].strip()
    if not inner:
        return end, end
    start = text.index(inner, start)
    return start, start + len(inner)
