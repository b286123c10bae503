"""Make these files with llama.cpp's own converter; ../../README.md says what they are.

From the root of the repository, in an environment of its own (the tests need none of this):

    pip install torch==2.13.0 transformers==5.23.0 tokenizers safetensors gguf numpy
    python -m tests.golden.llama4.converted.make PATH/TO/llama.cpp
"""
# pyright: reportMissingImports=false

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

from tests.golden.files import checkpoint, load_golden
from tests.golden.llama4.cases import START

HERE = Path(__file__).parent
SYMBOLS = ["image_start", "image_end", "tile_x_separator", "tile_y_separator", "image", "patch"]
# The converter knows tokenizers by what they make of a text, and ours is none of them.
CONVERT = """
import runpy, sys
folder = sys.argv.pop(1)
sys.path.insert(0, folder)
from conversion.base import TextModel
TextModel.get_vocab_base_pre = lambda self, tokenizer: "llama4"
runpy.run_path(f"{folder}/convert_hf_to_gguf.py", run_name="__main__")
"""


def add_tokenizer(folder: Path) -> None:
    """One token a character, from "!" on, a pair of them, and the symbols behind them."""
    characters = [chr(33 + i) for i in range(START - 1)]
    vocabulary = {token: i for i, token in enumerate([*characters, "AB"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("A", "B")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens([f"<|{name}|>" for name in SYMBOLS])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("llama_cpp", type=Path, help="a checkout of llama.cpp")
    options = parser.parse_args()
    golden = load_golden("llama4", "released")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "tiny-llama4")  # the converter makes general.name of it
        checkpoint(folder, golden.config, golden.weights())
        add_tokenizer(folder)
        half = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
        (folder / "preprocessor_config.json").write_text(json.dumps(half))
        for name, more in {"text": [], "mmproj": ["--mmproj"]}.items():
            target = ["--outtype", "f32", "--outfile", str(HERE / f"{name}.gguf"), *more]
            converter = [sys.executable, "-c", CONVERT, str(options.llama_cpp)]
            subprocess.run([*converter, str(folder), *target], check=True)
    for file in sorted(HERE.glob("*.gguf")):
        print(f"{file.stat().st_size:8} {file.name}")


if __name__ == "__main__":
    main()
