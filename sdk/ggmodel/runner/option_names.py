"""Names of options: an unknown one is refused with ours, also where another library taught it."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping

from ..errors import ConfigError

_LENGTH = "context_length"
_LAYERS = "gpu_layers (0: only the CPU, -1: all layers on GPUs)"
_TYPE = (
    "type= for the folder of a Hugging Face model, `ggmodel quantize IN OUT TYPE` for a GGUF file, "
    "kv_type= for the cache"
)
_GRAMMAR = "grammar=ggmodel.Grammar.json_schema(schema)"
_BATCH = "batch([prompt] * n)"
_PROCESSOR = "sampler= with a subclass of ggmodel.Sampler"

# Options of llama.cpp, llama-cpp-python, transformers, vLLM, Ollama, mlx-lm and OpenAI's API.
OF_LOADING = {
    **dict.fromkeys(("n_ctx", "num_ctx", "ctx_size", "max_seq_len", "max_model_len"), _LENGTH),
    **dict.fromkeys(("n_gpu_layers", "num_gpu", "ngl"), "gpu_layers"),
    **dict.fromkeys(("device", "devices", "device_map", "main_gpu"), _LAYERS),
    **dict.fromkeys(("n_threads", "num_threads", "num_thread"), "threads"),
    **dict.fromkeys(("n_batch", "n_ubatch", "num_batch", "ubatch_size"), "batch_size"),
    **dict.fromkeys(("n_parallel", "n_seq_max", "max_num_seqs"), "parallel"),
    **dict.fromkeys(("dtype", "torch_dtype", "quantization"), _TYPE),
    **dict.fromkeys(("type_k", "type_v", "cache_type_k", "kv_cache_dtype"), "kv_type"),
    **dict.fromkeys(("flash_attn", "attn_implementation"), "flash_attention"),
    **dict.fromkeys(("clip_model_path", "projector"), "mmproj"),
    "verbose": "logging.basicConfig(level=logging.INFO); loading prints nothing",
    "tensor_split": "gpu_layers={'CUDA0': 20, 'CUDA1': 12}",
    "model_path": "the path as first argument",
    "rpc_servers": "rpc",
}
OF_REQUESTS = {
    **dict.fromkeys(("n_predict", "num_predict", "max_new_tokens", "max_length"), "max_tokens"),
    **dict.fromkeys(("stop_strings", "stop_sequences", "stop_words"), "stop"),
    **dict.fromkeys(("response_format", "json_schema", "format", "guided_json"), _GRAMMAR),
    **dict.fromkeys(("n", "num_return_sequences", "best_of"), _BATCH),
    **dict.fromkeys(("repetition_penalty", "penalty"), "repeat_penalty"),
    **dict.fromkeys(("logits_processor", "logits_processors"), _PROCESSOR),
    **dict.fromkeys(("system", "system_prompt", "messages"), "chat(messages)"),
    "temp": "temperature",
    "do_sample": "temperature=0 for the likeliest tokens, above 0 to draw them",
    "stream": "stream(prompt), or chat(messages, stream=True)",
    "regex": "grammar=ggmodel.Grammar.regex(pattern)",
    "typical": "typical_p",
    "n_keep": "num_keep",
    "image": "images=[image]",
    "video": "videos=[video]",
    **dict.fromkeys(("audios", "sound"), "audio=[sound]"),
}


def unknown_option(name: str, known: Collection[str], elsewhere: Mapping[str, str]) -> ConfigError:
    """The error for an option that does not exist.

    Args:
        known: the options that do.
        elsewhere: names in other libraries, and what to write for them here.
    """
    hint = elsewhere.get(name)
    if hint is None:
        near = difflib.get_close_matches(name, known, 1)
        hint = repr(near[0]) if near else ""
        return ConfigError(f"there is no option {name!r}" + (f"; do you mean {hint}?" * bool(hint)))
    return ConfigError(f"there is no option {name!r}; use {hint}")
