"""Labels of tokens, and entities: neighbours with one label."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ...errors import ConfigError

Entity = dict[str, Any]


class Labelled(NamedTuple):
    """A token with its likeliest label.

    Attributes:
        index: in the token ids of the text.
        start, end: its place in the text, in characters.
    """

    index: int
    label: str
    score: float
    start: int
    end: int


def labelled(
    text: str,
    places: Sequence[tuple[int, int] | None],
    scores: np.ndarray,
    labels: Sequence[str],
) -> list[Labelled]:
    """The tokens of a text but special ones.

    Args:
        places: of each token; None for special ones around the text.
        scores: probabilities, float32 [tokens, labels].
    """
    best: list[int] = scores.argmax(axis=1).tolist()
    return [
        Labelled(i, labels[best[i]], float(scores[i, best[i]]), *place)
        for i, place in enumerate(places)
        if place is not None
    ]


def entities(
    text: str, tokens: Sequence[Labelled], aggregation: str, ignore: Sequence[str]
) -> list[Entity]:
    """The entities of a text; see `LoadedModel.classify_tokens`.

    Raises:
        ConfigError: there is no such aggregation.
    """
    if aggregation == "none":
        return [
            {
                "entity": one.label,
                "score": one.score,
                "index": one.index,
                "word": text[one.start : one.end],
                "start": one.start,
                "end": one.end,
            }
            for one in tokens
            if one.label not in ignore
        ]
    if aggregation != "simple":
        raise ConfigError(f"aggregation is {aggregation!r:.40}; there is 'none' and 'simple'")
    groups: list[list[Labelled]] = [[one] for one in tokens[:1]]
    for before, one in pairwise(tokens):
        begins, kind = _kind(one.label)
        if begins or kind != _kind(before.label)[1]:
            groups.append([])
        groups[-1].append(one)
    return [_joined(text, group) for group in groups if _kind(group[0].label)[1] not in ignore]


def _joined(text: str, group: Sequence[Labelled]) -> Entity:
    start, end = group[0].start, group[-1].end
    return {
        "entity_group": _kind(group[0].label)[1],
        "score": float(np.mean([one.score for one in group])),
        "word": text[start:end],
        "start": start,
        "end": end,
    }


def _kind(label: str) -> tuple[bool, str]:
    """Whether a label begins an entity ("B-PER"), and its kind ("PER")."""
    if label.startswith(("B-", "I-")):
        return label.startswith("B-"), label[2:]
    return False, label
