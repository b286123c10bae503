"""Numbers that several keys of a config.json have: a comparison chooses among them.

The tiny model that a file is read from may have one number under several names. The model that it
is compared with has another number under each, so that a wrong choice shows, and the module diff
says how far the computation is right.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...convert.checkpoint import Checkpoint
from ...convert.declaration import pairs
from ...errors import Error
from .. import reference
from ..diff import diff
from .attention import Missing
from .tiny import SIZES, Tiny

_MOST = 24  # files that are tried
_TOKENS = 48  # more than each window has
_SEED = 17


@dataclass(frozen=True)
class Judgement:
    """How far a file is right.

    Attributes:
        right: modules before the first that diverges; -1 where nothing could be compared.
        error: the NMSE of the whole model's result.
        first: the path of that module; "" for none, or where nothing could be compared.
    """

    right: int
    error: float
    first: str = ""

    def better(self, other: Judgement) -> bool:
        """Whether this file is right for longer than another. The error of the whole decides only
        where no module diverges: behind one that does, a wrong number may lessen it by chance."""
        own, its = ((j.right, not j.first) for j in (self, other))
        return own > its or (own == its and not self.first and self.error < other.error)


@dataclass(frozen=True)
class Mended:
    """The best of the files that were tried.

    Attributes:
        chosen: hyperparameter → the way that was taken in place of the first.
        first: the first module that still diverges.
    """

    text: str
    chosen: dict[str, str]
    first: str


def judged(tiny: Tiny, models: str | Path) -> Judgement:
    """The module diff of a folder's model file on fresh random weights of a class."""
    from ...loading import load

    tiny.draw(_SEED)
    ids = np.random.default_rng(_SEED).integers(3, SIZES["vocab_size"], _TOKENS, np.int32)
    options = {"models": models, "kv_type": "f32", "flash_attention": "off", "threads": 1}
    with tempfile.TemporaryDirectory() as folder:
        tiny.save(Path(folder))
        try:
            with load(folder, context_length=2 * _TOKENS, **options) as model:
                with Checkpoint.open(folder) as checkpoint:
                    names = [pair.name for pair in pairs(model.model, checkpoint.tensors)]
                compared = diff(model, reference.run(folder, names, {"input_ids": ids}))
        except Error:
            return Judgement(-1, np.inf)
    rows, first = compared.rows, compared.first
    right = next((i for i, row in enumerate(rows) if row.wrong), len(rows))
    whole = rows[-1].result
    return Judgement(right, np.inf if whole is None else whole.nmse, first.path if first else "")


def mend(
    write: Callable[[Mapping[str, int]], str],
    ways: Mapping[str, Sequence[str]],
    tiny: Tiny,
    name: str,
) -> Mended:
    """Tries the ways to say each hyperparameter, and keeps those with which the computation is
    right for longer.

    Args:
        write: the text of a file, from which way to take for each.
        ways: of each hyperparameter; the first is what the file has.
        tiny: the model that it is compared with.
        name: of the file.
    """

    def tried(picks: Mapping[str, int]) -> tuple[Judgement, str]:
        with tempfile.TemporaryDirectory() as folder:
            text = write(picks)
            Path(folder, f"{name}.py").write_text(text, "utf-8")
            return judged(tiny, folder), text

    picks, chosen, left = dict[str, int](), dict[str, str](), _MOST
    best, text = tried(picks)
    for what, each in ways.items():
        for i in range(1, min(len(each), left + 1)):
            left -= 1
            try:
                judgement, other = tried({**picks, what: i})
            except Missing:
                continue
            if judgement.better(best):
                best, text, picks[what], chosen[what] = judgement, other, i, each[i]
    return Mended(text, chosen, best.first)
