"""Write docs/ladder.md: all architectures, and what the tests prove of each.

    python -m docs.generate_ladder

Each cell follows from data that tests run on: what is registered, the cases of tests/golden, the
lists of tests/convert and tests/peers, lines in docs/goldens.md, minutes in docs/lessons.md.
"""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ggmodel.model import Model, find, find_hf
from ggmodel.workbench.golden import Cases
from tests.convert.test_llama_cpp import NOTES
from tests.convert.test_source import EMBEDDED, GOLDENS
from tests.golden.files import HERE, cases
from tests.golden.test_runs import ALL, STATELESS, STATES
from tests.peers.test_llama_cpp import OURS
from tests.peers.test_llama_cpp_encoder import GOLDEN as ANSWERED
from tests.peers.test_llama_cpp_source import UNKNOWN
from tests.peers.towers import TOWERS

ROOT = Path(__file__).parents[1]
PATH = ROOT / "docs" / "ladder.md"
HEAD = """\
# The ladder of architectures

All {count} architectures, by the name in a file's `general.architecture`, and what the tests prove
of each. `python -m docs.generate_ladder` writes this page from the data that these tests run on; a
test compares the two.

- Text, images, sounds: the number of tiny models whose results equal those of transformers, which
  are logits of each token or vectors of texts, rows of images, rows of sounds
  ([goldens.md](goldens.md)).
- Decode: 12 tokens, each chosen behind the ones before, are those of transformers.
- Shift: "yes" where keys move to other positions, and logits equal those of the shortened text;
  "anew" where states or learned positions cannot move, so that a request computes its text again.
- Batch: parts of 1, 2, 3 and 7 tokens, and two sequences with a shared prefix, have the logits of
  the whole. With encoders each text alone has the vector that it has beside others.
- Rounded: weights in F16, BF16 and Q8_0 move results as far as they move those of transformers.
- Converted: the number of checkpoints that are read as a folder, value by value, and of those that
  are written as a file, too.
- llama.cpp: its log-probabilities, answers, or rows of towers equal ours on the same file. Then the
  number of files that it computes as we do, of those that were tried; it refuses the others or
  computes something else, and `ggmodel convert` says so. "Tensors": its source reads the names that
  files have, and no more is proven.
- Lines: of code in the model's file, without comments, docstrings and imports. Architectures of one
  file have the same.
- Minutes: from an empty file to equal logits, where [lessons.md](lessons.md) records them.

"""
ROW = "| {} |\n"
COLUMNS = (
    *("architecture", "text", "images", "sounds", "decode", "shift", "batch", "rounded"),
    *("converted", "llama.cpp", "lines", "minutes"),
)


@dataclass(frozen=True)
class Case:
    """A tiny model of tests/golden.

    Attributes:
        name: FOLDER/CASE.
        kinds: those of its items, "image", "audio" or "source".
        embeds: whether its golden holds vectors of texts in place of logits.
    """

    name: str
    kinds: frozenset[str]
    embeds: bool


def goldens() -> dict[str, list[Case]]:
    """Architecture → its tiny models: those whose checkpoints are stored under its name."""
    found: dict[str, list[Case]] = {}
    for folder in sorted(path.parent for path in HERE.glob("*/cases.py")):
        read = Cases(folder)
        pictures = getattr(read.module, "PICTURES", {})
        for embeds in (False, True):
            for case in cases(folder.name, "embeddings" if embeds else ""):
                config = read.embeddings[case][0] if embeds else read.configs[case]
                served = find_hf(config["architectures"]).stored_as(config)
                items = pictures.get(case, {}).values()
                kinds = frozenset(item[2] if len(item) > 2 else "image" for item in items)
                case = Case(f"{folder.name}/{case}", kinds, embeds)
                found.setdefault(served, []).append(case)
    return found


def listed(pattern: str, page: str) -> dict[str, str]:
    """First → second group of the lines of a page that match."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return {found[1]: found[2] for found in re.finditer(pattern, text, re.MULTILINE)}


LINES = r"^\| (\w+) \| (\d+) \|$"
MINUTES = r"^\| `([\w.-]+)` \| (\d+) \|"


def shifted(cls: type[Model], own: list[Case]) -> str:
    if cls.prompt_item or all(case.embeds for case in own):
        return ""
    states = [
        not STATES.isdisjoint({case.name, case.name.partition("/")[0]})
        and case.name not in STATELESS
        for case in own
    ]
    return "anew" if any(states) else "yes"


def agreed(name: str, own: list[Case]) -> str:
    """Results that llama.cpp agrees with."""
    said: list[str] = []
    names = {case.name for case in own}
    if not names.isdisjoint("/".join(one) for one in OURS):
        said.append("log-probabilities")
    if not names.isdisjoint({ANSWERED}):
        said.append("answers")
    kinds = {kind for tower in TOWERS.values() for kind in items(tower.golden, own)}
    said += [f"rows of {name}" for kind, name in ITEMS.items() if kind in kinds]
    tried = names & NOTES.keys()
    same = sum(not NOTES[case] for case in tried)
    if tried and name not in UNKNOWN:
        said.append(f"{same} of {len(tried)} files")
    return ", ".join(said) or ("unknown to it" if name in UNKNOWN else "tensors")


ITEMS = {"image": "images", "video": "videos", "audio": "sounds"}


def items(name: str, own: list[Case]) -> frozenset[str]:
    """The kinds of items of the tiny model of this name, if it is one of these."""
    return next((case.kinds for case in own if case.name == name), frozenset())


def row(name: str, own: list[Case], lines: dict[str, str], minutes: dict[str, str]) -> list[str]:
    cls = find(name)
    folder, stem = cls.__module__.split(".")[-2:]
    run = {"/".join(one) for one in ALL}
    folders = {"/".join(one) for one in (*GOLDENS, *EMBEDDED)}

    def count(fits: Callable[[Case], bool]) -> str:
        return str(sum(map(fits, own)) or "")

    def among(names: Collection[str]) -> str:
        return count(lambda case: case.name in names)

    def yes(fits: Callable[[Case], bool]) -> str:
        return "yes" if own and all(map(fits, own)) else ""

    read, written = among(folders), among(NOTES.keys())
    return [
        f"`{name}`",
        count(lambda case: True),
        count(lambda case: "image" in case.kinds),
        count(lambda case: "audio" in case.kinds),
        yes(lambda case: not case.embeds),
        shifted(cls, own),
        yes(lambda case: case.name in run),
        yes(lambda case: case.name in run),
        f"{read} and {written}" if written else read,
        agreed(name, own),
        lines.get(stem) or lines[folder],
        minutes.get(name, ""),
    ]


def rows() -> Iterator[list[str]]:
    """The cells of each architecture."""
    own, lines = goldens(), listed(LINES, "goldens.md")
    minutes = listed(MINUTES, "lessons.md")
    built_in: Any = runpy.run_path(str(ROOT / "docs" / "site" / "architectures.py"))["built_in"]
    for name in built_in():
        yield row(name, own.get(name, []), lines, minutes)


def document() -> str:
    """The page."""
    cells = list(rows())
    table = [ROW.format(" | ".join(line)) for line in (COLUMNS, ["---"] * len(COLUMNS), *cells)]
    return HEAD.format(count=len(cells)) + "".join(table)


if __name__ == "__main__":
    PATH.write_text(document(), encoding="utf-8")
