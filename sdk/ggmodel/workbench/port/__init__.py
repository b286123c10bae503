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
from ...errors import ConfigError, Error, Unsupported
from ...reading import read_json
from ...storage import write_text
from ..golden.runs import Prompt, nmse
from . import recording
from .attention import Missing
from .facts import Keys
from .tiny import LONG, SIZES, Tiny
from .whole import Whole, lists_of, rename, whole_of
from .writing import Writer

BOUND = 1e-10  # of the NMSE in float64, as for goldens: another form of GELU is far above
BOUND_F32 = 1e-6  # in float32, where ggml looks GELU up in a table of half precision
SEEDS = (11, 12, 13)  # of the weights that are read, and of those that are compared
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
    """

    cls: str
    file: Path | None = None
    missing: str = ""
    errors: dict[str, float] = field(default_factory=dict)
    bounds: dict[str, float] = field(default_factory=dict)

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
        saved = tiny.save(Path(folder))
        try:
            text = _text(tiny, saved, Path(folder), name)
        except Missing as missing:
            begun = _begun(name, into, folder) if begin else None
            return Ported(tiny.name, begun, str(missing))
    Path(into).mkdir(parents=True, exist_ok=True)
    write_text(file, text)
    progress(f"comparing {file} with transformers")
    result = Ported(tiny.name, file)
    try:
        _compare(result, tiny, raw, into)
    except Error as error:
        result.missing = f"the file does not load a checkpoint of the class: {error}"
    return result


def _check(name: str, into: Path) -> Path:
    file = into / f"{name}.py"
    if not name.isidentifier():
        raise ConfigError(f"{name!r:.60} cannot be an architecture's name: letters, digits, _")
    if file.exists():
        raise ConfigError(f"{file} exists; choose another --name, or remove it")
    return file


def _text(tiny: Tiny, saved: Mapping[str, Any], folder: Path, name: str) -> str:
    """The text of the model file."""
    record = recording.record(tiny.net, _ids(SEEDS[0], LONG))
    with Checkpoint.open(folder) as checkpoint:
        tensors = {n: np.array(checkpoint.arrays[n]) for n in checkpoint.tensors}
    rename(record, tensors)
    whole: Whole = whole_of(record, lists_of(tiny.net))
    return Writer(whole, Keys(saved, tiny.common), tensors, name, tiny.name).text()


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


def _compare(result: Ported, tiny: Tiny, raw: Mapping[str, Any], models: str | Path) -> None:
    """Compares logits on fresh random weights: in float64, and split into batches in float32. The
    second weights are of other sizes, where the class allows that."""
    from ...loading import load

    options = {"models": models, "kv_type": "f32", "flash_attention": "off"}
    options |= {"context_length": LONG + 8, "threads": 1}
    for seed in SEEDS[1:]:
        if seed != SEEDS[1]:
            tiny = _other(raw, tiny)
        tiny.draw(seed)
        texts = [_ids(seed + n, n) for n in LENGTHS]
        wanted = [recording.logits(tiny.net, ids) for ids in texts]
        with tempfile.TemporaryDirectory() as folder:
            tiny.save(Path(folder))
            with load(folder, backend="reference", **options) as model:
                for ids, want in zip(texts, wanted, strict=True):
                    name = f"float64, {len(ids)} tokens, weights {seed}"
                    result.errors[name] = nmse(model.logits(ids.tolist()), want)
                    result.bounds[name] = BOUND
            if seed == SEEDS[1]:
                with load(folder, **options) as model:
                    ids, want = texts[-1][:SPLIT].astype(np.int32), wanted[-1][:SPLIT]
                    prompt = Prompt(model, ids, want, BOUND_F32)
                    for run in prompt.runs():
                        result.errors[f"float32, {run.name}"] = run.nmse
                        result.bounds[f"float32, {run.name}"] = run.bound
