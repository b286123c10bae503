"""Make quantized.json: what llama-quantize makes of the models in quantized.py.

From the root of the repository, with the folder of a build of llama.cpp that has llama-quantize:

    python -m tests.convert.make_quantized FOLDER
"""

import argparse
import hashlib
import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from ggmodel.gguf_file import open_gguf
from tests.convert import quantized


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("build", type=Path, help="the folder of llama-quantize")
    program = parser.parse_args().build.resolve() / "llama-quantize"
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name in quantized.MODELS:
            source = quantized.write(folder / "in.gguf", name)
            # The path stands in the metadata of the result.
            quantized.importance(source).write(folder / quantized.IMATRIX, force=True)
            found[name] = {}
            for kind in quantized.KINDS:
                options = ["--imatrix", quantized.IMATRIX] if quantized.is_weighted(kind) else []
                type = quantized.type_of(kind)
                type = quantized.NAMES.get(type, type)
                done = subprocess.run(
                    [program, *options, "in.gguf", "out.gguf", type, "1"],
                    cwd=folder, capture_output=True, text=True, check=False,
                )  # fmt: skip
                if done.returncode:
                    raise SystemExit(f"{name}: {kind} failed\n{done.stdout}{done.stderr}")
                target = folder / "out.gguf"
                with open_gguf(target) as made:
                    whole = hashlib.sha256(target.read_bytes()).hexdigest()[:32]
                    found[name][kind] = {**quantized.summary(made), "file": whole}
                version = re.search(r"version: *(.*)", done.stdout + done.stderr)
                found["llama.cpp"] = version[1] if version else ""
            print(name)
    quantized.REFERENCE.write_text(_lines(found), encoding="utf-8")


def _lines(found: dict[str, Any]) -> str:
    """JSON with a line for each model and type."""
    parts = [f'"llama.cpp": {json.dumps(found["llama.cpp"])}']
    for name in quantized.MODELS:
        kinds = (f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in found[name].items())
        parts.append(f"{json.dumps(name)}: {{\n" + ",\n".join(kinds) + "\n}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    main()
