"""Make these files with llama.cpp's own converter; ../../README.md says what they are.

From the root of the repository, in an environment of its own (the tests need none of this):

    pip install torch==2.13.0 transformers==5.23.0 sentencepiece==0.2.3 safetensors gguf numpy
    python -m tests.golden.gemma3.converted.make PATH/TO/llama.cpp
"""
# pyright: reportMissingImports=false

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import torch
from safetensors.numpy import save_file

from ggmodel.workbench.golden.reference import layout, loaded
from tests.golden.files import Picture, checkpoint
from tests.golden.gemma3 import cases

HERE = Path(__file__).parent
SYMBOLS = ["\n\n", "<start_of_image>", "<end_of_image>", "<image_soft_token>"]
TEXT = "The cat sat on the wall.\nThe dog saw the cat and the wall.\nWhat does the cat see?\n"
VOCAB = 300  # <pad> <eos> <bos> <unk>, four symbols, 256 bytes, pieces
PROMPT = [[2, 290, 291, 280, 285, 292], "red", [281, 288, 299, 270, 290, 277, 293]]
TEXTS = [[2, 290, 291, 280], [2, 285, 292, 281, 288, 299, 270, 290, 277, 293, 1]]
SMALL = {
    "bos_token_id": 2,
    "eos_token_id": 1,
    "head_dim": 16,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 16,
    "num_hidden_layers": 7,
    "sliding_window": 8,
    "sliding_window_pattern": 6,
    "vocab_size": VOCAB,
}


def add_tokenizer(folder: Path) -> None:
    """tokenizer.model, of gemma's kind: BPE with byte fallback."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.splitlines()),
        model_prefix=str(folder / "tokenizer"),
        model_type="bpe",
        vocab_size=VOCAB,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
        user_defined_symbols=SYMBOLS,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        num_threads=1,
        minloglevel=2,
    )
    (folder / "tokenizer.vocab").unlink()


def checkpoint_of(folder: Path, config: dict[str, Any]) -> Any:
    """Writes a checkpoint with the weights of the goldens' rule; the model of it."""
    tensors, _ = layout(config)
    weights = {name: cases.weight(name, shape) for name, shape in tensors.items()}
    # As published; transformers 5 leaves "vision_model" out, which the converter does not know.
    old = ("vision_tower.", "vision_tower.vision_model.")
    weights = {name.replace(*old): values for name, values in weights.items()}
    checkpoint(folder, config, weights)
    add_tokenizer(folder)
    return loaded(config, weights)


def convert(llama_cpp: Path, folder: Path, name: str, *more: str) -> None:
    converter = [sys.executable, str(llama_cpp / "convert_hf_to_gguf.py"), str(folder)]
    target = ["--outtype", "f32", "--outfile", str(HERE / f"{name}.gguf")]
    subprocess.run([*converter, *target, *more], check=True)


@torch.no_grad()
def images(llama_cpp: Path, folder: Path) -> dict[str, np.ndarray]:
    """A text file and an mmproj file; logits of a prompt with an image."""
    config = cases.vision(9, {"hidden_size": 32}, **SMALL) | {
        "boi_token_index": 5,
        "eoi_token_index": 6,
        "image_token_index": 7,
    }
    model = checkpoint_of(folder, config)
    half = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "image_seq_length": 9}
    (folder / "preprocessor_config.json").write_text(json.dumps(half))
    convert(llama_cpp, folder, "text")
    convert(llama_cpp, folder, "mmproj", "--mmproj")
    ids = [*PROMPT[0], 4, 5, *[7] * 9, 6, 4, *PROMPT[2]]
    picture = Picture(PROMPT[1], (1, 3, 24, 24))
    pixels = torch.from_numpy(picture.pixels)
    kinds = torch.tensor([[int(i == 7) for i in ids]])
    logits = model(torch.tensor([ids]), pixel_values=pixels, token_type_ids=kinds).logits[0]
    return {"ids": np.array(ids, np.int32), "logits": logits.numpy()}


@torch.no_grad()
def embedding(llama_cpp: Path, folder: Path) -> dict[str, np.ndarray]:
    """A file of an embedding model with its dense layers; vectors of texts."""
    changes = {**SMALL, "architectures": ["Gemma3TextModel"], "use_bidirectional_attention": True}
    model = checkpoint_of(folder, cases.text(**changes))
    dense = {"2_Dense": (64, 32), "3_Dense": (32, 64)}
    layers = {}
    for name, shape in dense.items():
        values = cases.weight(f"{name}.linear.weight", shape)
        layers[name] = torch.from_numpy(values)
        (folder / name).mkdir()
        save_file({"linear.weight": values}, folder / name / "model.safetensors")
        features = {"in_features": shape[1], "out_features": shape[0]}
        (folder / name / "config.json").write_text(json.dumps(features))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    kinds = {"1_Pooling": "Pooling", "2_Dense": "Dense", "3_Dense": "Dense"}
    prefix = "sentence_transformers.models."
    modules = [{"path": path, "type": prefix + kind} for path, kind in kinds.items()]
    (folder / "modules.json").write_text(json.dumps(modules))
    convert(llama_cpp, folder, "embedding", "--sentence-transformers-dense-modules")
    states = [model(torch.tensor([ids])).last_hidden_state[0] for ids in TEXTS]
    vectors = np.stack([cases.embed(rows, layers).numpy() for rows in states])
    texts = {f"text_{i}": np.array(ids, np.int32) for i, ids in enumerate(TEXTS)}
    return {**texts, "vectors": vectors}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("llama_cpp", type=Path, help="a checkout of llama.cpp")
    options = parser.parse_args()
    arrays: dict[str, Any] = {}
    for make in (images, embedding):
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch, "tiny-gemma3")  # the converter makes general.name of it
            folder.mkdir()
            arrays |= make(options.llama_cpp, folder)
    np.savez_compressed(HERE / "expected.npz", **arrays)
    for file in sorted(HERE.glob("*.*")):
        print(f"{file.stat().st_size:8} {file.name}")


if __name__ == "__main__":
    main()
