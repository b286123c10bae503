"""Everything that writes files, each with something to write."""

from __future__ import annotations

import hashlib
import json
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ggmodel import storage
from ggmodel.convert.export import convert
from ggmodel.convert.imatrix import Importance, ImportanceMatrix
from ggmodel.convert.quantize import quantize
from ggmodel.gguf_file import open_gguf
from ggmodel.native import build, headers
from ggmodel.native.install import Prefix
from ggmodel.workbench import trace
from ggmodel.workbench.activations import Activations
from ggmodel.workbench.scaffold import scaffold
from tests.convert.folders import write_golden
from tests.golden.files import checkpoint, load_golden

ASSETS = Path(__file__).parents[2] / "examples" / "assets"
OLD = b"old"


@dataclass(frozen=True)
class Writer:
    """Something that writes.

    Attributes:
        write: writes its files into a folder; called in a process of its own.
        old: names of files that it replaces, and what is in them before.
    """

    name: str
    write: Callable[[Path], object]
    old: Mapping[str, bytes] = field(default_factory=dict)


def writers(given: Path) -> list[Writer]:
    """All of them.

    Args:
        given: a folder for what they read.
    """
    random = np.random.default_rng(0)
    llama = load_golden("llama", "plain_gqa")
    weights = {name: np.asarray(values) for name, values in llama.weights().items()}
    vision, _ = write_golden(given / "gemma3", "gemma3", "images")
    arrays = {f"t{i}": random.normal(size=(64, 64)).astype(np.float32) for i in range(20)}
    matrix = ImportanceMatrix(
        {n: Importance(a**2, np.ones(64, np.int64)) for n, a in arrays.items()}
    )
    saved = Activations({}, {}, {}, {"input_ids": np.arange(4)}, results=arrays)
    config = json.dumps(llama.config, indent=2) + "\n"
    return [
        Writer("quantize", _quantize, {"out.gguf": OLD}),
        Writer("convert", lambda f: convert(vision, f / "out.gguf", force=True), {"out.gguf": OLD}),
        Writer("convert --mmproj", partial(_both, vision), {"a.gguf": OLD, "b.gguf": OLD}),
        Writer("imatrix", lambda f: matrix.write(f / "out.gguf", force=True), {"out.gguf": OLD}),
        Writer(
            "golden --update", lambda f: replace(llama, folder=f).save("case"), {"case.npz": OLD}
        ),
        Writer(
            "golden --checkpoint",
            lambda f: checkpoint(f, llama.config, weights),
            {"config.json": config.encode(), "model.safetensors": OLD},
        ),
        Writer("diff --save-reference", lambda f: saved.save(f / "a.npz"), {"a.npz": OLD}),
        Writer("trace (npz)", lambda f: trace.save(f / "a.npz", arrays), {"a.npz": OLD}),
        Writer(
            "trace (safetensors)",
            lambda f: trace.save(f / "a.safetensors", arrays),
            {"a.safetensors": OLD},
        ),
        # The timeline of profile, drawings of graph, pages of diff, measurements of kernels.
        Writer("text", lambda f: storage.write_text(f / "a.html", "new " * 10**6), {"a.html": OLD}),
        Writer("new", lambda f: scaffold("new-one", f / "made")),
        Writer("the compiled binding", _compile),
    ]


def state(folder: Path) -> dict[str, str]:
    """The files in a folder that are not temporary ones, and digests of what is in them."""
    return {
        str(path.relative_to(folder)): _digest(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".part" not in str(path.relative_to(folder))
    }


def leftovers(folder: Path) -> list[Path]:
    return list(folder.rglob(".*.part"))


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    if zipfile.is_zipfile(path):  # which holds the time of its making
        with zipfile.ZipFile(path) as file:
            for name in sorted(file.namelist()):
                digest.update(name.encode() + file.read(name))
    else:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _quantize(folder: Path) -> None:
    with open_gguf(ASSETS / "stories.gguf") as source:
        quantize(source, folder / "out.gguf", "q4_0", allow_requantize=True, force=True)


def _both(vision: Path, folder: Path) -> None:
    convert(vision, folder / "a.gguf", mmproj=folder / "b.gguf", force=True)


def _compile(folder: Path) -> None:
    """The binding of this ggml, with a compiler that only copies, and takes its time."""

    def compiler(arguments: list[str], stdin: str | None = None) -> str:
        with open(arguments[-1], "wb") as file:
            for _ in range(50):
                file.write(bytes(10_000))
                time.sleep(0.0002)
        return ""

    def source(prefix: Any, module: str, path: Path) -> None:
        path.write_text("source")

    headers.run_compiler = compiler  # this process only writes
    build.write_source = source
    prefix = Prefix(folder, folder, folder, "0.0.0")
    build.compile_module(prefix, folder / "cache" / "_ggml.abi3.so")
