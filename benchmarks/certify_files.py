"""Checkpoints of small shapes, and the files that llama.cpp's programs make of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ggmodel.convert.imatrix import Importance, ImportanceMatrix
from ggmodel.tokenizer.pretokenizers import PRE_TOKENIZERS
from ggmodel.workbench.certify.texts import texts
from tests.convert.folders import write_model

TOKENS = 640
SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<pad>")
TEMPLATE = (
    "{{ bos_token }}{% if tools %}<|im_start|>system\nTools:{% for t in tools %}\n{{ t | tojson }}"
    "{% endfor %}<|im_end|>\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n{% endif %}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}\n<tool_call>\n{{ c.function | tojson }}\n"
    "</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Shape:
    """A checkpoint.

    Attributes:
        pre: the pre-tokenizer of byte pairs; "" for SentencePiece.
        config: keys of config.json beside the usual ones.
        experts: in each layer; 0 for a dense one.
        norms: further norms of a layer, and their widths.
        centre: of the weights of norms.
    """

    architecture: str
    model_type: str
    pre: str
    config: Mapping[str, Any] = field(default_factory=dict)
    experts: int = 0
    norms: Mapping[str, int] = field(default_factory=dict)
    centre: float = 1.0
    tied: bool = False


_QWEN = {"self_attn.q_norm": 64, "self_attn.k_norm": 64}
_LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
SHAPES = {
    "llama": Shape(
        "LlamaForCausalLM", "llama", "llama-bpe",
        {"rope_scaling": _LLAMA3, "rope_theta": 500000.0},
    ),
    "qwen3": Shape("Qwen3ForCausalLM", "qwen3", "qwen2", norms=_QWEN, tied=True),
    "qwen3moe": Shape(
        "Qwen3MoeForCausalLM", "qwen3_moe", "qwen2",
        {"moe_intermediate_size": 256, "num_experts": 8, "num_experts_per_tok": 2,
         "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
        experts=8, norms=_QWEN,
    ),
    "gemma2": Shape(
        "Gemma2ForCausalLM", "gemma2", "",
        {"attn_logit_softcapping": 40.0, "final_logit_softcapping": 20.0, "sliding_window": 64,
         "query_pre_attn_scalar": 64, "hidden_activation": "gelu_pytorch_tanh"},
        norms={"pre_feedforward_layernorm": 256, "post_feedforward_layernorm": 256},
        centre=0.0, tied=True,
    ),
}  # fmt: skip


def write_folder(folder: Path, name: str, seed: int = 1) -> Path:
    """A checkpoint in BF16 with random weights, tokenizer and chat template."""
    shape = SHAPES[name]
    folder.mkdir(parents=True, exist_ok=True)
    if shape.pre:
        write_byte_pairs(folder, shape.pre)
    else:
        _write_sentencepiece(folder)
    config = {
        "architectures": [shape.architecture], "model_type": shape.model_type,
        "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "hidden_act": "silu",
        "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "vocab_size": TOKENS, "bos_token_id": 0, "eos_token_id": 3, "torch_dtype": "bfloat16",
        "tie_word_embeddings": shape.tied, **shape.config,
    }  # fmt: skip
    write_model(folder, config, dict(_weights(shape, seed)), "BF16")
    return folder


def _weights(shape: Shape, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    random = np.random.default_rng(seed)

    def matrix(*sizes: int) -> np.ndarray:
        # Inputs of unequal weight, as in trained models.
        columns = np.exp(random.standard_normal(sizes[-1]) * 0.5)
        return (random.standard_normal(sizes) * 0.02 * columns).astype(np.float32)

    def norm(width: int) -> np.ndarray:
        return (shape.centre + 0.1 * random.standard_normal(width)).astype(np.float32)

    yield "model.embed_tokens.weight", matrix(TOKENS, 256)
    yield "model.norm.weight", norm(256)
    if not shape.tied:
        yield "lm_head.weight", matrix(TOKENS, 256)
    for i in range(2):
        layer = f"model.layers.{i}."
        usual = {"input_layernorm": 256, "post_attention_layernorm": 256, **shape.norms}
        for name, width in usual.items():
            yield f"{layer}{name}.weight", norm(width)
        for name, rows in {"q": 256, "k": 128, "v": 128}.items():
            yield f"{layer}self_attn.{name}_proj.weight", matrix(rows, 256)
        yield f"{layer}self_attn.o_proj.weight", matrix(256, 256)
        blocks = [f"mlp.experts.{e}." for e in range(shape.experts)] or ["mlp."]
        width = 256 if shape.experts else 512
        for block in blocks:
            yield f"{layer}{block}gate_proj.weight", matrix(width, 256)
            yield f"{layer}{block}up_proj.weight", matrix(width, 256)
            yield f"{layer}{block}down_proj.weight", matrix(256, width)
        if shape.experts:
            yield f"{layer}mlp.gate.weight", matrix(shape.experts, 256)


def write_byte_pairs(folder: Path, pre: str) -> None:
    """A tokenizer trained on the texts of `certify`, with the cuts of a pre-tokenizer."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    splits = [pre_tokenizers.Split(Regex(s), "isolated") for s in PRE_TOKENIZERS[pre].splits]
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, bytes_of])
    tokenizer.decoder = decoders.ByteLevel()
    if pre == "llama-bpe":
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 0)]
        )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=TOKENS, special_tokens=list(SPECIAL), initial_alphabet=alphabet,
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(texts((), 3000), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_settings(folder, "PreTrainedTokenizerFast", add_bos=pre == "llama-bpe")


def _write_sentencepiece(folder: Path) -> None:
    """tokenizer.model, by hand: the format's messages, without its library."""
    pieces = [("<s>", 0.0, 3), ("</s>", 0.0, 3), ("<|im_start|>", 0.0, 4), ("<|im_end|>", 0.0, 3)]
    pieces += [("<pad>", 0.0, 3), ("<unk>", 0.0, 2)]
    pieces += [(f"<0x{i:02X}>", 0.0, 6) for i in range(256)]
    words = sorted({w for t in texts((), 2000) for w in t.split() if w.isalpha() and len(w) > 1})
    own = list(dict.fromkeys([chr(i) for i in range(33, 127)] + ["▁"] + [
        f"▁{w}"[:n] for w in words for n in (2, 3, 5) if len(f"▁{w}") >= n
    ]))  # fmt: skip
    taken = own[: TOKENS - len(pieces)]
    pieces += [(piece, -float(i), 1) for i, piece in enumerate(taken)]
    pieces += [(f"▁x{i}", -1e4 - i, 1) for i in range(TOKENS - len(pieces))]

    def length(data: bytes) -> bytes:
        size, head = len(data), b""
        while size > 127:
            head += bytes([size & 127 | 128])
            size >>= 7
        return head + bytes([size]) + data

    model = b""
    for piece, score, kind in pieces:
        own_piece = b"\x0a" + length(piece.encode()) + b"\x15" + np.float32(score).tobytes()
        model += b"\x0a" + length(own_piece + b"\x18" + bytes([kind]))
    trainer = b"\x18\x02" + b"\x98\x02\x01"  # BPE, byte fallback
    for number, token in ((40, 5), (41, 0), (42, 1), (43, 4)):
        trainer += bytes([number << 3 & 127 | 128, number >> 4, token])
    normalizer = b"\x0a" + length(b"identity") + b"\x18\x00\x20\x00\x28\x01"
    model += b"\x12" + length(trainer) + b"\x1a" + length(normalizer)
    (folder / "tokenizer.model").write_bytes(model)
    _write_settings(folder, "GemmaTokenizer", add_bos=True)


def _write_settings(folder: Path, kind: str, add_bos: bool) -> None:
    settings = {
        "tokenizer_class": kind, "bos_token": "<s>", "eos_token": "<|im_end|>",
        "pad_token": "<pad>", "add_bos_token": add_bos, "chat_template": TEMPLATE,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_importance(path: Path, names: Mapping[str, tuple[int, ...]], seed: int = 3) -> Path:
    """An importance matrix of random sums.

    Args:
        names: tensors → shape in ggml's order.
    """
    random = np.random.default_rng(seed)
    entries: dict[str, Importance] = {}
    for name, shape in names.items():
        width, matrices = (*shape, 1, 1)[0], (*shape, 1, 1)[2]
        sums = np.exp(random.standard_normal((matrices, width)) * 1.5) * 100
        entries[name] = Importance(sums.astype(np.float32), np.full(matrices, 100))
    ImportanceMatrix(entries, path.name, ["text"], 7, 512).write(path, force=True)
    return path


class LlamaCpp:
    """llama.cpp's converter and quantiser.

    Args:
        source: its source tree.
        library: libllama.so of a build.
        python: an interpreter with torch, transformers and sentencepiece.
    """

    def __init__(self, source: Path, library: Path, python: Path):
        self.source, self.python = source, python
        self._library = library

    def convert(self, folder: Path, out: Path, kind: str, pre: str) -> Path:
        """convert_hf_to_gguf.py. The name of the pre-tokenizer is given: it knows those of
        published vocabularies by a digest of their ids."""
        code = (
            "import runpy, sys\n"
            f"sys.path[:0] = [{str(self.source)!r}, {str(self.source / 'gguf-py')!r}]\n"
            "from conversion.base import TextModel\n"
            f"TextModel.get_vocab_base_pre = lambda self, tokenizer: {pre!r}\n"
            f"sys.argv = ['', {str(folder)!r}, '--outtype', {kind!r}, '--outfile', {str(out)!r}]\n"
            f"runpy.run_path({str(self.source / 'convert_hf_to_gguf.py')!r}, run_name='__main__')\n"
        )
        _run([str(self.python), "-W", "ignore", "-c", code])
        return out

    def quantize(
        self, file: Path, out: Path, number: int, matrix: Path | None = None, name: str = ""
    ) -> Path:
        """llama_model_quantize, which llama-quantize calls, in a process of its own: it ends that
        on an error.

        Args:
            number: of the file type.
            name: of the matrix, as it stands in the file.
        """
        means = ""
        if matrix is not None:
            entries = ImportanceMatrix.read(matrix).entries
            means = str(matrix.with_suffix(".npz"))
            arrays: dict[str, Any] = {n: e.means().reshape(-1) for n, e in entries.items()}
            np.savez(means, **arrays)
        program = str(Path(__file__).with_name("certify_quantize.py"))
        given = [str(self._library), str(file), str(out), str(number), means, name]
        _run([sys.executable, program, *given])
        return out


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:4])} failed:\n{done.stdout}{done.stderr}")
