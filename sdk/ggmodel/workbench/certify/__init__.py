"""Is this file that model? Every part of a GGUF file, recomputed from the checkpoint and compared.

Numbers are read once, tensor by tensor. The report names all that was not compared.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...convert.checkpoint_source import CheckpointSource, Contents
from ...convert.imatrix import ImportanceMatrix
from ...convert.tensor_types import RECIPES, Candidate, choose
from ...errors import ConfigError, Error, LoadError, Unsupported
from ...gguf_file import TensorSource
from ...loading import open_source, resolved
from ...model import Model, find
from ...model.module import of_tower
from ...resources import reported
from ...runner.loading.preparation import Preparation
from ...runner.options import Options
from .keys import compare_keys
from .report import Certificate, Finding, TensorResult
from .tensors import IMATRIX, Comparison
from .words import compare_templates, compare_tokenizers

__all__ = ["Certificate", "Finding", "TensorResult", "certify"]

_PIECE = 1 << 24  # bytes of a file that are digested at a time
_MOST_OF = 0.5  # share of tensors from which on one cause is said of the file
# Kinds of differing tensors that, if most are of one, tell of the whole file.
_OF_FILE = {
    "stale": ("another checkpoint", "they are another state of these weights"),
    "unrelated": ("another checkpoint", "they are other weights"),
    "requantised": ("requantised", "they were quantised more than once"),
}


@reported
def certify(
    file: str | Path,
    against: str | Path,
    *,
    imatrix: str | Path | None = None,
    models: str | Path | None = None,
    text: str | None = None,
    module_diff: bool = False,
    progress: Callable[[float, str], None] | None = None,
) -> Certificate:
    """Compares a GGUF file with the checkpoint that it is said to come from.

    Args:
        file: a GGUF file, the first of a split one, or a name as `ggmodel.find` takes it.
        against: the folder of a Hugging Face checkpoint; `ggmodel.find(NAME, checkpoint=True)`
            gives that of a name.
        imatrix: the importance matrix that the file was made with. Without it, tensors that were
            are compared within the error of their types.
        models: a folder of architectures, searched first.
        text: a text for the KL divergence between the models' next tokens; None computes none.
        module_diff: compare the results of every module on the text, too.
        progress: called with the share done, and what is being done.

    Raises:
        FormatError: the file, the checkpoint or the matrix is damaged.
        ArchitectureError: nothing serves the checkpoint's architecture.
        ConfigError, LoadError, Unsupported: the checkpoint cannot be converted; says why.
    """
    tell = progress or (lambda share, what: None)
    importance = None if imatrix is None else ImportanceMatrix.read(imatrix)
    folder, located = Path(against), resolved(file)
    if not isinstance(located, TensorSource) and os.path.isdir(located):
        raise ConfigError(f"{file} is a folder; certify takes a GGUF file, --against the folder")
    found = Certificate(str(file), str(against))
    with open_source(located, "", models) as source:
        found.digest = _digest(source, tell)
        name = str(source.metadata.get("general.architecture", ""))
        found.architecture = name
        with _opened(folder, source, models) as original:
            wanted = str(original.metadata["general.architecture"])
            if name != wanted:
                note = f"the file is {name!r:.60}; the checkpoint makes {wanted!r}"
                found.add("architecture", "architecture", "general.architecture", note)
                found.unchecked.append("all else: the file has another architecture")
                return found
            same = name in ("clip", original.architecture.architecture)
            architecture = original.architecture if same else find(name, models)
            _compare(source, original, architecture, importance, models, found, tell)
    if (text is not None or module_diff) and name != "clip":
        from .behaviour import compare_behaviour

        tell(0.0, "computing")
        compare_behaviour(located, folder, text, models, module_diff, found)
    _tell_unchecked(found, text, module_diff)
    return found


def _compare(
    file: TensorSource,
    original: CheckpointSource,
    architecture: type[Model],
    importance: ImportanceMatrix | None,
    models: str | Path | None,
    found: Certificate,
    tell: Callable[[float, str], None],
) -> None:
    """The parts of a file that are compared without computing a token."""
    of_towers = original.contents == "vision"
    if of_towers:
        found.unchecked.append("hyperparameters of clip.*: a projector's are not compared")
    else:
        compare_keys(architecture, file.metadata, _configured(original), found)
    for line in original.unread_keys.values():
        found.unchecked.append(f"a key of config.json that the declaration does not read: {line}")
    read = set(file.tensors) if of_towers else _read_by_fields(file, models, found)
    _settle_importance(file.metadata, importance, found)
    comparison = Comparison(file, original, importance)
    found.tensors = list(comparison.results(read, lambda share: tell(share, "tensors")))
    _judge_tensors(found, importance is not None)
    _compare_types(file, importance, found)
    if not of_towers:
        tell(1.0, "texts")
        both = compare_tokenizers(file.metadata, _vocabulary(original, found), found)
        if both[1] is not None:
            compare_templates(file.metadata, original.metadata, both, found)


def _opened(folder: Path, file: TensorSource, models: str | Path | None) -> CheckpointSource:
    """The checkpoint as the file has it: with towers or without, under llama.cpp's name of its
    architecture where it has another one."""
    name = file.metadata.get("general.architecture")
    contents: Contents = "vision" if name == "clip" else "all"
    source = CheckpointSource.open(folder, None, models, contents)
    if name == "clip":
        return source
    theirs = any(map(of_tower, source.tensors))
    if theirs and not any(map(of_tower, file.tensors)):
        source.close()
        contents = "text"
        source = CheckpointSource.open(folder, None, models, contents)
    if source.metadata["general.architecture"] == name:
        return source
    try:
        other = CheckpointSource.open(folder, None, models, contents, program="llama.cpp")
    except Error:
        return source
    if other.metadata["general.architecture"] == name:
        source.close()
        return other
    other.close()
    return source


def _configured(original: CheckpointSource) -> dict[str, Any]:
    return {k: original.metadata[k] for k in original.typed}


def _vocabulary(original: CheckpointSource, found: Certificate) -> Mapping[str, Any]:
    """The checkpoint's `tokenizer.*`; empty if its tokenizer cannot be read."""
    try:
        return {k: v for k, v in original.metadata.items() if k.startswith("tokenizer.")}
    except (Unsupported, ConfigError, LoadError) as error:
        found.unchecked.append(f"the tokenizer: {error}")
        return {}


def _digest(source: TensorSource, tell: Callable[[float, str], None]) -> str:
    digest, total = hashlib.sha256(), sum(p.stat().st_size for p in source.files) or 1
    done = 0
    for path in source.files:
        with path.open("rb") as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
                done += len(piece)
                tell(done / total, "digest")
    return digest.hexdigest()


def _read_by_fields(file: TensorSource, models: str | Path | None, found: Certificate) -> set[str]:
    """Tensors of the file that fields of the architecture read."""
    try:
        with Preparation(file, Options(models=models)) as steps:
            steps.configure()
            steps.fill()
            return {name for name, _ in steps.report.bound}
    except Error as error:
        found.add("architecture", "refused", "general.architecture", str(error))
        return set(file.tensors)


def _settle_importance(
    metadata: Mapping[str, Any], importance: ImportanceMatrix | None, found: Certificate
) -> None:
    """Notes an importance matrix that was not given, or another one than the file names."""
    if importance is None:
        if IMATRIX in metadata:
            named = f"{metadata[IMATRIX]!s:.100}"
            found.unchecked.append(
                f"the scales of tensors made with the importance matrix {named}: give --imatrix"
            )
        return
    given = importance.metadata()
    for key in ("quantize.imatrix.entries_count", "quantize.imatrix.chunks_count"):
        mine, other = metadata.get(key), given.get(key)
        if mine is not None and other is not None and int(mine) != int(other):
            note = f"the file was made with a matrix of {int(mine)}; the given one has {int(other)}"
            found.add("tensor", "imatrix", key, note, fault=False)


def _judge_tensors(found: Certificate, weighted: bool) -> None:
    """Findings of tensors that differ; one finding where all have one cause."""
    compared = [t for t in found.tensors if t.status != "uncompared"]
    found.checked["tensors"] = f"{len(compared)} tensors"
    wrong = [t for t in compared if t.status not in ("equal", "bounded")]
    quantized = [t for t in compared if t.blocks and t.error and "F" not in t.dtype[:2]]
    scales = [t for t in wrong if t.kind == "scales"]
    one = Counter(t.kind for t in wrong)
    said: set[str] = set()
    if scales and len(scales) >= _MOST_OF * len(quantized):
        why = (
            "they were quantised with another importance matrix than the given one" if weighted else
            "they were quantised with an importance matrix that the file does not name, or by "
            "another program"
        )  # fmt: skip
        kind = "imatrix" if weighted else "other quantiser"
        found.add("tensor", kind, f"{len(scales)} tensors", why)
        said.add("scales")
    for kind, (name, why) in _OF_FILE.items():
        if one[kind] > 1 and one[kind] >= _MOST_OF * len(quantized or compared):
            found.add("tensor", name, f"{one[kind]} tensors", why)
            said.add(kind)
    for t in found.tensors:
        if t in wrong and t.kind not in said:
            found.add("tensor", t.kind, t.name, t.note)
        elif t.status == "uncompared":
            found.add("tensor", t.kind, t.name, t.note, fault=False)


def _compare_types(
    file: TensorSource, importance: ImportanceMatrix | None, found: Certificate
) -> None:
    """Notes tensors of other types than llama-quantize gives them in a file of its kind."""
    number = file.metadata.get("general.file_type")
    recipe = next((r for r in RECIPES.values() if r.file_type == number), None)
    if recipe is None or not recipe.dtype.is_quantized:
        return
    weighted = importance is not None or IMATRIX in file.metadata
    names = set(file.tensors) if weighted else None
    each = [Candidate(t.name, t.shape, _plain(t.dtype)) for t in file.tensors.values()]
    try:
        types = choose(recipe, file.metadata, each, names)
    except Error as error:
        found.unchecked.append(f"types of tensors: {error}")
        return
    other = [n for n, t in types.items() if t.is_quantized and file.tensors[n].dtype is not t]
    if other:
        note = f"not as llama-quantize chooses for {recipe.name}, the first is {other[0]}"
        found.add("tensor", "types", f"{len(other)} tensors", note, fault=False)


def _plain(dtype: Any) -> Any:
    return type(dtype).F32 if dtype.is_quantized else dtype


def _tell_unchecked(found: Certificate, text: str | None, module_diff: bool) -> None:
    found.unchecked.append(
        "whether the checkpoint itself is what its author meant: a checkpoint can be made so that "
        "only its quantised form misbehaves"
    )
    if text is None and not module_diff:
        found.unchecked.append("what the models compute: give --text or --module-diff")
