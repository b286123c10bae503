"""llama-cpp-python's class `Llama`, for programs that use it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ConfigError, Unsupported
from ..loading import load
from ..resources import Closing
from ..runner import LoadedModel, Sampler
from ..runner.requests.pooling import token_rows
from ..runner.requests.readout import BY_NUMBER, normalized
from .chat_formats import format_of
from .llama_options import (
    LlamaGrammar,
    LlamaPromptLookupDecoding,
    LlamaState,
    kv_type,
    message,
    others,
    refuse_others,
    trained_length,
)
from .responses import Response

_RANDOM = (-1, 0xFFFFFFFF)  # seeds that stand for another one each time
_NO_POOLING, _FROM_FILE = 0, -1
_SAMPLING = (
    "temperature top_p min_p typical_p frequency_penalty presence_penalty repeat_penalty"
).split()


class _Processed(Sampler):
    """Has functions change logits float32 [vocabulary], by the tokens int [n] before them."""

    processors: Sequence[Any] = ()

    def adjust(self, logits: np.ndarray, history: Sequence[int]) -> np.ndarray:
        for process in self.processors:
            logits = np.asarray(process(np.asarray(history, np.intc), logits), np.float32)
        return super().adjust(logits, history)


class Llama(Closing):
    """A model, with the methods and results of llama-cpp-python.

    Args:
        model_path: anything that `ggmodel.load` takes: also a name, as ORG/REPO:Q4_K_M.
        n_gpu_layers: layers on GPUs; −1 is all.
        seed: of all answers; −1 is another one each time.
        n_ctx: tokens of the context; 0 is the model's own.
        n_batch, n_threads: `batch_size` and `threads` of `ggmodel.load`.
        embedding: `embed` is used.
        pooling_type: of `embed`: 0 none, 1 mean, 2 cls, 3 last, −1 the file's.
        last_n_tokens_size: tokens that penalties look back at.
        flash_attn: has no effect where it is False: fused kernels are taken where they are faster.
        type_k, type_v: ggml's number of the type of keys and values, both the same.
        lora_path, lora_scale: an adapter, as `adapters` of `ggmodel.load`, and its strength.
        chat_format: the name of a format, or Jinja text; None takes the file's template.
        draft_model: None or `LlamaPromptLookupDecoding`.
        verbose: has no effect.
        options: others of llama-cpp-python, and those of `ggmodel.load`, such as `mmproj`.

    Raises:
        Unsupported: an option with a value that cannot be honoured.
        Error: as `ggmodel.load`.
    """

    def __init__(
        self,
        model_path: str | Path,
        *,
        n_gpu_layers: int = 0,
        seed: int = 0xFFFFFFFF,
        n_ctx: int = 512,
        n_batch: int = 512,
        n_threads: int | None = None,
        embedding: bool = False,
        pooling_type: int = _FROM_FILE,
        last_n_tokens_size: int = 64,
        flash_attn: bool = False,
        type_k: int | None = None,
        type_v: int | None = None,
        lora_path: str | Path | None = None,
        lora_scale: float = 1.0,
        chat_format: str | None = None,
        draft_model: LlamaPromptLookupDecoding | None = None,
        verbose: bool = True,
        **options: Any,
    ):
        options = others(options)
        if draft_model is not None and not isinstance(draft_model, LlamaPromptLookupDecoding):
            raise Unsupported("draft_model: give ggmodel.compat.LlamaPromptLookupDecoding()")
        if pooling_type not in (_FROM_FILE, _NO_POOLING, *BY_NUMBER):
            raise Unsupported(f"pooling_type {pooling_type!r} is none of −1, 0, 1, 2 and 3")
        self.model_path, self.verbose = str(model_path), verbose
        self.chat_format, self._seed, self._embeds = chat_format, seed, embedding
        self._template, self._stop = format_of(chat_format)
        self._pooling, self._looks_back = pooling_type, last_n_tokens_size
        self._drafts = draft_model is not None
        if lora_path is not None:
            options["adapters"] = {str(lora_path): lora_scale}
        if type_k is not None or type_v is not None:
            options["kv_type"] = kv_type(type_k, type_v)
        self.model: LoadedModel = load(
            str(model_path),
            gpu_layers=n_gpu_layers,
            context_length=n_ctx or trained_length(model_path),
            batch_size=n_batch,
            threads=n_threads,
            flash_attention="on" if flash_attn else "auto",
            **options,
        )

    def close(self) -> None:
        """Frees the model."""
        self.model.close()

    def __del__(self) -> None:
        if hasattr(self, "model"):
            self.model.close()

    @classmethod
    def from_pretrained(cls, repo_id: str, filename: str | None = None, **options: Any) -> Llama:
        """Refused: names are given as model_path.

        Raises:
            Unsupported: always.
        """
        raise Unsupported(
            f"from_pretrained is unsupported: Llama({repo_id!r}) downloads the file, with a type "
            f"as Llama('{repo_id}:Q8_0'); `ggmodel pull {repo_id}` does so beforehand"
        )

    # tokens

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """The ids of a text, in bytes of UTF-8."""
        vocabulary = self.model.prompts.vocabulary()
        return vocabulary.encode(
            text.decode("utf-8", "replace"), add_special=add_bos, parse_special=special
        )

    def detokenize(
        self,
        tokens: Sequence[int],
        prev_tokens: Sequence[int] | None = None,
        special: bool = False,
    ) -> bytes:
        """The text of ids, in bytes; special tokens are left out unless `special` is set."""
        vocabulary = self.model.prompts.vocabulary()
        kept = [id for id in tokens if special or not vocabulary.is_special(id)]
        data = b"".join(map(vocabulary.token_bytes, kept))
        begins = bool(tokens) and tokens[0] == self.token_bos()
        return data[1:] if begins and data[:1] == b" " else data

    def n_ctx(self) -> int:
        """Tokens of the context."""
        return self.model.context_length

    def n_vocab(self) -> int:
        """Tokens of the vocabulary."""
        return self.model.engine.vocabulary

    def n_embd(self) -> int:
        """Numbers of a row of `embed`."""
        return token_rows(self.model.engine, [np.zeros(1, np.int32)])[0].shape[1]

    def token_bos(self) -> int:
        """The token that begins a text; −1 without."""
        return _or_none(self.model.prompts.vocabulary().bos)

    def token_eos(self) -> int:
        """The token that ends a text; −1 without."""
        return _or_none(self.model.prompts.vocabulary().eos)

    def token_nl(self) -> int:
        """The last token of a line break."""
        return self.tokenize(b"\n", add_bos=False)[-1]

    @property
    def metadata(self) -> dict[str, str]:
        """The file's values as texts, without lists."""
        values = self.model.source.metadata.items()
        return {key: str(v) for key, v in values if isinstance(v, (str, int, float, bool))}

    # state

    def reset(self) -> None:
        """Does nothing: requests do not depend on one another."""

    def set_seed(self, seed: int) -> None:
        """Sets the seed of all answers."""
        self._seed = seed

    def set_cache(self, cache: Any) -> None:
        """Does nothing: the latest prompts are cached already."""

    def save_state(self) -> LlamaState:
        """A copy of the latest prompt and answer in the cache, for `load_state`."""
        count, data = self.model.slots.save()
        return LlamaState(count, b"".join(data), self._seed)

    def load_state(self, state: LlamaState) -> None:
        """Has prompts go on from a saved state: give the whole prompt again, and what the state has
        of it is not computed."""
        self.model.slots.load(state.llama_state, None, "the LlamaState")
        self._seed = state.seed

    # texts

    def create_completion(
        self,
        prompt: str | Sequence[int],
        suffix: str | None = None,
        max_tokens: int | None = 16,
        temperature: float = 0.8,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        logprobs: int | None = None,
        echo: bool = False,
        stop: str | Sequence[str] | None = (),
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        top_k: int = 40,
        stream: bool = False,
        seed: int | None = None,
        model: str | None = None,
        logits_processor: Sequence[Any] | None = None,
        grammar: LlamaGrammar | None = None,
        logit_bias: Mapping[Any, float] | None = None,
        **options: Any,
    ) -> Any:
        """Continues a prompt: a dict, or with `stream` a generator of dicts.

        Args:
            max_tokens: None or 0 goes on to the end of the context.
            logprobs: log-probabilities of each token and of so many likely ones.
            echo: the prompt is part of the text.
            model: its name in the result.

        Raises:
            Unsupported: `suffix`, `echo` with `logprobs`, or an option that cannot be honoured.
            Error: as `LoadedModel.generate`.
        """
        refuse_others({"suffix": suffix, **options}, self.create_completion)
        if echo and logprobs is not None:
            raise Unsupported("echo with logprobs is unsupported; score(prompt) has the prompt's")
        request: dict[str, Any] = self._request(
            max_tokens, stop, grammar, logits_processor, seed, locals()
        )
        if logprobs is not None:
            request |= {"logprobs": True, "top_logprobs": logprobs}
        text = prompt if isinstance(prompt, str) else self.model.detokenize(prompt)
        begun, offset = text if echo else "", None if logprobs is None else len(text)
        response = Response(self.model, model or self.model_path, "text_completion")
        if stream:
            return response.chunks(self.model.stream(prompt, **request), begun, offset)
        return response.completion(self.model.generate(prompt, **request), begun, offset)

    __call__ = create_completion

    def create_chat_completion(
        self,
        messages: Sequence[Mapping[str, Any]],
        functions: Sequence[Mapping[str, Any]] | None = None,
        function_call: str | Mapping[str, Any] | None = None,
        tools: Sequence[Any] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        temperature: float = 0.2,
        top_p: float = 0.95,
        top_k: int = 40,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        stream: bool = False,
        stop: str | Sequence[str] | None = (),
        seed: int | None = None,
        response_format: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        model: str | None = None,
        logits_processor: Sequence[Any] | None = None,
        grammar: LlamaGrammar | None = None,
        logit_bias: Mapping[Any, float] | None = None,
        logprobs: bool | None = None,
        top_logprobs: int | None = None,
        **options: Any,
    ) -> Any:
        """Answers messages: a dict, or with `stream` a generator of dicts.

        Raises:
            Unsupported: an option that cannot be honoured.
            Error: as `LoadedModel.chat`.
        """
        refuse_others(options, self.create_chat_completion)
        request = self._request(max_tokens, stop, grammar, logits_processor, seed, locals())
        if logprobs and stream:
            raise Unsupported("logprobs of a streamed chat are unsupported; leave out stream")
        if logprobs:
            request |= {"logprobs": True, "top_logprobs": top_logprobs or 0}
        if functions:
            tools = [{"type": "function", "function": dict(one)} for one in functions]
            tool_choice = function_call
        request |= {"tools": tools, "tool_choice": tool_choice, "template": self._template}
        request["response_format"] = response_format
        asked = [message(one) for one in messages]
        response = Response(self.model, model or self.model_path, "chat.completion")
        if stream:
            return response.chat_chunks(self.model.chat(asked, stream=True, **request))
        return response.chat(self.model.chat(asked, **request), bool(logprobs))

    def create_chat_completion_openai_v1(self, *args: Any, **options: Any) -> Any:
        """`create_chat_completion` with objects of the package openai, which must be installed."""
        from openai.types.chat import ChatCompletion, ChatCompletionChunk

        made = self.create_chat_completion(*args, **options)
        if options.get("stream"):
            return (ChatCompletionChunk.model_validate(chunk) for chunk in made)
        return ChatCompletion.model_validate(made)

    def generate(self, tokens: Sequence[int], **options: Any) -> Iterator[int]:
        """The tokens that go on with others, to the end of the answer or of the context."""
        chosen = {"top_p": 0.95, "min_p": 0.05, **others(options, ("reset",))}
        if "temp" in chosen:
            chosen["temperature"] = chosen.pop("temp")
        processors, grammar = chosen.pop("logits_processor", None), chosen.pop("grammar", None)
        refuse_others({k: chosen[k] for k in chosen.keys() - {*_SAMPLING, "top_k"}}, self.generate)
        request = self._request(None, (), grammar, processors, None, chosen)
        with self.model.stream([*tokens], **request) as stream:
            for piece in stream:
                yield piece.token

    def _request(
        self,
        max_tokens: int | None,
        stop: str | Sequence[str] | None,
        grammar: LlamaGrammar | None,
        processors: Sequence[Any] | None,
        seed: int | None,
        values: Mapping[str, Any],
    ) -> dict[str, Any]:
        """The options of a request.

        Args:
            values: those of the sampler, among others.
        """
        seed = self._seed if seed is None else seed
        sampling = {name: values[name] for name in _SAMPLING if name in values}
        sampling |= {"top_k": max(0, values.get("top_k", 40)), "repeat_last_n": self._looks_back}
        sampling["seed"] = -1 if seed in _RANDOM else seed
        bias = values.get("logit_bias")
        sampling["logit_bias"] = None if bias is None else {int(k): v for k, v in bias.items()}
        sampler = Sampler(**sampling)
        if processors:
            sampler = _Processed(**sampling)
            sampler.processors = processors
        stops = [stop] if isinstance(stop, str) else [*(stop or ())]
        request: dict[str, Any] = {"sampler": sampler, "prompt_lookup": self._drafts}
        request["stop"] = [*stops, *([self._stop] if self._stop else [])]
        request["grammar"] = grammar.grammar if isinstance(grammar, LlamaGrammar) else grammar
        if max_tokens is not None and max_tokens > 0:
            request["max_tokens"] = max_tokens
        return request

    # rows

    def embed(
        self,
        input: str | Sequence[str],
        normalize: bool = False,
        truncate: bool = True,
        return_count: bool = False,
    ) -> Any:
        """A row of numbers for each text, or for each of its tokens where there is no pooling; of
        one text without the list around them.

        Raises:
            ConfigError: the model was not loaded with `embedding=True`.
            Error: as `LoadedModel.embed`.
        """
        if not self._embeds:
            raise ConfigError("embeddings need Llama(model_path, embedding=True)")
        texts = [input] if isinstance(input, str) else list(input)
        ids = self.model.embedding_ids(texts, truncate=truncate)
        pooling = self._pooling
        if pooling == _FROM_FILE:
            keys = self.model.source.metadata
            pooling = keys.get(f"{self.model.report.architecture}.pooling_type", _NO_POOLING)
        if pooling == _NO_POOLING:
            each = self.model.states_of_tokens(ids)
            rows = [(normalized(one) if normalize else one).tolist() for one in each]
        else:
            name: Any = BY_NUMBER[pooling]
            rows = self.model.embed_ids(ids, pooling=name, normalize=normalize).tolist()
        rows = rows[0] if isinstance(input, str) else rows
        return (rows, sum(map(len, ids))) if return_count else rows

    def create_embedding(
        self, input: str | Sequence[str], model: str | None = None
    ) -> dict[str, Any]:
        """The rows of `embed` as a dict of OpenAI's shape."""
        texts = [input] if isinstance(input, str) else list(input)
        rows, count = self.embed(texts, return_count=True)
        data = [
            {"object": "embedding", "embedding": row, "index": index}
            for index, row in enumerate(rows)
        ]
        usage = {"prompt_tokens": count, "total_tokens": count}
        return {"object": "list", "data": data, "model": model or self.model_path, "usage": usage}


def _or_none(token: int | None) -> int:
    return -1 if token is None else token
