"""Options, messages and grammars of llama-cpp-python, as ours."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import Unsupported
from ..loading import open_source
from ..runner import Grammar
from ..runner.options import unknown_option

_KV_TYPES = {0: "f32", 1: "f16", 2: "q4_0", 8: "q8_0"}  # by ggml's numbers
# Options of loading without effect here.
_WITHOUT_EFFECT = frozenset(
    "use_mmap use_mlock n_ubatch n_threads_batch logits_all offload_kqv op_offload swa_full "
    "no_perf numa spm_infill split_mode".split()
)
# Options that only have the value of an untouched default, and what to do instead.
_REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "main_gpu": ((0,), "place layers with ggmodel.load(gpu_layers={'CUDA1': 20})"),
    "tensor_split": ((None,), "place layers with ggmodel.load(gpu_layers={'CUDA0': 20, …})"),
    "vocab_only": ((False,), "use ggmodel.Tokenizer.from_metadata(open_gguf(path).metadata)"),
    "kv_overrides": ((None,), "change the file's metadata instead"),
    "lora_base": ((None,), "the adapter is added to the model as it is"),
    **dict.fromkeys(("rope_scaling_type", "attention_type"), ((-1,), "the file's value is used")),
    **dict.fromkeys(("rope_freq_base", "rope_freq_scale"), ((0, 0.0), "the file's value is used")),
    **dict.fromkeys(("yarn_ext_factor",), ((-1.0,), "the file's value is used")),
    **dict.fromkeys(("yarn_attn_factor", "yarn_beta_slow"), ((1.0,), "the file's value is used")),
    "yarn_beta_fast": ((32.0,), "the file's value is used"),
    "yarn_orig_ctx": ((0,), "the file's value is used"),
    "chat_handler": ((None,), "give mmproj=FILE, and images in messages"),
    "tokenizer": ((None,), "the file's tokenizer is used"),
    "tfs_z": ((1.0,), "leave it out"),
    "mirostat_mode": ((0,), "use temperature, top_p and min_p"),
    "suffix": ((None,), "serve the model, and post to /infill"),
    "stopping_criteria": ((None,), "use stop, or end the loop over stream=True"),
}


@dataclass(frozen=True)
class LlamaState:
    """The result of `Llama.save_state`; it can be pickled.

    Attributes:
        n_tokens: of the prompt and the answer.
        llama_state: the bytes of a file of `LoadedModel.save_state`.
        seed: of answers.
    """

    n_tokens: int
    llama_state: bytes
    seed: int

    @property
    def llama_state_size(self) -> int:
        """Bytes of `llama_state`."""
        return len(self.llama_state)


@dataclass(frozen=True)
class LlamaPromptLookupDecoding:
    """Drafts tokens out of the prompt, as `prompt_lookup` does. The numbers have no effect: as many
    tokens are drafted as pay by measurement."""

    max_ngram_size: int = 2
    num_pred_tokens: int = 10


class LlamaGrammar:
    """A grammar for answers; made by a class method."""

    def __init__(self, grammar: Grammar):
        self.grammar = grammar

    @classmethod
    def from_string(cls, grammar: str, verbose: bool = True) -> LlamaGrammar:
        """Text in llama.cpp's form (GBNF)."""
        return cls(Grammar.gbnf(grammar))

    @classmethod
    def from_file(cls, file: str | Path, verbose: bool = True) -> LlamaGrammar:
        """The grammar in a file."""
        return cls.from_string(Path(file).read_text("utf-8"), verbose)

    @classmethod
    def from_json_schema(cls, json_schema: str, verbose: bool = True) -> LlamaGrammar:
        """JSON that a schema, given as JSON text, describes."""
        return cls(Grammar.json_schema(json_schema))


def others(
    options: Mapping[str, Any], without_effect: Sequence[str] = tuple(_WITHOUT_EFFECT)
) -> dict[str, Any]:
    """The options that llama-cpp-python has not.

    Raises:
        Unsupported: one that cannot be honoured.
    """
    kept: dict[str, Any] = {}
    for name, value in options.items():
        if name in _REFUSED:
            values, instead = _REFUSED[name]
            if value not in values:
                raise Unsupported(f"{name}={value!r:.40} is unsupported here; {instead}")
        elif name not in without_effect and name not in ("mirostat_tau", "mirostat_eta"):
            kept[name] = value
    return kept


def refuse_others(options: Mapping[str, Any], function: Callable[..., Any]) -> None:
    """Refuses options of a request that are not among a function's parameters.

    Raises:
        Unsupported: llama-cpp-python has it, and it cannot be honoured.
        ConfigError: it has not.
    """
    for name in others(options, ()):
        raise unknown_option(name, inspect.signature(function).parameters, {})


def kv_type(k: int | None, v: int | None) -> str:
    """The name of a type by ggml's number.

    Raises:
        Unsupported: another type, or two.
    """
    names = {_KV_TYPES.get(1 if one is None else one) for one in (k, v)}
    if len(names) > 1 or None in names:
        raise Unsupported(
            f"type_k={k} and type_v={v} are unsupported: give both the same of "
            f"{', '.join(f'{number} ({name})' for number, name in _KV_TYPES.items())}"
        )
    return str(names.pop())


def trained_length(path: str | Path) -> int | None:
    """The context length that a model was trained with; None if the file does not say."""
    source = open_source(str(path), mmproj="")
    metadata = source.metadata
    length = metadata.get(f"{metadata.get('general.architecture')}.context_length")
    source.close()
    return int(length) if isinstance(length, (int, np.integer)) else None


def message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message with the arguments of its calls as objects, which templates want."""
    kept = {name: value for name, value in message.items() if name != "function_call"}
    if not isinstance(calls := message.get("tool_calls"), list):
        return kept
    return {**kept, "tool_calls": [_made_call(call) for call in calls]}


def _made_call(call: Mapping[str, Any]) -> dict[str, Any]:
    call, function = dict(call), dict(call["function"])
    if isinstance(call.get("id"), str):
        call["id"] = call["id"].removeprefix("call_")
    with suppress(TypeError, ValueError, RecursionError):  # an object already, or cut short
        function["arguments"] = json.loads(function["arguments"] or "{}")
    return {**call, "function": function}
