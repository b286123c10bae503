"""Good files with one fault each, as they are published, and with blocks edited on purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ggmodel.convert.quantize import decode, encode, typed
from ggmodel.convert.write import info, write_gguf
from ggmodel.gguf_file import Array, DType, open_gguf


@dataclass
class Contents:
    """A file in memory.

    Attributes:
        metadata: as `write_gguf` takes it.
        tensors: name → (type, shape in ggml's order, bytes).
    """

    metadata: dict[str, Any]
    tensors: dict[str, tuple[DType, tuple[int, ...], np.ndarray]]

    @classmethod
    def read(cls, path: Path) -> Contents:
        with open_gguf(path) as source:
            tensors = {
                t.name: (t.dtype, t.shape, np.frombuffer(source.data(t.name), np.uint8).copy())
                for t in source.tensors.values()
            }
            metadata = {k: _kept(v) for k, v in typed(source).items()}
            return cls(metadata, tensors)

    def write(self, path: Path) -> Path:
        infos = [info(name, shape, dtype) for name, (dtype, shape, _) in self.tensors.items()]
        write_gguf(
            path, self.metadata, infos, lambda t: self.tensors[t.name][2].data, lambda _: None,
            force=True,
        )  # fmt: skip
        return path

    def numbers(self, name: str) -> np.ndarray:
        """A tensor in numpy's order, float32."""
        dtype, shape, data = self.tensors[name]
        return decode(data, dtype, int(np.prod(shape))).reshape(shape[::-1]).copy()

    def store(self, name: str, values: np.ndarray) -> None:
        """Replaces a tensor's numbers."""
        dtype, shape, _ = self.tensors[name]
        rows = np.ascontiguousarray(values.reshape(-1, shape[0]), np.float32)
        self.tensors[name] = dtype, shape, encode(rows, dtype, name)

    def swap(self, one: str, other: str) -> None:
        """Exchanges two tensors."""
        self.tensors[one], self.tensors[other] = self.tensors[other], self.tensors[one]

    def key(self, end: str) -> str:
        """The key that ends so."""
        return next(key for key in self.metadata if key.endswith(end))


def _kept(value: Any) -> Any:
    """A value that outlives its file."""
    if not isinstance(value, Array):
        return value
    return list(value) if value.dtype == "string" else value.numpy().copy()


Mutate = Callable[[Contents], None]


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        name: in words.
        shape: of the checkpoint.
        kinds: names of findings that say what it is.
        mutate: changes a good file of type `base`.
        stale: the checkpoint that the file is made of instead: its seed; None for the same.
        matrix: seeds of the importance matrices of the file and of the check.
    """

    name: str
    shape: str
    kinds: tuple[str, ...]
    mutate: Mutate = lambda contents: None
    base: str = "q4_K_M"
    stale: int | None = None
    matrix: tuple[int, int] | None = None


def _set(end: str, value: Any) -> Mutate:
    def mutate(c: Contents) -> None:
        c.metadata[c.key(end)] = value

    return mutate


def _drop(end: str) -> Mutate:
    def mutate(c: Contents) -> None:
        del c.metadata[c.key(end)]

    return mutate


def _without_factors(c: Contents) -> None:
    del c.tensors["rope_freqs.weight"]


def _without_tools(c: Contents) -> None:
    key = c.key("chat_template")
    c.metadata[key] = c.metadata[key].replace("if tools", "if none")


def _numbers(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Mutate:
    return lambda c: c.store(name, change(c.numbers(name)))


def _listed(end: str, change: Callable[[list[Any]], None]) -> Mutate:
    def mutate(c: Contents) -> None:
        key = c.key(end)
        array = c.metadata[key]
        values = list(array)
        change(values)
        c.metadata[key] = values if isinstance(array, list) else np.array(values, array.dtype)

    return mutate


def _exchange(values: list[Any], i: int, j: int) -> None:
    values[i], values[j] = values[j], values[i]


def _assign(values: list[Any], i: int, value: Any) -> None:
    values[i] = value


def _extra_bias(c: Contents) -> None:
    c.tensors["blk.0.attn_q.bias"] = DType.F32, (256,), np.ones(256, np.float32).view(np.uint8)


def _swap_experts(c: Contents) -> None:
    dtype, shape, data = c.tensors["blk.1.ffn_up_exps.weight"]
    experts = data.reshape(shape[2], -1)
    c.tensors["blk.1.ffn_up_exps.weight"] = (
        dtype,
        shape,
        experts[[0, 3, 2, 1, *range(4, 8)]].reshape(-1),
    )


def _unpermute(values: np.ndarray) -> np.ndarray:
    """Rows of rope in the order of the checkpoint, as a converter leaves them that forgets to."""
    rows, width = values.shape
    return values.reshape(rows // 64, 32, 2, width).swapaxes(1, 2).reshape(rows, width)


def _requantise(c: Contents) -> None:
    """Q4_K made of Q8_0, as with llama-quantize --allow-requantize."""
    for name, (dtype, shape, _) in list(c.tensors.items()):
        if dtype is DType.BF16:
            lossy = encode(c.numbers(name).reshape(-1, shape[0]), DType.Q8_0)
            c.tensors[name] = DType.Q4_K, shape, np.zeros(0, np.uint8)
            c.store(name, decode(lossy, DType.Q8_0, int(np.prod(shape))))


def _noise(values: np.ndarray) -> np.ndarray:
    random = np.random.default_rng(9)
    return values + random.standard_normal(values.shape).astype(np.float32) * values.std() * 0.5


_Q = "blk.0.attn_q.weight"
_DOWN = "blk.1.ffn_down.weight"
FAULTS = (
    Fault("wrong chat template", "llama", ("template",),
          _set("chat_template", "{% for m in messages %}{{ m.content }}{% endfor %}")),
    Fault("template without its tools", "qwen3", ("template",), _without_tools),
    Fault("no chat template", "qwen3", ("missing",), _drop("chat_template")),
    Fault("add_bos false", "llama", ("add_bos_token",), _set("add_bos_token", False)),
    Fault("wrong end of sequence", "qwen3", ("eos_token_id", "ends of answers"),
          _set("eos_token_id", np.uint32(1))),
    Fault("two merges exchanged", "llama", ("merges",),
          _listed(".merges", lambda v: _exchange(v, 3, 40))),
    Fault("wrong pre-tokenizer", "qwen3", ("encoding",), _set("ggml.pre", "gpt-2")),
    Fault("special token as text", "llama", ("token_type",),
          _listed("token_type", lambda v: _assign(v, 2, 1))),
    Fault("two tokens exchanged", "qwen3", ("tokens",),
          _listed("ggml.tokens", lambda v: _exchange(v, 100, 101))),
    Fault("missing soft cap of logits", "gemma2", ("missing final_logit_softcapping",),
          _drop("final_logit_softcapping")),
    Fault("wrong soft cap of scores", "gemma2", ("attn_logit_softcapping",),
          _set("attn_logit_softcapping", np.float32(50))),
    Fault("wrong window", "gemma2", ("attention.sliding_window",),
          _set("sliding_window", np.uint32(4096))),
    Fault("wrong base of rope", "llama", ("rope.freq_base",), _set("freq_base", np.float32(1e4))),
    Fault("missing factors of rope", "llama", ("missing",),
          _without_factors),
    Fault("wrong eps of norms", "qwen3", ("attention.layer_norm_rms_epsilon",),
          _set("layer_norm_rms_epsilon", np.float32(1e-6))),
    Fault("wrong number of experts used", "qwen3moe", ("expert_used_count",),
          _set("expert_used_count", np.uint32(4))),
    Fault("swapped experts", "qwen3moe", ("swapped experts",), _swap_experts),
    Fault("stale importance matrix", "llama", ("imatrix",), matrix=(3, 4)),
    Fault("another checkpoint", "qwen3", ("another checkpoint",), stale=2),
    Fault("rope of another layout", "llama", ("permuted",), _numbers(_Q, _unpermute), "q8_0"),
    Fault("gate and up exchanged", "llama", ("swapped",),
          lambda c: c.swap("blk.0.ffn_gate.weight", "blk.0.ffn_up.weight")),
    Fault("values of two layers exchanged", "qwen3", ("swapped",),
          lambda c: c.swap("blk.0.attn_k.weight", "blk.1.attn_k.weight")),
    Fault("transposed output", "llama", ("transposed",),
          _numbers("blk.0.attn_output.weight", lambda v: v.T)),
    Fault("norm without its one", "gemma2", ("shifted",),
          _numbers("blk.0.attn_norm.weight", lambda v: v - 1)),
    Fault("scaled weights", "qwen3", ("scaled",), _numbers(_DOWN, lambda v: v * 1.5)),
    Fault("other sign", "qwen3moe", ("negated",), _numbers(_Q, lambda v: -v), "q8_0"),
    Fault("zeroed weights", "gemma2", ("zeroed",), _numbers(_DOWN, lambda v: v * 0)),
    Fault("noise on one tensor", "llama", ("stale",), _numbers(_DOWN, _noise)),
    Fault("quantised twice", "qwen3", ("requantised",), _requantise, "bf16"),
    Fault("a bias that is no part of it", "llama", ("surplus",), _extra_bias),
)  # fmt: skip


@dataclass(frozen=True)
class Edit:
    """Blocks changed within the error of their type.

    Attributes:
        base: the type of the file.
        matrix: it was made with an importance matrix, which is given.
        codes: change values; otherwise the scale of a block by its last bit.
    """

    base: str
    blocks: int
    matrix: bool
    codes: bool = True


EDITS = tuple(
    Edit(base, blocks, matrix, codes)
    for matrix in (False, True)
    for base, blocks, codes in (
        ("q8_0", 1, True), ("q4_K_M", 1, True), ("q4_K_M", 1, False), ("q4_K_M", 5, True),
        ("q5_K_M", 1, True), ("q6_K", 1, False), ("q3_K_M", 2, True), ("q4_0", 1, False),
        ("iq4_xs", 1, True), ("q2_K", 1, True),
    )
)  # fmt: skip


def edit(c: Contents, e: Edit, seed: int) -> str:
    """Changes blocks of one matrix; returns its name."""
    random = np.random.default_rng(seed)
    names = [
        n for n, (dtype, shape, _) in c.tensors.items() if dtype.is_quantized and n[:3] == "blk"
    ]
    name = names[random.integers(len(names))]
    dtype, _, data = c.tensors[name]
    blocks = data.reshape(-1, dtype.type_size)
    for at in random.choice(len(blocks), e.blocks, replace=False):
        if e.codes:
            byte = dtype.type_size // 2  # of all types here it chooses values
            blocks[at, byte] ^= 1
        else:
            low = 208 if dtype is DType.Q6_K else 0  # of the scale, a half
            blocks[at, low] ^= 1
    return name
