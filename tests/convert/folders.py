"""Hugging Face folders, made on the spot: golden models with a small vocabulary."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.golden.files import Golden, load_golden

Stored = tuple[str, tuple[int, ...], bytes]


def bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 rounded to BF16, as uint16."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def stored(values: np.ndarray, dtype: str = "F32") -> Stored:
    """An array as safetensors keep it."""
    if dtype == "BF16":
        return dtype, values.shape, bfloat16(values).tobytes()
    kind = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "U8": np.uint8}[dtype]
    return dtype, values.shape, values.astype(kind).tobytes()


def write_safetensors(path: Path, tensors: Mapping[str, Stored]) -> Path:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        offsets = [at, at + len(data)]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    body = b"".join(data for _, _, data in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
    return path


def write_model(
    folder: Path,
    config: Mapping[str, Any],
    weights: Mapping[str, np.ndarray],
    dtype: str = "F32",
    shards: int = 1,
) -> Path:
    """config.json and safetensors, without a tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {name: stored(weights[name], dtype) for name in sorted(weights)}
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors)
        return folder
    weight_map: dict[str, str] = {}
    names = list(tensors)
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = names[i * len(names) // shards : (i + 1) * len(names) // shards]
        write_safetensors(folder / file, {n: tensors[n] for n in part})
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def write_tokenizer(folder: Path, tokens: int) -> None:
    """One token a character, from "!" on, and a pair of them."""
    pieces = ["<s>", "</s>", "AB", *(chr(33 + i) for i in range(tokens - 3))]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("A", "B")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "GPT2TokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))


def write_golden(
    folder: Path, arch: str, case: str, dtype: str = "F32", shards: int = 1
) -> tuple[Path, Golden]:
    """The folder of a golden model, tokenizer included."""
    golden = load_golden(arch, case)
    write_model(folder, golden.config, golden.weights(), dtype, shards)
    text = golden.config.get("text_config", golden.config)
    write_tokenizer(folder, text["vocab_size"])
    return folder, golden


def add_special(folder: Path, tokens: Mapping[str, int]) -> None:
    """Makes special tokens of a folder's tokens with these ids."""
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    by_id = {i: token for token, i in vocabulary.items()}
    for token, i in tokens.items():
        del vocabulary[by_id[i]]
        vocabulary[token] = i
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        tokenizer["added_tokens"].append({"id": i, "content": token, "special": True, **flags})
    path.write_text(json.dumps(tokenizer))
