"""Dicts of the shapes of OpenAI's API, as llama-cpp-python returns them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from ..chat.functions import new_call_id
from ..runner import ChatCompletion, ChatStream, Completion, LoadedModel, Stream, Usage
from ..tokenizer import Tokenizer


class Response:
    """One response, whose parts share an id and a time.

    Args:
        model: its name in the response.
        kind: "text_completion" or "chat.completion".
    """

    def __init__(self, loaded: LoadedModel, model: str, kind: str):
        prefix = "cmpl" if kind == "text_completion" else "chatcmpl"
        self._head = {"id": f"{prefix}-{uuid.uuid4()}", "created": int(time.time())}
        self._loaded, self._model, self._kind = loaded, model, kind

    @property
    def _tokenizer(self) -> Tokenizer:
        return self._loaded.prompts.vocabulary()

    def completion(self, done: Completion, begun: str, offset: int | None) -> dict[str, Any]:
        """A whole text.

        Args:
            begun: the prompt, where it is part of the text.
            offset: characters before the text; None leaves log-probabilities out.
        """
        logprobs = None if offset is None else self._logprobs(done, offset)
        choice = {"text": begun + str(done), "index": 0, "logprobs": logprobs}
        choices = [{**choice, "finish_reason": done.finish_reason}]
        return {**self._begin(), "choices": choices, "usage": _usage(done.usage)}

    def chunks(self, stream: Stream, begun: str, offset: int | None) -> Iterator[dict[str, Any]]:
        """The parts of a text as it comes; see `completion`."""

        def chunk(text: str, logprobs: Any = None, reason: str | None = None) -> dict[str, Any]:
            choice = {"text": text, "index": 0, "logprobs": logprobs, "finish_reason": reason}
            return {**self._begin(), "choices": [choice]}

        with stream:
            if begun:
                yield chunk(begun)
            for piece in stream:
                logprobs = None
                if offset is not None and piece.logprob is not None:
                    one = [piece.token], [piece.logprob], [piece.top_logprobs]
                    logprobs = self._listed(*one, offset)
                    offset += len(piece)
                if piece or logprobs is not None:
                    yield chunk(str(piece), logprobs)
            yield chunk("", reason=stream.finish_reason)

    def chat(self, done: ChatCompletion, with_logprobs: bool) -> dict[str, Any]:
        """A whole reply."""
        message: dict[str, Any] = {"role": "assistant", "content": str(done)}
        calls = [_call(call.id, call.name, call.arguments) for call in done.tool_calls]
        if calls:
            message |= {"content": str(done) or None, "tool_calls": calls}
        if len(calls) == 1:
            message["function_call"] = calls[0]["function"]
        if done.reasoning:
            message["reasoning_content"] = done.reasoning
        choice = {
            "index": 0,
            "message": message,
            "logprobs": self._chat_logprobs(done) if with_logprobs else None,
            "finish_reason": "tool_calls" if calls else done.finish_reason,
        }
        return {**self._begin(), "choices": [choice], "usage": _usage(done.usage)}

    def chat_chunks(self, stream: ChatStream) -> Iterator[dict[str, Any]]:
        """The parts of a reply as it comes; calls at its end."""

        def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
            return {**self._begin(".chunk"), "choices": [choice]}

        with stream:
            yield chunk({"role": "assistant"})
            for piece in stream:
                if piece.reasoning:
                    yield chunk({"reasoning_content": piece.reasoning})
                if piece:
                    yield chunk({"content": str(piece)})
            calls = stream.reply.tool_calls
            for index, call in enumerate(calls):
                made = {"index": index, **_call(call.id, call.name, call.arguments)}
                yield chunk({"tool_calls": [made]})
            yield chunk({}, "tool_calls" if calls else stream.finish_reason)

    def _begin(self, suffix: str = "") -> dict[str, Any]:
        return {**self._head, "object": self._kind + suffix, "model": self._model}

    def _logprobs(self, done: Completion, offset: int) -> dict[str, Any]:
        tops = done.top_logprobs or [None] * len(done.tokens)
        return self._listed(done.tokens, done.logprobs or [], tops, offset)

    def _listed(
        self, tokens: Sequence[int], logprobs: Sequence[float], tops: Sequence[Any], at: int
    ) -> dict[str, Any]:
        texts, offsets = [self._text(token) for token in tokens], list[int]()
        for text in texts:
            offsets.append(at)
            at += len(text)
        likely = [
            {**{self._text(id): value for id, value in top or ()}, text: logprob}
            for text, logprob, top in zip(texts, logprobs, tops, strict=True)
        ]
        return {
            "tokens": texts,
            "text_offset": offsets,
            "token_logprobs": list(logprobs),
            "top_logprobs": likely,
        }

    def _chat_logprobs(self, done: Completion) -> dict[str, Any]:
        def told(token: int, logprob: float) -> dict[str, Any]:
            data = self._tokenizer.token_bytes(token)
            return {"token": self._text(token), "logprob": logprob, "bytes": list(data)}

        tops = done.top_logprobs or [[]] * len(done.tokens)
        each = zip(done.tokens, done.logprobs or (), tops, strict=True)
        content = [
            {**told(token, logprob), "top_logprobs": [told(*one) for one in top]}
            for token, logprob, top in each
        ]
        return {"content": content, "refusal": None}

    def _text(self, token: int) -> str:
        return self._tokenizer.token_bytes(token).decode("utf-8", "replace")


def _call(id: str, name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": f"call_{id or new_call_id()}", "type": "function", "function": function}


def _usage(usage: Usage) -> dict[str, int]:
    prompt, answer = usage.prompt_tokens, usage.completion_tokens
    counts = {"prompt_tokens": prompt, "completion_tokens": answer}
    return {**counts, "total_tokens": prompt + answer}
