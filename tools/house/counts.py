"""The numbers of the tree, and their ceilings."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from . import circles, copies
from .source import Long, Source, read

LONGEST_FUNCTION, LONGEST_FILE = 60, 500  # lines
WORDS = ("found", "given", "wanted", "said", "known", "seen", "asked", "told")
_BESIDE = ("native", "models")  # outside of the folder of the SDK, which has links to them
_TOP = "top level"
_WITHOUT_CIRCLES = ("ml", "kvcache", "runner")


@dataclass(frozen=True)
class Size:
    """The size of some files, in lines of code."""

    files: int
    lines: int


@dataclass
class Counts:
    """The tree.

    Attributes:
        sdk, models, native: files.
        long_functions, long_files: those above the limits, the longest first.
        pairs: of equal functions or classes of models.
        circles: of imports, by the names of their files.
        public: lines of the list of public names.
    """

    sdk: list[Source]
    models: list[Source]
    native: list[Source]
    long_functions: list[Long]
    long_files: list[Long]
    pairs: list[copies.Pair]
    circles: list[list[str]]
    public: int

    def packages(self) -> dict[str, Size]:
        """The sizes of the packages of the SDK, then those of native and models."""
        groups: dict[str, list[Source]] = {}
        for source in self.sdk:
            groups.setdefault(package(source), []).append(source)
        rows = {**dict(sorted(groups.items())), "native": self.native, "models": self.models}
        return {name: size(sources) for name, sources in rows.items()}

    def words(self) -> dict[str, int]:
        """How often some words that tell nothing of a value occur as names in the SDK."""
        uses = [source.uses(WORDS) for source in self.sdk]
        return {word: sum(one[word] for one in uses) for word in WORDS}

    def held(self) -> dict[str, int]:
        """The numbers that have ceilings, besides lines of code by package."""
        return {
            "files of the SDK": len(self.sdk),
            f"functions above {LONGEST_FUNCTION} lines": len(self.long_functions),
            f"files above {LONGEST_FILE} lines": len(self.long_files),
            f"equal pairs of {copies.SHORTEST} lines in models": len(self.pairs),
            f"circles of imports in {', '.join(_WITHOUT_CIRCLES)}": len(self.circles),
            "files in these circles": sum(map(len, self.circles)),
            "lines of docs/public.txt": self.public,
        }


def package(source: Source) -> str:
    """The package that a file of the SDK counts for."""
    folders = source.module if source.is_package else source.module[:-1]
    return folders[1] if len(folders) > 1 else _TOP


def size(sources: list[Source]) -> Size:
    """The size of some files."""
    return Size(len(sources), sum(len(source.code) for source in sources))


def count(root: Path) -> Counts:
    """Counts what lies below the root of a repository."""
    sdk = read(root, "sdk/ggmodel", "ggmodel")
    native, models = (read(root, folder, f"ggmodel.{folder}") for folder in _BESIDE)
    everything = [*sdk, *models, *native]
    files = [Long(source.name, len(source.lines)) for source in everything]
    functions = [one for source in everything for one in source.functions()]
    public = root / "docs" / "public.txt"
    return Counts(
        sdk,
        models,
        native,
        _above(functions, LONGEST_FUNCTION),
        _above(files, LONGEST_FILE),
        copies.pairs(models),
        circles.circles([source for source in sdk if package(source) in _WITHOUT_CIRCLES]),
        len(public.read_text("utf-8").splitlines()) if public.exists() else 0,
    )


def _above(sizes: list[Long], most: int) -> list[Long]:
    return sorted((one for one in sizes if one.lines > most), key=lambda one: -one.lines)


@dataclass
class Ceilings:
    """The most that each number may be.

    Attributes:
        lines: of code, by package. others: as `Counts.held` calls them.
    """

    lines: dict[str, int]
    others: dict[str, int]

    @classmethod
    def read(cls, path: Path) -> Ceilings:
        """The ceilings of a file."""
        return cls(**json.loads(path.read_text("utf-8")))

    def write(self, path: Path) -> None:
        """Writes them into a file."""
        path.write_text(json.dumps(vars(self), indent=4) + "\n", "utf-8")

    def faults(self, counts: Counts, name: str) -> list[str]:
        """A message for each number above its ceiling.

        Args:
            name: of the file of ceilings, for messages.
        """
        faults = []
        for package, size in counts.packages().items():
            ceiling = self.lines.get(package)
            if ceiling is None:
                faults.append(
                    f"{package} has {size.lines:,} lines of code and no ceiling: enter one in "
                    f"{name}, and give the reason in the commit"
                )
            elif size.lines > ceiling:
                faults.append(
                    f"{package} has {size.lines:,} lines of code, and its ceiling is {ceiling:,}: "
                    f"remove code, or raise the ceiling in {name} and give the reason in the commit"
                )
        for number, value in counts.held().items():
            if value > self.others.get(number, 0):
                faults.append(
                    f"{number}: {value:,}, and the ceiling is {self.others.get(number, 0):,}: "
                    f"mend that (make house names them), or raise the ceiling in {name} and give "
                    "the reason in the commit"
                )
        return faults

    def lowered(self, counts: Counts) -> Ceilings:
        """The ceilings with those that are too high lowered to the numbers; packages that are gone
        are left out."""
        packages = counts.packages()
        lines = {
            name: min(most, packages[name].lines)
            for name, most in self.lines.items()
            if name in packages
        }
        numbers = counts.held()
        others = {name: min(self.others.get(name, n), n) for name, n in numbers.items()}
        return Ceilings(lines, others)
