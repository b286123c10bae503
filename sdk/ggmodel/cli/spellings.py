"""Options spelled as in llama.cpp, vLLM, transformers or Ollama: wrong usage that names ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import typer
from typer.core import TyperCommand

from .terminal import in_options

_UsageError: Any = typer.BadParameter.__mro__[1]  # typer has its own click, or an installed one
_MODEL = "MODEL, the first argument"
_NAME = "NAME=MODEL as argument"
# llama.cpp's short options, and what Python spells otherwise than the command line.
_HERE = {
    "c": "context_length",
    "t": "threads",
    **dict.fromkeys(("b", "ub"), "batch_size"),
    **dict.fromkeys(("np", "max_num_seqs"), "parallel"),
    "fa": "flash_attention",
    **dict.fromkeys(("ctk", "ctv", "cache_type_v"), "kv_type"),
    **dict.fromkeys(("mm", "mm_path"), "mmproj"),
    **dict.fromkeys(("lora", "lora_scaled", "lora_modules"), "adapters"),
    **dict.fromkeys(("md", "spec_draft_model"), "draft"),
    **dict.fromkeys(("draft_n", "spec_draft_n_max"), "draft_tokens"),
    "s": "seed",
    **dict.fromkeys(("r", "reverse_prompt"), "stop"),
    **dict.fromkeys(("j", "response_format", "format", "guided_json"), "json_schema"),
    "guided_regex": "regex",
    "grammar_file": "grammar",
    **dict.fromkeys(("sys", "system_prompt"), "system"),
    "system": "`ggmodel chat MODEL --system TEXT`",
    **dict.fromkeys(("cnv", "conversation", "i", "messages"), "`ggmodel chat MODEL`"),
    **dict.fromkeys(("m", "model", "model_path", "hf", "hfr", "hf_repo"), _MODEL),
    **dict.fromkeys(("a", "alias", "served_model_name"), _NAME),
    **dict.fromkeys(("p", "prompt"), "the text as second argument; - reads standard input"),
    **dict.fromkeys(("ts", "tensor_split"), "gpu_layers as CUDA0=20,CUDA1=12"),
    **dict.fromkeys(("audios", "sound"), "audio"),
    **dict.fromkeys(("n", "num_return_sequences", "best_of"), "`ggmodel batch`, a line an answer"),
    "do_sample": "a temperature of 0 for the likeliest tokens, above 0 to draw them",
    "stream": "nothing: answers are printed as they come",
    **dict.fromkeys(("tools", "tool_choice"), "a server, `ggmodel serve MODEL`, or Python"),
    **dict.fromkeys(("verbose", "logits_processor", "logits_processors"), ""),
}


class Command(TyperCommand):
    """A command whose unknown options are explained where another program has them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, [*args])
        except _UsageError as error:
            if message := _explained(args, {str(p.name): p.opts for p in self.params}):
                raise _UsageError(message, ctx) from error
            raise


def _explained(args: Sequence[str], options: dict[str, Sequence[str]]) -> str:
    """The error for the first option that other programs have; "" if there is none.

    Args:
        options: of the command: by argument, their spellings.
    """
    accepted = {spelling for spellings in options.values() for spelling in spellings}
    for arg in args[: args.index("--") if "--" in args else None]:
        spelled = arg.partition("=")[0]
        name = spelled.lstrip("-").replace("-", "_")
        if spelled.startswith("-") and spelled not in accepted and (hint := _hint(name, options)):
            return f"No such option: {spelled}; use {hint}"
    return ""


def _hint(name: str, options: dict[str, Sequence[str]]) -> str:
    from ..runner.options import OF_LOADING
    from ..runner.request_options import OF_REQUESTS
    from .loading import LoadingToGenerate
    from .requests import Answering, MediaFiles

    flags = {argument: max(spellings, key=len) for argument, spellings in options.items()}
    of_answers = {f.name for kind in (Answering, MediaFiles) for f in fields(kind)}
    of_loading = {f.name for f in fields(LoadingToGenerate)}
    own = {name: name for name in of_answers | of_loading}
    hint = {**OF_LOADING, **OF_REQUESTS, **own, **_HERE}.get(name, "")
    if hint in flags:
        return flags[hint]
    hint = _HERE.get(hint, hint)
    flag = f"--{hint.replace('_', '-')}"
    if hint in of_answers:
        return f"{flag} of `ggmodel run` and `chat`, or {hint} in requests to a server"
    if hint in of_loading:
        return f"{flag} of commands that compute, such as `ggmodel run`"
    return in_options(hint, flags)
