"""llama.cpp as a reader of files: whether it loads one, and which hyperparameters it computes with.

An architecture that ggmodel does not ship is looked up by name alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from ..gguf_file import TensorInfo
from ..model.config import key_fields
from ..model.module import of_tower
from ..tokenizer.vocabulary import PREFIX
from .llama_cpp_tables import BY_DEPTH, FIXED, NEEDED, PROJECTORS, SURPLUS, Fixed

T = TypeVar("T")
# Tensors behind a model; see `convert.behind`.
_BEHIND = ("dense_*.*", "norm_*.*", "sparse_linear.*", "colbert_linear.*")


def _of(tables: Mapping[str, Sequence[T]], architecture: str, h: Any) -> Sequence[T]:
    """The table of an architecture, if its hyperparameters are those of a class that is shipped."""
    shipped = type(h).__module__.startswith("ggmodel.models.")
    return tables.get(architecture, ()) if shipped else ()


def knows(architecture: str) -> bool:
    """Whether llama.cpp has an architecture of this name: one with a table, as far as the gguf
    package can tell another one."""
    from gguf.constants import MODEL_ARCH_NAMES

    return architecture in FIXED or architecture in MODEL_ARCH_NAMES.values()


def refusals(
    architecture: str, h: Any, vocabulary: Mapping[str, Any], tensors: Mapping[str, TensorInfo]
) -> Iterator[str]:
    """Reasons why llama.cpp refuses a file.

    Args:
        h: the hyperparameters.
        vocabulary: the metadata `tokenizer.*`.
        tensors: of the file.
    """
    if not knows(architecture):
        yield f"it has no architecture {architecture!r}"
        return
    if any(map(of_tower, tensors)):
        yield "it reads images only from a file of their own (--mmproj FILE, mmproj=)"
    tokens, embedding = len(vocabulary[PREFIX + "tokens"]), tensors.get("token_embd.weight")
    if embedding is not None and embedding.shape[1] != tokens:
        yield f"the embedding has {embedding.shape[1]:,} rows for {tokens:,} tokens"
    for fixed, value in _other_values(_of(FIXED, architecture, h), h, refused=True):
        yield f"{fixed.key} is {value}, not {fixed.values(h)[0]}"
    surplus, needed = [*_of(SURPLUS, architecture, h)], [*_of(NEEDED, architecture, h)]
    for depth, pattern in _of(BY_DEPTH, architecture, h):
        (needed if h.layers >= depth else surplus).append(pattern)
    if architecture != "gemma-embedding":  # which has two layers behind the pooling
        surplus += _BEHIND
    for pattern in surplus:
        for name in [name for name in tensors if fnmatchcase(name, pattern)][:1]:
            yield f"it has no place for {name}"
    for pattern in needed:
        each = range(h.layers if "*" in pattern else 1)
        for name in [n for i in each if (n := pattern.replace("*", str(i))) not in tensors][:1]:
            yield f"it needs {name}"


def differences(
    architecture: str, h: Any, written: Any, projector: str | None = None
) -> Iterator[str]:
    """Reasons why llama.cpp computes something else from a file that it loads: hyperparameters that
    it does not take from it, and towers whose rows are others for any picture or sound, one reason
    each. Its preparation of pictures, and its tokens around their rows, are in docs/convert.md.

    Args:
        h: the hyperparameters of the checkpoint.
        written: those of the file; of another class where the file has another architecture.
        projector: the type of the one beside it.
    """
    keys = {tag.names[0] for _, tag, _, _ in key_fields(type(written))}
    for name, tag, _, _ in key_fields(type(h)):
        if tag.names[0] not in keys and getattr(h, name):
            yield _difference(tag.names[0], getattr(h, name), None)
    table, always = PROJECTORS.get(projector or "", ((), ""))
    for fixed, value in _other_values((*_of(FIXED, architecture, written), *table), written):
        yield _difference(fixed.key, value, fixed.values(written)[-1])
    if always:
        yield always


def _difference(key: str, value: Any, usual: Any) -> str:
    if key == "attention.sliding_window" and usual != "":
        return f"{key} is {value}, and it computes without: right up to {value} tokens, not beyond"
    return f"{key} is {value}, and it computes {f'with {usual}' if usual else 'without'}"


def _other_values(
    table: Sequence[Fixed], h: Any, refused: bool = False
) -> Iterator[tuple[Fixed, Any]]:
    fields = {tag.names[0]: name for name, tag, _, _ in key_fields(type(h))}
    for fixed in table:
        if fixed.refused is refused and fixed.key in fields:
            value = getattr(h, fields[fixed.key])
            if not fixed.fits(value, h):
                yield fixed, value
