"""A file checked against its architecture's declaration: field by field, then by a trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..convert.checkpoint_source import CheckpointSource
from ..convert.keys import every_key, listed_classes, recorded
from ..errors import Error, OutOfMemory
from ..gguf_file import TensorSource
from ..model import LoadReport
from ..runner.loading.preparation import Preparation
from ..runner.options import Options
from .reference_keys import keys_read
from .unread import unread, watch

Status = Literal["used", "computed", "ignored", "unused", "unknown"]


@dataclass(frozen=True)
class TensorCheck:
    """A tensor of the file.

    Attributes:
        fields: paths of the fields it fills; several if it is shared.
        status: "computed" if the file lacks it and the architecture makes it, "unknown" if the
            fields could not be filled at all.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    fields: list[str]
    status: Status


@dataclass(frozen=True)
class Finding:
    """A problem or a warning.

    Attributes:
        kind: "model" (architecture or hyperparameters), "missing", "shape", "unused", "tower" (to
            which unused tensors belong), "key" (of a config.json that nobody reads), "refused" (by
            the model), "vocabulary", "trace", "memory", or "unread" (a weight or hyperparameter of
            the file, not read by the forward).
    """

    kind: str
    message: str


@dataclass
class Check:
    """The result of a check.

    Attributes:
        architecture: None if the file names none that is known.
        problems: reasons why `load` refuses the file, or why it gives other results than the
            installed transformers would.
        warnings: findings that do not prevent loading.
        traced: the forward was traced without an error.
    """

    name: str
    architecture: str | None
    tensors: list[TensorCheck] = field(default_factory=list)
    problems: list[Finding] = field(default_factory=list)
    warnings: list[Finding] = field(default_factory=list)
    traced: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing speaks against loading the file."""
        return not self.problems


def check(source: TensorSource, *, models: str | Path | None = None, strict: bool = True) -> Check:
    """Checks a source against its architecture.

    Takes the steps of `ggmodel.load` up to reading the weights, memory included, and goes on after
    an error wherever possible. It finds problems exactly where `load` raises, except for errors in
    a model's `post_load`, and for keys of a config.json that the installed transformers reads.
    Where neither transformers nor a record says which keys count, all that nobody reads are
    warnings.

    Args:
        models: a folder of architectures, searched first.
        strict: unused tensors are problems, not warnings.
    """
    result = Check(source.name, None)
    report, read = None, set[str]()
    with Preparation(source, Options(models=models, strict=strict)) as steps:
        fits = False
        if _tried("model", steps.configure, result):
            read = watch(steps.config)
            if _tried("model", steps.fill, result):
                report = steps.report
                fits = _compare(steps, source, result)
        _tried("vocabulary", steps.read_vocabulary, result)
        if (
            fits
            and _tried("refused", steps.validate, result)
            and _tried("trace", steps.trace, result)
        ):
            weights = steps.engine.memory_plan.weights_read()
            result.traced = True
            _tried("trace", steps.reserve, result)
            result.warnings += [
                Finding("unread", f"{name} ({where}): the forward does not read it")
                for name, where in steps.report.bound
                if name not in weights
            ]
            result.warnings += [Finding("unread", line) for line in unread(steps, read)]
        if report is not None:
            result.architecture = report.architecture
    result.tensors = _tensors(source, steps.source, report)
    return result


def _tried(kind: str, step: Callable[[], None], result: Check) -> bool:
    try:
        step()
    except Error as error:
        kind = "memory" if isinstance(error, OutOfMemory) else kind
        result.problems.append(Finding(kind, str(error)))
        return False
    return True


def _compare(steps: Preparation, source: TensorSource, result: Check) -> bool:
    """Adds the report's findings. Returns whether the model is complete enough to be traced."""
    report = steps.report
    result.problems += [Finding("missing", str(m)) for m in report.missing]
    result.problems += [Finding("shape", str(w)) for w in report.wrong]
    left = [Finding("unused", line) for line in report.unused_lines]
    left += [Finding("tower", sentence) for sentence in report.towers]
    left += [Finding("key", line) for line in report.unread_keys]
    if isinstance(source, CheckpointSource):
        config = source.checkpoint.config
        name = next(iter(listed_classes(config)), "")
        reference = keys_read(name, config) or recorded(config)
        unread = source.unread_of(every_key(config) if reference is None else reference)
        more = [
            Finding("key", line) for key, line in unread.items() if key not in source.unread_keys
        ]
        if reference is None:
            result.warnings += more
        else:
            left += more
    (result.problems if steps.options.strict else result.warnings).extend(left)
    return not (report.missing or report.wrong)


def _tensors(
    source: TensorSource, completed: TensorSource, report: LoadReport | None
) -> list[TensorCheck]:
    """The tensors of fields in the order of declaration, then all others."""
    fields: dict[str, list[str]] = {}
    for name, path in report.bound if report is not None else ():
        fields.setdefault(name, []).append(path)
    ignored = set(report.ignored) if report is not None else set()
    rows = []
    for name in (*fields, *(n for n in source.tensors if n not in fields)):
        info = completed.tensors[name]
        status: Status = "used" if name in source.tensors else "computed"
        if report is None:
            status = "unknown"
        elif name not in fields:
            status = "ignored" if name in ignored else "unused"
        rows.append(TensorCheck(name, info.dtype.name, info.shape, fields.get(name, []), status))
    return rows
