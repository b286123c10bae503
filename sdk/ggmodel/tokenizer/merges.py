"""The merges of a vocabulary: pairs of pieces that join, in order of rank.

Byte pair vocabularies list them. SentencePiece vocabularies score their tokens instead: neighbours
whose union scores best join first.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping
from itertools import repeat
from typing import Any

from ..errors import TokenizerError
from .vocabulary import NEVER_TEXT, PREFIX, Vocabulary

Merge = tuple[str, str]
# Longer pieces take no part in scored merges: no language has them, and finding the pairs takes
# time that grows with the square of the length.
LONGEST = 256


def merge_pairs(lines: list[str]) -> list[Merge]:
    """The pairs in the lines of `tokenizer.ggml.merges`."""
    if set(map(str.count, lines, repeat(" "))) == {1}:
        pieces = " ".join(lines).split(" ")
        if "" not in pieces:
            return list(zip(pieces[::2], pieces[1::2], strict=True))
    merges: list[Any] = [tuple(line.split(" ", 1)) for line in lines]
    for rank in [rank for rank, pair in enumerate(merges) if len(pair) < 2 or "" in pair]:
        # A piece may itself begin with a space; then the separator is behind it.
        at = lines[rank].find(" ", 1)
        merges[rank] = lines[rank][:at], lines[rank][at + 1 :]
        if at < 0 or not merges[rank][1]:
            raise TokenizerError(
                f"{PREFIX}merges[{rank}] = {lines[rank]!r:.80} is no pair; the file is "
                f"damaged or was not written for ggml; convert the model again"
            )
    return merges


def pairs_making(text: str, pieces: Container[str]) -> Iterator[Merge]:
    """The pairs of pieces that make `text`."""
    for at in range(1, len(text)):
        if (left := text[:at]) in pieces and (right := text[at:]) in pieces:
            yield left, right


def merges_by_score(vocab: Vocabulary, pieces: Mapping[str, int]) -> list[Merge]:
    """The merges of a SentencePiece vocabulary among some pieces, given by rising id."""
    scores = vocab.scores
    assert scores is not None
    ids = {t: i for t, i in pieces.items() if len(t) <= LONGEST and may_merge(vocab, i)}
    # Runs of spaces have equal scores and grow from the left, so the longest is first.
    ranked = sorted(ids, key=lambda text: (-scores[ids[text]], -len(text)))
    return [pair for text in ranked for pair in pairs_making(text, ids)]


def merges_by_rank(ranks: Mapping[str, int], pieces: Collection[str]) -> list[Merge]:
    """The merges of a byte pair vocabulary among some pieces.

    Args:
        ranks: rank of each line of `tokenizer.ggml.merges`, which has one space in it.
    """
    ranked = sorted(
        (rank, left, right)
        for text in pieces
        for left, right in pairs_making(text, pieces)
        if (rank := ranks.get(f"{left} {right}")) is not None
    )
    return [(left, right) for _, left, right in ranked]


def has_one_score(vocab: Vocabulary) -> bool:
    """Whether a SentencePiece vocabulary has several merges, and one score for all of them."""
    ids, scores = vocab.ids, vocab.scores
    assert scores is not None
    found = (
        scores[i]
        for text, i in ids.items()
        if len(text) <= LONGEST and may_merge(vocab, i)
        for left, right in pairs_making(text, ids)
        if may_merge(vocab, ids[left]) and may_merge(vocab, ids[right])
    )
    first, second = next(found, None), next(found, None)
    return second is not None and first == second and all(score == first for score in found)


def may_merge(vocab: Vocabulary, token: int) -> bool:
    """Whether the token of a SentencePiece vocabulary takes part in merging."""
    return vocab.types[token] not in NEVER_TEXT


def check_merges(vocab: Vocabulary) -> None:
    """Finds the merge that does not fit, once building has failed; it is slow.

    Raises:
        TokenizerError: a merge names a piece that is not in the vocabulary.
    """
    for rank, (left, right) in enumerate(merge_pairs(vocab.merges or [])):
        if not {left, right, left + right} <= vocab.ids.keys():
            raise TokenizerError(
                f"{PREFIX}merges[{rank}] = {f'{left} {right}'!r:.80} names a piece that is not in "
                f"the vocabulary; the merges and the tokens of this file do not belong together; "
                f"convert the model again"
            )
