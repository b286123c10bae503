"""The golden `published` as llama.cpp's converter writes it: `converted.json` has the metadata, and
shape, type and SHA-256 of each tensor.

    python -m tests.golden.rwkv7.converted PATH/TO/llama.cpp    # needs torch and transformers
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ggmodel.gguf_file import open_gguf
from tests.convert.folders import write_model
from tests.golden.files import load_golden

EXPECTED = Path(__file__).with_name("converted.json")
TYPES = ("f32", "f16")
# The vocabulary fills the golden's rows: llama.cpp's converter needs the file.
_WORLD = ["\n", "\n\n", *map(chr, range(32, 87))]


def write(folder: Path) -> Path:
    """The folder of the golden, with a vocabulary."""
    golden = load_golden("rwkv7", "published")
    write_model(folder, golden.config, golden.weights())
    lines = [f"{id} {token!r} {len(token)}\n" for id, token in enumerate(_WORLD, 1)]
    (folder / "rwkv_vocab_v20230424.txt").write_text("".join(lines), "utf-8")
    return folder


def described(file: Path) -> dict[str, Any]:
    """Metadata without the vocabulary, and the tensors in their order."""
    with open_gguf(file) as opened:
        return {
            "metadata": {k: v for k, v in opened.metadata.items() if not k.startswith("tokenizer")},
            "tensors": {
                name: [list(t.shape), t.dtype.name, hashlib.sha256(opened.data(name)).hexdigest()]
                for name, t in opened.tensors.items()
            },
        }


def main() -> None:
    expected = {}
    with tempfile.TemporaryDirectory() as base:
        folder = write(Path(base) / "tiny-rwkv7")
        for kind in TYPES:
            file = Path(base) / f"{kind}.gguf"
            script = Path(sys.argv[1]) / "convert_hf_to_gguf.py"
            command = [sys.executable, script, folder, "--outfile", file, "--outtype", kind]
            subprocess.run(command, check=True)
            expected[kind] = described(file)
    EXPECTED.write_text(json.dumps(expected, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
