"""A running server beside a checkpoint: token ids, rendered conversations, log-probabilities.

The endpoints are llama-server's and vLLM's, which ggmodel's server has too. The report
names endpoints that a server lacks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import numpy as np

from ...chat.template import KEY, ChatTemplate
from ...convert.checkpoint_source import CheckpointSource
from ...errors import ConfigError, Error, FormatError
from ...reading import parse_json, read_stream
from ...tokenizer import Tokenizer
from .behaviour import TEXT, TOKENS, loaded
from .report import Certificate
from .words import Rendered, compare_encodings, compare_rendering

_SECONDS = 60.0
_PLACES = 16  # tokens of the text whose successors are asked for
_TOP = 5
_LLAMA_SERVER = "llama.cpp"  # as it names itself
_FAR = 0.7  # nats that a log-probability may be off on average: small types lose as much


class Server:
    """A server.

    Args:
        url: with or without /v1.

    Attributes:
        program: as its first answer names it; "" before.
    """

    def __init__(self, url: str):
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"{url:.200} is no address; give one such as http://127.0.0.1:8080")
        self.url = url.rstrip("/").removesuffix("/v1")
        self.program = ""

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
        """The answer; None if the server has no such endpoint, or refuses the question.

        Raises:
            ConfigError: it does not answer.
            FormatError: the answer is no JSON object.
        """
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("OPENAI_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        request = Request(self.url + path, json.dumps(body).encode(), headers)
        try:
            with urlopen(request, timeout=_SECONDS) as response:
                self.program = self.program or str(response.headers.get("Server", ""))
                answer = parse_json(read_stream(response, self.url + path, "input_bytes"), self.url)
        except HTTPError as error:
            if error.code in (401, 403):
                raise ConfigError(
                    f"{self.url} wants a key ({error.code}); set OPENAI_API_KEY"
                ) from None
            return None
        except (URLError, OSError) as error:
            raise ConfigError(
                f"{self.url} does not answer ({error}); start it, or give another --server"
            ) from None
        if not isinstance(answer, dict):
            raise FormatError(f"{self.url}{path} answers {answer!r:.80}, no JSON object")
        return answer

    def ids(self, text: str, special: bool) -> list[int] | None:
        """Token ids; llama-server's fields and vLLM's, each of which the other one passes over."""
        for body in (
            {"content": text, "add_special": special, "parse_special": True},
            {"prompt": text, "add_special_tokens": special},
        ):
            answer = self.post("/tokenize", body)
            if answer is not None and isinstance(answer.get("tokens"), list):
                return [int(i) for i in answer["tokens"]]
        return None

    def rendered(self, conversation: Mapping[str, Any]) -> str:
        """The text of a conversation.

        Raises:
            Error: the server refuses it.
        """
        body = {k: v for k, v in conversation.items() if k != "enable_thinking"}
        if "enable_thinking" in conversation:
            body["chat_template_kwargs"] = {"enable_thinking": conversation["enable_thinking"]}
        answer = self.post("/apply-template", body)
        if answer is None or not isinstance(answer.get("prompt"), str):
            raise Error("refused")
        return answer["prompt"]

    def likeliest(self, ids: list[int]) -> dict[str, float] | None:
        """Text of a token → log-probability, of the likeliest tokens behind others."""
        body = {"prompt": ids, "max_tokens": 1, "logprobs": _TOP, "temperature": 0}
        answer = self.post("/v1/completions", body)
        try:
            logprobs = (answer or {})["choices"][0]["logprobs"]
            if "top_logprobs" in logprobs:
                return {str(k): float(v) for k, v in logprobs["top_logprobs"][0].items()}
            top = logprobs["content"][0]["top_logprobs"]
            return {str(t["token"]): float(t["logprob"]) for t in top}
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            return None


def certify_server(
    url: str, against: str | Path, *, models: str | Path | None = None
) -> Certificate:
    """Compares a server with the checkpoint that it is said to serve.

    Args:
        url: of llama-server, vLLM, ggmodel or another one with their endpoints.
        against: the folder of a Hugging Face checkpoint.
        models: a folder of architectures, searched first.

    Raises:
        ConfigError: the server does not answer, or wants a key.
        FormatError: the checkpoint is damaged.
        Error: it cannot be loaded, see `CheckpointSource.open`.
    """
    server, found = Server(url), Certificate(url, str(against))
    with CheckpointSource.open(against, models=models) as original:
        metadata = dict(original.metadata)
    found.architecture = str(metadata["general.architecture"])
    if "tokenizer.ggml.model" not in metadata:
        raise ConfigError(f"{against} has no tokenizer; get its files, to compare the server's")
    tokenizer = Tokenizer.from_metadata(metadata)
    if server.ids("a", False) is None:
        found.unchecked.append("the tokenizer: the server has no /tokenize")
    else:
        compare_encodings(lambda text, special: server.ids(text, special) or [], tokenizer, found)
    _compare_template(server, metadata, tokenizer, found)
    _compare_answers(server, Path(against), tokenizer, models, found)
    found.unchecked.append("weights and hyperparameters, but for what the next tokens tell of them")
    return found


def _compare_template(
    server: Server, metadata: Mapping[str, Any], tokenizer: Tokenizer, found: Certificate
) -> None:
    if not isinstance(metadata.get(KEY), str):
        found.unchecked.append("the chat template: the checkpoint has none")
        return
    theirs = ChatTemplate.from_metadata(metadata, tokenizer)
    try:
        server.rendered({"messages": [{"role": "user", "content": "a"}]})
    except Error:
        found.unchecked.append("the chat template: the server has no /apply-template")
        return
    first = _left_out(server, metadata)

    original = Rendered(lambda c: theirs.render(**c))

    def rendered(conversation: dict[str, Any]) -> str:
        text = server.rendered(conversation)
        return first + text if first and original(conversation) == first + text else text

    compare_rendering(Rendered(rendered), original, KEY, found)


def _left_out(server: Server, metadata: Mapping[str, Any]) -> str:
    """The token that a server leaves out before a conversation: llama-server does that with the
    first of a text, which its tokenizer adds."""
    first = metadata.get("tokenizer.ggml.bos_token_id")
    if server.program != _LLAMA_SERVER or first is None:
        return ""
    added = (server.ids("a", True) or [])[:1] == [int(first)]
    tokens: Sequence[str] = metadata["tokenizer.ggml.tokens"]
    return tokens[int(first)] if added else ""


def _may_lack(server: Server, tokenizer: Tokenizer, likeliest: int) -> bool:
    """Whether a server may have no probabilities at a place: an answer that ends at once has no
    token, and llama-server has none for a part of a character."""
    return server.program == _LLAMA_SERVER or likeliest in tokenizer.eog


def _compare_answers(
    server: Server,
    folder: Path,
    tokenizer: Tokenizer,
    models: str | Path | None,
    found: Certificate,
) -> None:
    """Compares the log-probabilities of the likeliest next tokens."""
    ids = tokenizer.encode(TEXT)[:TOKENS]
    places = [*dict.fromkeys(np.linspace(len(ids) // 4, len(ids) - 1, _PLACES).astype(int))]
    replies = {at: server.likeliest(ids[: at + 1]) for at in places}
    lacking = sum(top is None for top in replies.values())
    if 2 * lacking > len(places):
        found.unchecked.append("the next tokens: the server's completions have no logprobs")
        return
    with loaded(folder, models) as model:
        rows = model.logits(ids).astype(np.float64)
    rows -= rows.max(1, keepdims=True)
    rows -= np.log(np.exp(rows).sum(1, keepdims=True))
    if lacking:
        found.unchecked.append(f"{lacking} of {len(places)} places: no probabilities")
    errors: list[float] = []
    same = compared = 0
    for at, reply in replies.items():
        if reply is None and _may_lack(server, tokenizer, int(rows[at].argmax())):
            continue
        top, compared = reply or {}, compared + 1
        own = {tokenizer.decode([int(i)]): float(rows[at, i]) for i in np.argsort(-rows[at])[:50]}
        shared = {text: value for text, value in top.items() if text in own}
        errors += [abs(value - own[text]) for text, value in shared.items()] or [np.inf]
        same += bool(top) and max(top, key=lambda t: top[t]) == next(iter(own))
    mean = float(np.mean(errors))
    found.checked["behaviour"] = f"{len(errors)} log-probabilities of next tokens"
    note = (
        f"log-probabilities are off by {mean:.3g} nats on average; {same} of "
        f"{compared} likeliest tokens are the same"
    )
    found.add("behaviour", "log-probabilities", "/v1/completions", note, fault=not mean <= _FAR)
