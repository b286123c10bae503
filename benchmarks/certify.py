"""`ggmodel certify` on good files of llama.cpp, on files with a fault each, and on edited ones.

    python -m benchmarks.certify LLAMA_CPP LIBLLAMA PYTHON [--json FILE]
    python -m benchmarks.certify --speed q8_0|q4_K_M

LLAMA_CPP is the source tree with convert_hf_to_gguf.py, LIBLLAMA a built libllama.so of it, PYTHON
an interpreter with torch, transformers, gguf and sentencepiece. A good file must have no fault; of
a faulty one the fault must be found, and named. Edited are single blocks, by their last bits.

--speed makes a checkpoint of 1.1 billion weights, quantises it, and prints processor time and peak
of resident memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.certify_faults import EDITS, FAULTS, Contents, edit
from benchmarks.certify_files import SHAPES, LlamaCpp, write_folder, write_importance

from ggmodel.convert.tensor_types import recipe_of
from ggmodel.gguf_file import open_gguf
from ggmodel.workbench.certify import Certificate, certify

# (shape, type of the converter, type of the quantiser or "" for none, made with a matrix that is
# "given" or "not given", or "").
GOOD = (
    *(("llama", kind, "", "") for kind in ("f32", "f16", "bf16", "q8_0")),
    *(("llama", "bf16", kind, "") for kind in
      "q8_0 q4_0 q5_1 q4_K_M q5_K_M q6_K q3_K_M q2_K iq4_xs iq4_nl".split()),
    ("llama", "f16", "q4_K_M", ""),
    *(("llama", "bf16", kind, "given") for kind in "q4_K_M iq3_XXS iq2_M".split()),
    ("llama", "bf16", "q4_K_M", "not given"),
    ("qwen3", "bf16", "", ""), ("qwen3", "bf16", "q4_K_M", ""), ("qwen3", "f16", "q5_0", ""),
    ("qwen3", "bf16", "q5_K_M", "not given"),
    ("gemma2", "f16", "", ""), ("gemma2", "bf16", "q4_K_M", ""), ("gemma2", "bf16", "q6_K", ""),
    ("gemma2", "bf16", "q3_K_M", "not given"),
    ("qwen3moe", "bf16", "q8_0", ""), ("qwen3moe", "bf16", "q4_K_M", ""),
    ("qwen3moe", "bf16", "q4_K_M", "given"),
)  # fmt: skip


class Bench:
    """Files in a folder, made once each."""

    def __init__(self, folder: Path, llama: LlamaCpp):
        self.folder, self.llama = folder, llama

    def checkpoint(self, name: str, seed: int = 1) -> Path:
        path = self.folder / f"{name}-{seed}"
        return path if path.exists() else write_folder(path, name, seed)

    def converted(self, name: str, kind: str, seed: int = 1) -> Path:
        path = self.folder / f"{name}-{seed}-{kind}.gguf"
        if path.exists():
            return path
        return self.llama.convert(self.checkpoint(name, seed), path, kind, SHAPES[name].pre)

    def matrix(self, name: str, seed: int = 3) -> Path:
        with open_gguf(self.converted(name, "bf16")) as source:
            shapes = {t.name: t.shape for t in source.tensors.values() if len(t.shape) > 1}
        shapes.pop("token_embd.weight")
        return write_importance(self.folder / f"{name}-{seed}.imatrix.gguf", shapes, seed)

    def quantised(
        self, name: str, kind: str, seed: int = 1, matrix: int | None = None, of: str = "bf16"
    ) -> Path:
        path = self.folder / f"{name}-{seed}-{of}-{kind}-{matrix}.gguf"
        if path.exists():
            return path
        weights = None if matrix is None else self.matrix(name, matrix)
        source, number = self.converted(name, of, seed), recipe_of(kind).file_type
        return self.llama.quantize(source, path, number, weights, weights.name if weights else "")


def good(bench: Bench) -> Iterator[dict[str, Any]]:
    """A row for each good file."""
    for name, kind, quantiser, weighted in GOOD:
        matrix = 3 if weighted else None
        file = (
            bench.quantised(name, quantiser, matrix=matrix, of=kind)
            if quantiser
            else bench.converted(name, kind)
        )
        given = bench.matrix(name) if weighted == "given" else None
        found = certify(file, bench.checkpoint(name), imatrix=given)
        title = " ".join(filter(None, (name, kind, quantiser, weighted and f"imatrix {weighted}")))
        yield {"file": title, "counts": found.counts, "faults": told(found)}


def faulty(bench: Bench) -> Iterator[dict[str, Any]]:
    """A row for each fault."""
    for fault in FAULTS:
        made, given = fault.matrix or (None, None)
        base = bench.quantised(fault.shape, fault.base, fault.stale or 1, made)
        contents = Contents.read(base)
        fault.mutate(contents)
        file = contents.write(bench.folder / "faulty.gguf")
        matrix = None if given is None else bench.matrix(fault.shape, given)
        found = certify(file, bench.checkpoint(fault.shape), imatrix=matrix)
        kinds = {f.kind for f in found.faults}
        named = any(kind in kinds for kind in fault.kinds)
        yield {"fault": fault.name, "caught": not found.ok, "named": named, "faults": told(found)}


def edited(bench: Bench) -> Iterator[dict[str, Any]]:
    """A row for each edited file."""
    for i, e in enumerate(EDITS):
        name = list(SHAPES)[i % 4]
        contents = Contents.read(bench.quantised(name, e.base, matrix=3 if e.matrix else None))
        tensor = edit(contents, e, i)
        file = contents.write(bench.folder / "edited.gguf")
        matrix = bench.matrix(name) if e.matrix else None
        found = certify(file, bench.checkpoint(name), imatrix=matrix)
        named = [f.name for f in found.faults] == [tensor]
        yield {
            "file": f"{name} {e.base}{' imatrix' if e.matrix else ''}", "tensor": tensor,
            "blocks": e.blocks, "what": "values" if e.codes else "scale",
            "caught": not found.ok, "named": named, "faults": told(found),
        }  # fmt: skip


def told(found: Certificate) -> list[str]:
    """The faults in short."""
    return [f"{f.kind}: {f.name}" for f in found.faults][:4]


def speed(kind: str) -> None:
    """Prints time and memory of a model of 1.1 billion weights."""
    with tempfile.TemporaryDirectory() as scratch:
        # In a process of its own: children inherit the peak of memory.
        code = "import sys; from benchmarks.certify_large import write_large as write; "
        code += "from pathlib import Path; write(Path(sys.argv[1]), sys.argv[2])"
        subprocess.run([sys.executable, "-c", code, scratch, kind], check=True)
        made = resource.getrusage(resource.RUSAGE_CHILDREN)
        folder, file = Path(scratch, "large"), Path(scratch, "large.gguf")
        begin = time.time()
        report = "; import resource; print(resource.getrusage(0).ru_maxrss / 2**20, 'GiB')"
        code = "import sys; from ggmodel import certify; print(certify(*sys.argv[1:]).verdict)"
        command = [sys.executable, "-c", code + report, str(file), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not done.stdout:
            raise SystemExit(done.stderr)
        both = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = both.ru_utime + both.ru_stime - made.ru_utime - made.ru_stime
        print(
            f"{kind}: {' '.join(done.stdout.split())}; {time.time() - begin:.0f} s, "
            f"{used:.0f} s of processor time"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", type=Path, nargs="*", help="LLAMA_CPP LIBLLAMA PYTHON")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--speed")
    options = parser.parse_args()
    if options.speed:
        speed(options.speed)
        return
    if len(options.paths) != 3:
        parser.error("give LLAMA_CPP LIBLLAMA PYTHON, or --speed")
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(Path(scratch), LlamaCpp(*options.paths))
        rows: dict[str, list[dict[str, Any]]] = {}
        for what, each in {"good": good, "faults": faulty, "edits": edited}.items():
            rows[what] = []
            for row in each(bench):
                rows[what].append(row)
                print(what, row, file=sys.stderr, flush=True)
    alarms = [row for row in rows["good"] if row["faults"]]
    print(f"false alarms: {len(alarms)} of {len(rows['good'])}")
    for what in ("faults", "edits"):
        caught, named = (sum(r[key] for r in rows[what]) for key in ("caught", "named"))
        print(f"{what}: {caught} of {len(rows[what])} caught, {named} named")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
