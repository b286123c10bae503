"""Goldens `published` as llama.cpp's converter writes them: `converted.json` of a folder has the
metadata, and shape, type and SHA-256 of each tensor.

    python -m tests.golden.converted PATH/TO/llama.cpp NAME    # needs torch and transformers
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
from tests.convert.folders import write_model, write_tokenizer
from tests.golden.files import HERE, load_golden

NAMES = ("rwkv7", "bailingmoe2")
TYPES = ("f32", "f16")
# The vocabulary fills the golden's rows: llama.cpp's converter needs the file.
_WORLD = ["\n", "\n\n", *map(chr, range(32, 87))]
# It knows vocabularies by their ids of a text, and this one is of no published model.
_CONVERT = """
import runpy, sys
sys.path.insert(0, sys.argv[1])
from conversion.base import TextModel
TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def expected(name: str) -> Path:
    return HERE / name / "converted.json"


def write(folder: Path, name: str) -> Path:
    """The folder of the golden, with a vocabulary."""
    golden = load_golden(name, "published")
    write_model(folder, golden.config, golden.weights())
    if name == "rwkv7":
        lines = [f"{id} {token!r} {len(token)}\n" for id, token in enumerate(_WORLD, 1)]
        (folder / "rwkv_vocab_v20230424.txt").write_text("".join(lines), "utf-8")
    else:
        write_tokenizer(folder, golden.config["vocab_size"])
        config = folder / "tokenizer_config.json"  # GPT-2's class adds tokens of its own
        config.write_text(config.read_text().replace("GPT2Token", "PreTrainedToken"))
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


def main(source: str, name: str) -> None:
    made = {}
    with tempfile.TemporaryDirectory() as base:
        folder = write(Path(base) / f"tiny-{name}", name)
        for kind in TYPES:
            file = Path(base) / f"{kind}.gguf"
            script = Path(source) / "convert_hf_to_gguf.py"
            options = ["--outfile", file, "--outtype", kind]
            command = [sys.executable, "-c", _CONVERT, source, script, folder, *options]
            subprocess.run(command, check=True)
            made[kind] = described(file)
    expected(name).write_text(json.dumps(made, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
