"""One fault: does it change the numbers, and which tool says no?"""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from hashlib import blake2s
from pathlib import Path
from typing import Any

import numpy as np

from ggmodel.errors import Error
from ggmodel.loading import open_source
from ggmodel.model import registry
from ggmodel.model.walk import instances
from ggmodel.runner import LoadedModel
from ggmodel.workbench import golden
from ggmodel.workbench.check import check
from ggmodel.workbench.diff import diff
from ggmodel.workbench.diff.report import Diff
from ggmodel.workbench.golden import Golden, changes, coverage
from tests.faults.processed import RECORDED, differing_inputs, prepares_otherwise
from tests.faults.rules import RULES, Seed
from tests.faults.source import MODELS, Source, files, spelled
from tests.faults.subjects import EXACT, Numbers, Subject, served_by, subjects

# Sums in another order differ by 3e-13 of the squares; no fault that matters by less than this.
NOTICED = 1e-10


@dataclass(frozen=True)
class Fault:
    """A model file with one fault.

    Attributes:
        text: of the whole file.
        blames: see `Seed`.
    """

    rule: str
    path: str
    line: int
    said: str
    text: str
    blames: frozenset[str]

    @property
    def key(self) -> str:
        """Names the fault as long as its file stays the same."""
        return blake2s(f"{self.rule} {self.path} {self.text}".encode(), digest_size=8).hexdigest()

    @property
    def subjects(self) -> list[Subject]:
        return [s for a in served_by(self.path) for s in subjects(a)]


def faults(only: Callable[[str, str], bool] = lambda rule, path: True) -> list[Fault]:
    """The faults of all rules in all files; `only` takes a rule and a path."""
    return [f for path in files() for f in faults_of(spelled(path), only)]


def faults_of(
    source: Source, only: Callable[[str, str], bool] = lambda rule, path: True
) -> Iterator[Fault]:
    """The faults of one file, each text once."""
    known = {source.text}
    for name, rule in RULES.items():
        for seed in rule(source) if only(name, source.path) else ():
            text = source.changed(*seed.edits)
            if text not in known:
                known.add(text)
                yield _fault(name, source, seed, text)


def _fault(name: str, source: Source, seed: Seed, text: str) -> Fault:
    line = getattr(seed.node, "lineno", 0)
    return Fault(name, source.path, line, seed.said, text, seed.blames)


@dataclass
class Result:
    """The outcome of a fault.

    Attributes:
        shown: where it changes the numbers: "loading", "prompt", "decode", …; "" if nowhere.
        by: the tools that say no: "check", "golden", "diff".
        first: the module that `diff` names; None if it agrees, or never ran.
        right: whether that is the module that has the fault.
        case: in which the numbers changed first.
        note: an error's first line.
    """

    rule: str
    path: str
    line: int
    said: str
    shown: str = ""
    by: list[str] = field(default_factory=list)
    first: str | None = None
    right: bool | None = None
    case: str = ""
    note: str = ""


@contextmanager
def written(path: str, text: str) -> Iterator[Path]:
    """A folder of architectures with one model file changed, imported in this process."""
    with tempfile.TemporaryDirectory(prefix="faults-") as base:
        models, family = Path(base).resolve(), path.split("/")[0]
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(MODELS / family, models / family, ignore=ignored)
        for file in (models / family).glob("*.py"):
            source = file.read_text("utf-8").replace(f"ggmodel.models.{family}.", ".")
            file.write_text(source, "utf-8")
        (models / path).write_text(text.replace(f"ggmodel.models.{family}.", "."), "utf-8")
        try:
            yield models
        finally:
            for name in [n for n in registry._stamps if _is_below(n, models)]:
                registry._forget(name)


def _is_below(module: str, models: Path) -> bool:
    return any(str(models) in stamp[0] for stamp in registry._stamps[module])


class Trials:
    """Tries faults, one after the other.

    Args:
        cache: a folder for checkpoints and results of transformers.
        references: whether `diff` runs; it needs transformers where the cache has no results.
    """

    def __init__(self, cache: Path, references: bool = True):
        self.cache, self.references = cache, references
        self._true: dict[tuple[str, str], Any] = {}

    def numbers(self, subject: Subject, backend: str = "ggml") -> Numbers:
        """The true model's results."""
        if (subject.name, backend) not in self._true:
            with subject.load(self.cache, backend=backend) as model:
                self._true[subject.name, backend] = subject.numbers(model)
        return self._true[subject.name, backend]

    def _differing(self, subject: Subject, numbers: Numbers, models: Path) -> str:
        """Where a model's results differ from the true model's; "" if nowhere. Behind a GELU that
        ggml reads from a table in F16, 1e-11 is 1e-9: float64 tells whether it is a fault."""
        shown = differing(numbers, self.numbers(subject))
        if not shown or not subject.by_table or subject.beyond(numbers):
            return shown
        with subject.load(self.cache, models, backend="reference") as model:
            return differing(subject.numbers(model), self.numbers(subject, "reference"))

    def rare(self, subject: Subject) -> dict[str, Numbers]:
        """The true model's results, see `Subject.rare`."""
        if (subject.name, "rare") not in self._true:
            self._true[subject.name, "rare"] = dict(subject.rare(self.cache))
        return self._true[subject.name, "rare"]

    def run(self, fault: Fault) -> Result:
        """Tries a fault on the cases of its architecture until all tools have said no."""
        result = Result(fault.rule, fault.path, fault.line, fault.said)
        with written(fault.path, fault.text) as models, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for subject in fault.subjects:
                shown = self._common(fault, subject, models, result)
                if shown == "loading" or {"golden", "diff"} <= set(result.by):
                    return result
            if not result.shown:
                for subject in fault.subjects:
                    if self._seldom(fault, subject, models, result):
                        break
            if not result.shown:
                self._neutral(fault, models, result)
        return result

    def _neutral(self, fault: Fault, models: Path, result: Result) -> None:
        """Where no case shows a fault: whether `golden` has the reference's results with other
        numbers, or names a number that no case sees; whether `check` names it. If none does, other
        numbers in the cases tell whether it is a fault."""
        subjects = [s for s in fault.subjects if isinstance(s.golden, Golden)]
        keys = {p.rpartition(".")[2] for s in subjects for p, _ in changes.numbers(s.golden.config)}
        if not keys & fault.blames:
            return
        named = self._unfollowed(subjects, models) or self._unseen(fault, subjects, models)
        if named:
            result.by.append("golden")
        for subject in fault.subjects:
            with closing(open_source(subject.checkpoint(self.cache), None, models)) as source:
                warned = check(source, models=models).warnings
            lines = " ".join(w.message for w in warned if w.kind == "unread")
            unread = [name for name in fault.blames if f"({name})" in lines]
            if unread and "check" not in result.by:
                result.by.append("check")
            named = named or unread
        if result.by:
            result.shown, result.case = "other values", fault.subjects[0].name
            result.first = ", ".join(named)
            result.right = bool({*named} & fault.blames)
            return
        for subject in subjects:
            for key, refused in self._other(fault, subject, models):
                result.shown, result.case = "other values", subject.name
                if refused:  # as `check` refuses a checkpoint with such a value
                    result.by, result.first, result.right = ["check"], key, True
                return

    def _unfollowed(self, subjects: list[Subject], models: Path) -> list[str]:
        """Keys of a config.json whose other values a model does not follow."""
        for subject in subjects:
            loading = golden.Loading(subject.cases, models, EXACT)
            assert isinstance(subject.golden, Golden)
            runs = list(changes.runs(loading, subject.golden, subject.case, golden.FLOAT64))
            if wrong := [run.name for run in runs if not run.ok]:
                return [name.split()[1].rpartition(".")[2] for name in wrong]
        return []

    def _unseen(self, fault: Fault, subjects: list[Subject], models: Path) -> list[str]:
        """Hyperparameters of the fault that no case sees, for no reason that cases.py gives."""
        found, seen = set[str](), set[str]()
        for subject in subjects:
            case = coverage.Case(golden.Loading(subject.cases, models, EXACT), subject.golden)
            found |= case.hyperparameters.keys() & fault.blames
            seen |= case.sees(found - seen)
        reasons = subjects[0].cases.unseen if subjects else {}
        return sorted(n for n in found - seen if not any(fnmatchcase(n, p) for p in reasons))

    def _other(self, fault: Fault, subject: Subject, models: Path) -> Iterator[tuple[str, bool]]:
        """The keys of a fault whose other numbers in config.json give other results than those of
        the true model, and whether they are refused. Numbers that move nothing in the reference
        are none: what is right there nobody says."""
        assert isinstance(subject.golden, Golden)
        config, moving = subject.golden.config, subject.golden.changes
        for path, value in changes.numbers(config):
            key = path.rpartition(".")[2]
            if moving and path not in moving:
                continue
            for other in changes.others(value) if key in fault.blames else ():
                varied = changes.changed(config, path, other)
                got, true = (_last(subject, varied, m) for m in (models, None))
                if true is None or not true.size:
                    continue
                if got is None or not golden.nmse(got, true) <= NOTICED:
                    yield key, got is None

    def _common(self, fault: Fault, subject: Subject, models: Path, result: Result) -> str:
        """Loads and computes what is usual; if that differs, asks the tools."""
        try:
            with subject.load(self.cache, models) as model:
                numbers = subject.numbers(model)
                shown = self._differing(subject, numbers, models)
                if shown and "golden" not in result.by and subject.beyond(numbers):
                    result.by.append("golden")
                if shown:
                    self._note(result, shown, subject)
                    self._ask_diff(fault, subject, model, result)
        except Exception as error:
            self._note(result, "loading", subject)
            result.note = f"{type(error).__name__}: {error}".split("\n")[0][:200]
            self._ask_check(subject, models, result)
            self._ask_golden(subject, models, result)
            return "loading"
        if shown:
            self._ask_check(subject, models, result)
            self._ask_golden(subject, models, result)
        return shown

    def _seldom(self, fault: Fault, subject: Subject, models: Path, result: Result) -> bool:
        """The same for results that are seldom looked at."""
        shown = ""
        try:
            true = self.rare(subject)
            for name, found in subject.rare(self.cache, models):
                if differing(found, true[name]):
                    shown = name
                    break
        except Exception as error:
            shown = "running"
            result.note = f"{type(error).__name__}: {error}".split("\n")[0][:200]
        if not shown:
            return False
        self._note(result, shown, subject)
        self._ask_golden(subject, models, result)
        try:
            with subject.load(self.cache, models) as model:
                self._ask_diff(fault, subject, model, result)
                if shown in ("pixels", "running") and subject.pictures:
                    self._ask_inputs(fault, subject, model, models, result)
        except Error:
            result.by.append("check")
        return {"golden", "diff"} <= set(result.by)

    def _ask_inputs(
        self, fault: Fault, subject: Subject, model: LoadedModel, models: Path, result: Result
    ) -> None:
        try:
            if subject.architecture in RECORDED:
                differs = bool(differing_inputs(subject, model))
            else:
                differs = prepares_otherwise(subject.architecture, models)
        except Exception:  # as the command ends with it
            differs = True
        if differs and "diff" not in result.by:
            result.by.append("diff")
            result.first, result.right = "preprocess", bool(fault.blames & {"preprocess", ""})

    def _note(self, result: Result, shown: str, subject: Subject) -> None:
        if not result.shown:
            result.shown, result.case = shown, subject.name

    def _ask_check(self, subject: Subject, models: Path, result: Result) -> None:
        if "check" in result.by:
            return
        try:
            with closing(open_source(subject.checkpoint(self.cache), None, models)) as source:
                fine = check(source, models=models).ok
        except Error:
            fine = False
        if not fine:
            result.by.append("check")

    def _ask_golden(self, subject: Subject, models: Path, result: Result) -> None:
        if "golden" in result.by:
            return
        try:
            outcomes = golden.check(subject.cases.folder, subject.case, models)
            fine = all(o.ok for o in outcomes)
        except Exception:
            fine = False
        if not fine:
            result.by.append("golden")

    def _ask_diff(self, fault: Fault, subject: Subject, model: LoadedModel, result: Result) -> None:
        if "diff" in result.by or not self.references:
            return
        for reference in subject.references(self.cache):
            try:
                found = diff(model, reference)
            except Error as error:
                result.note = result.note or f"diff: {error}".split("\n")[0][:200]
                result.by.append("diff")
                return
            if not found.ok:
                result.by.append("diff")
                if found.first is not None:  # else tensors that no field reads
                    result.first, result.right = judged(found, model, fault)
                return


def _last(subject: Subject, config: dict[str, Any], models: Path | None) -> np.ndarray | None:
    """The last logits with another configuration; None if it is refused, none if it crashes."""
    assert isinstance(subject.golden, Golden)
    try:
        source = golden.source_of(replace(subject.golden, config=config), models=models)
        with golden.Loading(subject.cases, models, EXACT).load(source) as model:
            return changes.last(model, subject.golden)
    except Error:
        return None
    except Exception:  # a crash is no refusal
        return np.zeros(0, np.float32)


def judged(found: Diff, model: LoadedModel, fault: Fault) -> tuple[str, bool]:
    """The module that a diff names, and whether it is to blame: by its field, or by its class.
    A class of the same name in another file is another class."""
    assert found.first is not None
    path = found.first.path
    cls = type(next(i.module for i in instances(model.model) if i.path == path))
    file = Path(fault.path).stem
    names = {
        c.__name__
        for c in cls.__mro__
        if c.__module__.rpartition(".")[2] == file or f"class {c.__name__}(" not in fault.text
    }
    # Where a field is not called, the first module inside it may be named.
    parts = path.split(".") if found.first.verdict == "unused" else [path.rpartition(".")[2]]
    names |= {part.partition("[")[0] for part in parts}
    return path, bool(names & fault.blames)


def differing(found: Numbers, true: Numbers) -> str:
    """The first name under which numbers differ by more than sums in another order; "" if none."""
    for name, want in true.items():
        got = found.get(name)
        if got is None or got.shape != want.shape:
            return name
        if want.dtype.kind in "iuU":
            if not np.array_equal(got, want):
                return name
        elif not golden.nmse(got, want) <= NOTICED:
            return name
    return ""
