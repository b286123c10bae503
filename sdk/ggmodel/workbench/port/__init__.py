"""A model file for a checkpoint of transformers: read from what a tiny model of its class computes,
and proven against that class."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...convert.checkpoint import Checkpoint
from ...convert.keys import listed_classes
from ...errors import ArchitectureError, ConfigError, Error, Unsupported
from ...model.registry import find_hf
from ...model.source_code import file_of
from ...reading import read_json
from ...storage import write_text
from ..golden.runs import Prompt, nmse
from . import recording
from .attention import Missing
from .facts import Keys
from .mending import judged, mend
from .tiny import LONG, SIZES, Tiny
from .whole import Whole, lists_of, rename, whole_of
from .writing import Writer

BOUND = 1e-10  # of the NMSE in float64, as for goldens: another form of GELU is far above
BOUND_F32 = 1e-6  # in float32, where ggml looks GELU up in a table of half precision
SEEDS = (11, 12)  # of the weights that are read, and of the first that are compared
LENGTHS = (1, 7, LONG)
SPLIT = 64  # tokens of the text that is split into batches: more than each window has


@dataclass
class Ported:
    """The result of `port`.

    Attributes:
        cls: the class of transformers.
        file: the model file; where a block is missing it goes as far as it can, if there is any.
        missing: the block that nothing declares, or why the file does not load; "" for none.
        errors: what was compared → its NMSE, and `bounds`, what that must stay below.
        mended: hyperparameter → the key of config.json, or the formula of keys, that a comparison
            chose, of several with the number, where the first was wrong.
        first: the first module that `diff` finds to diverge; "" for none.
    """

    cls: str
    file: Path | None = None
    missing: str = ""
    errors: dict[str, float] = field(default_factory=dict)
    bounds: dict[str, float] = field(default_factory=dict)
    mended: dict[str, str] = field(default_factory=dict)
    first: str = ""

    @property
    def ok(self) -> bool:
        """Whether the file computes all that was compared."""
        return not self.missing and bool(self.errors) and not self.wrong

    @property
    def wrong(self) -> list[str]:
        """The names of errors above their bounds."""
        return [name for name, error in self.errors.items() if not error < self.bounds[name]]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "class": self.cls,
            "file": None if self.file is None else str(self.file),
            "ok": self.ok,
            "missing": self.missing,
            "errors": self.errors,
            "mended": self.mended,
            "first": self.first,
        }


def port(
    hf: str | Path,
    into: str | Path,
    *,
    name: str = "",
    begin: bool = True,
    progress: Callable[[str], None] = lambda _: None,
) -> Ported:
    """Writes a model file for the class that a folder's config.json names, and compares its logits
    with those of transformers: on fresh random weights, in float64, on texts longer than each
    window, and in float32 in batches of several sizes.

    Args:
        hf: the folder; config.json is read alone.
        into: the folder to write NAME.py to.
        name: of the architecture; the config's `model_type` by default.
        begin: where a block is missing, begin a file as `scaffold` does.
        progress: called with what is done next.

    Raises:
        NotInstalled: torch or transformers is missing.
        Unsupported: transformers lacks the class, or it cannot be made small.
        FormatError: config.json is none.
        ConfigError: the file exists, or the name is none of a module.
    """
    raw = read_json(Path(hf) / "config.json")
    name = (name or str(raw.get("model_type") or "")).replace("-", "_")
    if name:
        _check(name, Path(into))
    progress("making a tiny model")
    tiny = Tiny(raw)
    name = name or str(tiny.config["model_type"]).replace("-", "_")
    file = _check(name, Path(into))
    progress(f"reading what a tiny {tiny.name} computes")
    tiny.draw(SEEDS[0])
    with tempfile.TemporaryDirectory() as folder:
        try:
            read = _Read(tiny, Path(folder), name)
            text = read.text()
        except Missing as missing:
            begun = _begun(name, into, folder) if begin else None
            return Ported(tiny.name, begun, str(missing))
    Path(into).mkdir(parents=True, exist_ok=True)
    write_text(file, text)
    progress(f"comparing {file} with transformers")
    result = Ported(tiny.name, file)
    _compare(result, tiny, raw, into)
    if not result.ok and not result.missing:
        progress("trying other keys of config.json with the same numbers")
        mended = mend(read.text, read.ways, _other(raw, tiny), name)
        result.mended, result.first = mended.chosen, mended.first
        if mended.chosen:
            write_text(file, mended.text)
            _compare(result, tiny, raw, into)
    return result


def prove(
    hf: str | Path,
    models: str | Path,
    *,
    seed: int = SEEDS[1],
    progress: Callable[[str], None] = lambda _: None,
) -> Ported:
    """Compares a model file that exists, written or mended by hand, with the class that a folder's
    config.json names, as `port` does.

    Args:
        hf: the folder; config.json is read alone.
        models: the folder with the model file.
        seed: of the random weights.

    Raises:
        NotInstalled: torch or transformers is missing.
        Unsupported: transformers lacks the class, or it cannot be made small.
        FormatError: config.json is none.
        ArchitectureError: no file of the folder serves the class.
    """
    raw = read_json(Path(hf) / "config.json")
    file = _serving(listed_classes(raw)[:1], models)
    progress("making a tiny model")
    tiny = Tiny(raw)
    result = Ported(tiny.name, file)
    progress(f"comparing {result.file} with transformers")
    _compare(result, tiny, raw, models, seed)
    if result.wrong:
        result.first = judged(_other(raw, tiny), models).first
    return result


def _serving(classes: list[str], models: str | Path) -> Path:
    """The file of a folder that serves a class, none outside of it."""
    file = Path(file_of(find_hf(classes, models)) or "").resolve()
    own = (path for pattern in ("*.py", "*/*.py") for path in Path(models).glob(pattern))
    if file not in {path.resolve() for path in own}:
        raise ArchitectureError(
            f"{models} has no file that serves {classes[0]:.100}, which {file} does: copy it "
            "there, or write one with `ggmodel port`"
        )
    return file


def _check(name: str, into: Path) -> Path:
    file = into / f"{name}.py"
    if not name.isidentifier():
        raise ConfigError(f"{name!r:.60} cannot be an architecture's name: letters, digits, _")
    if file.exists():
        raise ConfigError(f"{file} exists; choose another --name, or remove it")
    return file


class _Read:
    """A tiny model as it was read, from which its file is written.

    Attributes:
        ways: hyperparameter → the keys of config.json with its number, where there are several.
    """

    def __init__(self, tiny: Tiny, folder: Path, name: str):
        self._saved, self._common = tiny.save(folder), tiny.common
        self._name, self._cls = name, tiny.name
        record = recording.record(tiny.net, _ids(SEEDS[0], LONG))
        with Checkpoint.open(folder) as checkpoint:
            self._tensors = {n: np.array(checkpoint.arrays[n]) for n in checkpoint.tensors}
        rename(record, self._tensors)
        self._whole: Whole = whole_of(record, lists_of(tiny.net))
        self.ways: dict[str, list[str]] = {}

    def text(self, picks: Mapping[str, int] | None = None) -> str:
        """The text of the model file.

        Args:
            picks: hyperparameter → which of its ways to take; the first by default.

        Raises:
            Missing: something that no declaration says.
        """
        keys = Keys(self._saved, self._common, picks)
        text = Writer(self._whole, keys, self._tensors, self._name, self._cls).text()
        self.ways |= keys.ways
        return text


def _begun(name: str, into: str | Path, folder: str) -> Path | None:
    """The file that `ggmodel new` begins, for a class with a missing block."""
    from ..scaffold import scaffold

    with suppress(Error):
        return scaffold(name, into, hf=folder).files[0]
    return None


def _ids(seed: int, n: int) -> Any:
    return np.random.default_rng(seed).integers(3, SIZES["vocab_size"], n)


def _other(raw: Mapping[str, Any], tiny: Tiny) -> Tiny:
    """A model of other sizes; the same for a class that these do not suit."""
    try:
        other = Tiny(raw, other=True)
        recording.logits(other.net, _ids(0, 2))
    except (Unsupported, RuntimeError, ValueError):
        return tiny
    return other


def _compare(
    result: Ported,
    tiny: Tiny,
    raw: Mapping[str, Any],
    models: str | Path,
    first: int = SEEDS[1],
) -> None:
    """Compares logits on fresh random weights: in float64, and split into batches in float32. The
    second weights are of other sizes, where the class allows that. A file that does not load is
    `missing`."""
    try:
        for seed in (first, first + 1):
            if seed != first:
                tiny = _other(raw, tiny)
            _compare_weights(result, tiny, models, seed, split=seed == first)
    except Error as error:
        result.missing = f"the file does not load a checkpoint of the class: {error}"


def _compare_weights(
    result: Ported, tiny: Tiny, models: str | Path, seed: int, split: bool
) -> None:
    from ...loading import load

    options = {"models": models, "kv_type": "f32", "flash_attention": "off"}
    options |= {"context_length": LONG + 8, "threads": 1}
    tiny.draw(seed)
    texts = [_ids(seed + n, n) for n in LENGTHS]
    expected = [recording.logits(tiny.net, ids) for ids in texts]
    with tempfile.TemporaryDirectory() as folder:
        tiny.save(Path(folder))
        with load(folder, backend="reference", **options) as model:
            for ids, want in zip(texts, expected, strict=True):
                name = f"float64, {len(ids)} tokens, weights {seed}"
                result.errors[name] = nmse(model.logits(ids.tolist()), want)
                result.bounds[name] = BOUND
        if split:
            with load(folder, **options) as model:
                ids, want = texts[-1][:SPLIT].astype(np.int32), expected[-1][:SPLIT]
                prompt = Prompt(model, ids, want, BOUND_F32)
                for run in prompt.runs():
                    result.errors[f"float32, {run.name}"] = run.nmse
                    result.bounds[f"float32, {run.name}"] = run.bound
