"""The models that are damaged: of every architecture, split, and with a projector of their own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ggmodel.gguf_file import GGUF, MemorySource
from ggmodel.workbench.golden import source_of
from tests.conftest import VOCABULARY
from tests.fuzz.gguf.document import Document, Pair, document, encoded
from tests.golden.files import HERE, cases, load_embeddings, load_golden

_TESTS = HERE.parent
_EXAMPLES = _TESTS.parent / "examples" / "assets"


@dataclass(frozen=True)
class Model:
    """Files that belong together: the first is opened, `mmproj` goes with it.

    Attributes:
        small: quick to load.
    """

    name: str
    files: dict[str, Document]
    mmproj: str | None = None
    small: bool = True


@cache
def models() -> list[Model]:
    """A model of every golden, files of other converters, pairs, and the examples."""
    found = []
    for architecture in sorted(p.parent.name for p in HERE.glob("*/cases.py")):
        for case in cases(architecture):
            source = source_of(load_golden(architecture, case))
            found.append(_one(f"{architecture}/{case}", source))
        for case in cases(architecture, "embeddings"):
            source = source_of(load_embeddings(architecture, case))
            found.append(_one(f"{architecture}/{case}", source))
    for path in sorted((_TESTS / "fixtures").glob("*.gguf")):
        found.append(Model(path.stem, {"model.gguf": _read(path)}))
    for architecture in ("gemma3", "llama4"):
        folder = HERE / architecture / "converted"
        files = {name: _read(folder / name) for name in ("text.gguf", "mmproj.gguf")}
        found.append(Model(f"{architecture} pair", files, mmproj="mmproj.gguf"))
    found += [_split(found[i], n) for i, n in ((0, 2), (len(found) // 2, 3), (-1, 2))]
    for name in ("stories", "shapes"):
        whole = {"model.gguf": _read(_EXAMPLES / f"{name}.gguf")}
        found.append(Model(name, whole, small=False))
    return found


def _one(name: str, source: MemorySource) -> Model:
    """A golden as one file, with a vocabulary where one of 64 tokens fits."""
    made = document(source)
    width = source.metadata.get(f"{source.metadata['general.architecture']}.vocab_size")
    if width in (None, 64):
        vocabulary = MemorySource(VOCABULARY, {}).metadata
        made.pairs += [Pair(key.encode(), *encoded(value)) for key, value in vocabulary.items()]
    return Model(name, {"model.gguf": made})


def _read(path: Path) -> Document:
    with GGUF(path) as source:
        return document(source)


def _split(model: Model, count: int) -> Model:
    """The same in several files."""
    whole = next(iter(model.files.values()))
    each = -(-len(whole.entries) // count)
    files = {}
    for i in range(count):
        pairs = whole.pairs if i == 0 else []
        about = {"split.no": i, "split.count": count, "split.tensors.count": len(whole.entries)}
        more = [Pair(key.encode(), *encoded(value)) for key, value in about.items()]
        part = Document([*pairs, *more], whole.entries[i * each : (i + 1) * each])
        part.lay_out()
        files[f"model-{i + 1:05}-of-{count:05}.gguf"] = part
    return Model(f"{model.name} in {count}", files)
