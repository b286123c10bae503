"""A tiny encoder, that ranks: its score is the mean of marks that its words have.

An encoder of one layer whose attention is even, so that the state of the first token is the mean of
all. `MARKS` has the worth of words; the words of `CUT` count as the tokens that the model of
llama.cpp's tests makes of them, and all others are single bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.convert.write import write_gguf
from ggmodel.gguf_file import MemorySource
from ggmodel.tokenizer.encoder import byte_alphabet

WIDTH, LONGEST = 8, 1024  # elements of a state; positions
MARKS = {"Machine": 2.0, "Ġlearning": 0.5, "Ġmachine": 0.2, "Ġde": -1.0, "Ġet": -1.0, "Ġla": -1.0}
CUT = (
    *MARKS,
    *("I", "Ġbelieve", "Ġthe", "Ġmeaning", "Ġof", "Ġlife", "Ġis", "This", "Ġa", "Ġtest"),
    *("Ġhello", "hello", "Ġb", "Ġc", "Ġd", "Which", "Ġcity", "Paris", "Ġcapit", "Learn", "ing"),
)
SPECIAL = ("<s>", "</s>", "<unk>")


def write(path: Path) -> None:
    """Write the file."""
    source = MemorySource(_metadata(), _tensors())
    tensors = list(source.tensors.values())
    write_gguf(path, source.metadata, tensors, lambda t: source.data(t.name), source.release)


def _vocabulary() -> tuple[list[str], list[str]]:
    """Its tokens, and the merges that make each word of `CUT` from its first letter on."""
    tokens, merges = [*SPECIAL, *byte_alphabet()], list[str]()
    for word in CUT:
        for end in range(1, len(word)):
            if word[: end + 1] not in tokens:
                tokens.append(word[: end + 1])
                merges.append(f"{word[:end]} {word[end]}")
    return tokens, merges


def _metadata() -> dict[str, Any]:
    tokens, merges = _vocabulary()
    bert = {
        "block_count": 1,
        "embedding_length": WIDTH,
        "feed_forward_length": WIDTH,
        "attention.head_count": 1,
        "attention.layer_norm_epsilon": 1e-5,
        "attention.causal": False,
        "context_length": LONGEST,
        "pooling_type": 4,
        "classifier.output_labels": ["LABEL_0"],
    }
    tokenizer = {
        "model": "gpt2",
        "pre": "jina-v1-en",
        "tokens": tokens,
        "token_type": [3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)),
        "merges": merges,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "seperator_token_id": 1,
        "unknown_token_id": 2,
        "add_bos_token": True,
        "add_eos_token": True,
        "add_sep_token": True,
        "token_type_count": 2,
    }
    return {
        "general.architecture": "bert",
        **{f"bert.{key}": value for key, value in bert.items()},
        **{f"tokenizer.ggml.{key}": value for key, value in tokenizer.items()},
    }


def _tensors() -> dict[str, NDArray[np.float32]]:
    def zeros(*shape: int) -> NDArray[np.float32]:
        return np.zeros(shape, np.float32)

    tokens, _ = _vocabulary()
    words = zeros(len(tokens), WIDTH)
    words[:, 0] = [MARKS.get(token, 0.0) for token in tokens]
    words[:, 1], words[:, 2], words[:, 3] = -words[:, 0], 2.0, -2.0  # for norms, which divide
    words[:, 4:] = np.random.default_rng(1).uniform(-0.3, 0.3, (len(tokens), WIDTH - 4))
    square, vector, one = zeros(WIDTH, WIDTH), zeros(WIDTH), np.eye(WIDTH, dtype=np.float32)
    scale = np.ones(WIDTH, np.float32)
    held = {"token_embd.weight": words}
    held |= {"position_embd.weight": zeros(LONGEST, WIDTH), "token_types.weight": zeros(2, WIDTH)}
    for name in ("token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm"):
        held |= {f"{name}.weight": scale, f"{name}.bias": vector}
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down"):
        passes = name in ("attn_v", "attn_output")
        held |= {f"blk.0.{name}.weight": one if passes else square, f"blk.0.{name}.bias": vector}
    held |= {"cls.weight": one, "cls.bias": vector}
    return {**held, "cls.output.weight": 4 * one[:1], "cls.output.bias": vector[:1]}
