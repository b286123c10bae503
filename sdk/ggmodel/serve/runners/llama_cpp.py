"""A model in a process of llama.cpp's server, seen from the server's event loop."""

from __future__ import annotations

import asyncio
import importlib.util
import math
import secrets
import shutil
import struct
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ...chat.messages import fitting, is_place, take_items
from ...errors import Cancelled, ConfigError, DeviceLost, Error, PromptError, Unsupported
from ...platforms import machine
from ..requests import (
    Adapt,
    ChatParams,
    Detokenize,
    Embed,
    Event,
    Failure,
    Rank,
    Ranks,
    Render,
    Request,
    Rows,
    SlotCall,
    SlotChanged,
    Started,
    State,
    Strengths,
    Text,
    Tokenize,
    Tokens,
    Transcribe,
    Transcript,
)
from .client import Admit, Child, Needs
from .llama_http import (
    HTTPPeer,
    advised,
    as_base64,
    body_of,
    cut_to,
    events_of,
    finished_of,
    progress_of,
)
from .protocol import error_of

PROGRAM, PACKAGE = "llama-server", "xllamacpp"
_MODULE = "ggmodel.serve.runners.llama_process"
_ENDING = 512  # characters of a rendered text's end
_TAKEN = {  # options of loading
    *("context_length", "parallel", "threads", "batch_size", "gpu_layers", "mmproj"),
    *("flash_attention", "kv_type", "cache_ram"),
}
_MEANINGLESS = {"backend", "optimize", "models", "strict", "prefix_store", "prefix_store_size"}


def program() -> str | None:
    """The installed llama.cpp that models are handed to; None if there is none."""
    path = shutil.which(PROGRAM)
    return path or (PACKAGE if importlib.util.find_spec(PACKAGE) is not None else None)


class LlamaCppRunner:
    """A `Runner` that hands requests to llama.cpp's server; made by `start`.

    Attributes:
        name: the model's, for messages. pid: of the process.
        needs: the memory of its model: the size of its file.
    """

    silent = False
    _child: Child
    pid: int
    _peer: HTTPPeer

    def __init__(self, name: str):
        self.name, self.needs = name, Needs(0)
        self._ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._ready_message: dict[str, Any] = {}
        self._marker, self._closed, self._busy = "", False, 0

    @classmethod
    async def start(
        cls, path: Path, options: Mapping[str, Any], *, name: str, admit: Admit | None = None
    ) -> LlamaCppRunner:
        """Starts the process and waits until it has loaded its model.

        Raises:
            Error: the model cannot be loaded, an option has no counterpart, or llama.cpp is
                missing.
        """
        for option, value in options.items():
            if option not in _TAKEN | _MEANINGLESS and value is not None:
                raise Unsupported(f"llama.cpp's server has no option {option}; leave it out")
        self, token = cls(name), secrets.token_urlsafe(32)
        size = path.stat().st_size
        self.needs = Needs(size, _free_memory(), size)
        while admit is not None and not await admit(self.needs):
            self.needs = Needs(size, _free_memory(), size)
        taken = {name: value for name, value in options.items() if name in _TAKEN}
        first = {"model": str(path), "token": token, "options": taken}
        self._child = Child(_MODULE, first, self._on_message)
        self.pid = self._child.pid
        ended = asyncio.ensure_future(self._child.ended.wait())
        try:
            await asyncio.wait([self._ready, ended], return_when=asyncio.FIRST_COMPLETED)
            if not self._ready.done():
                raise DeviceLost(f"llama.cpp {self._child.post_mortem} as it loaded {name}")
            self._ready_message = self._ready.result()
            self._peer = HTTPPeer(name, self._ready_message["port"], token)
            await self._describe(path)
        except BaseException:
            await self._child.end()
            raise
        finally:
            ended.cancel()
        return self

    def _on_message(self, message: dict[str, Any]) -> None:
        if self._ready.done():
            return
        if message.get("event") == "ready":
            self._ready.set_result(message)
        elif message.get("event") == "failed":
            self._ready.set_exception(error_of(Failure(message["error"], message["message"])))

    async def _describe(self, path: Path) -> None:
        props, models = await asyncio.gather(self._peer.ask("/props"), self._peer.ask("/v1/models"))
        about = models["data"][0].get("meta") or {}
        metadata, kind = self._ready_message["metadata"], self._ready_message["kind"]
        template = props.get("chat_template") or ""
        self._marker = props.get("media_marker") or "<__media__>"
        modalities = {"vision": "image", "audio": "audio", "video": "video"}
        abilities = [kind]
        if kind == "completion" and template:
            abilities += ["chat"] + ["tools"] * ("tools" in template)
            abilities += ["thinking"] * ("<think>" in template or "enable_thinking" in template)
        self._state = State(
            engine="llama.cpp",
            path=str(path),
            architecture=str(metadata.get("general.architecture", "")),
            kinds=[modalities[k] for k, has in props.get("modalities", {}).items() if has],
            abilities=abilities,
            context_length=props["default_generation_settings"]["n_ctx"],
            trained_context=about.get("n_ctx_train", 0),
            parallel=props["total_slots"],
            vocabulary=about.get("n_vocab", 0),
            width=about.get("n_embd", 0),
            nbytes=about.get("size", 0),
            parameters=about.get("n_params", 0),
            quantization=about.get("ftype") or props.get("model_ftype", ""),
            template=template,
            special_tokens={n: props[n] for n in ("bos_token", "eos_token") if props.get(n)},
            metadata=metadata,
            sampling=advised(metadata),
        )

    @property
    def ended(self) -> bool:
        """Whether its process has ended."""
        return self._closed or self._child.ended.is_set()

    @property
    def state(self) -> State:
        return self._state.having(self._busy)

    # texts

    async def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        if request.prompt_logprobs is not None:
            raise Unsupported("llama.cpp's server gives no log-probabilities of prompts")
        body = body_of(request, self._ready_message["metadata"])
        given, most = request.prompt, self._most(request.options)
        if isinstance(given, ChatParams) and most is not None:
            given = await self._fitting(given, most)
        ids, ending, prompt = await self._prompt(given)
        if prompt is ids and most is not None and not isinstance(given, ChatParams):
            kept = max(0, min(request.options.get("num_keep", 0), most - 1))
            ids = prompt = [*ids[:kept], *ids[kept - most :]] if len(ids) > most else ids
        body |= {"prompt": prompt, "return_progress": request.progress}
        if request.special:
            body["preserved_tokens"] = self._ready_message["control"]
        wants = bool(request.options.get("logprobs") or request.options.get("top_logprobs"))
        listed = int(request.options.get("top_logprobs") or 0)
        self._busy += 1
        try:
            yield Started(ids, ending)
            async for event in self._events("/completion", body):
                if event.get("prompt_progress"):
                    yield progress_of(event)
                    continue
                for piece in events_of(event, wants, listed):
                    yield piece
                if event["stop"]:
                    yield finished_of(event)
                    return
            raise DeviceLost(f"llama.cpp's answer for {self.name} broke off")
        finally:
            self._busy -= 1

    async def _events(self, path: str, body: Any) -> AsyncIterator[Any]:
        try:
            async for event in self._peer.events(path, body):
                yield event
        except DeviceLost as error:
            raise self._lost(error) from error

    async def _ask(self, path: str, body: Any = None) -> Any:
        if self._closed:
            raise Cancelled(f"the server unloads {self.name}")
        try:
            return await self._peer.ask(path, body)
        except DeviceLost as error:
            raise self._lost(error) from error

    def _lost(self, error: DeviceLost) -> Error:
        if self._closed:
            return Cancelled(f"the server unloads {self.name}")
        return error

    async def _prompt(self, prompt: ChatParams | str | list[Any]) -> tuple[list[int], str, Any]:
        """The ids of a prompt, the end of its text, and the prompt as llama-server takes it."""
        if isinstance(prompt, ChatParams):
            text, items = await self._rendered(prompt)
            if items:
                ids = await self._ids(text.replace(self._marker, ""))
                data = {"prompt_string": text, "multimodal_data": items}
                return [*ids, *[-1] * len(items)], text[-_ENDING:], data
            ids = await self._ids(text)
            return ids, text[-_ENDING:], ids
        ids = list[int]()
        for i, part in enumerate([prompt] if isinstance(prompt, str) else prompt):
            if isinstance(part, str):
                ids += await self._ids(part, add_special=i == 0)
            elif isinstance(part, int):
                ids.append(part)
            else:
                raise Unsupported("llama.cpp's server takes images and audio in chats only")
        if not ids:
            raise PromptError("the prompt is empty; give at least one token")
        return ids, "", ids

    def _most(self, options: Mapping[str, Any]) -> int | None:
        """The tokens to which a prompt is shortened; None where it is not to be."""
        if not options.get("truncate"):
            return None
        context, max_tokens = self._state.context_length, options.get("max_tokens")
        return context - min(context // 4, context if max_tokens is None else max_tokens)

    async def _fitting(self, chat: ChatParams, most: int) -> ChatParams:
        """The chat without its oldest turns, as `LoadedModel.fitting` has it; an image counts as
        one token."""
        loop = asyncio.get_running_loop()

        async def measure(messages: list[dict[str, Any]]) -> bool:
            return len((await self._prompt(replace(chat, messages=messages)))[0]) <= most

        def fits(messages: list[dict[str, Any]]) -> bool:
            return asyncio.run_coroutine_threadsafe(measure(messages), loop).result()

        return replace(chat, messages=await asyncio.to_thread(fitting, chat.messages, fits))

    async def _ids(self, text: str, add_special: bool = True, special: bool = True) -> list[int]:
        body = {"content": text, "add_special": add_special, "parse_special": special}
        return (await self._ask("/tokenize", body))["tokens"]

    async def _rendered(self, chat: ChatParams) -> tuple[str, list[str]]:
        """The text of a chat, its items' places marked, and these in base64."""
        if chat.template is not None:
            raise Unsupported("llama.cpp's server takes no other template than the file's")
        messages, items = take_items(chat.messages)
        for message in messages:
            if isinstance(message.get("content"), list):
                marked = {"type": "text", "text": self._marker}
                parts = [marked if is_place(part) else part for part in message["content"]]
                message["content"] = parts
        body = {"messages": messages, "chat_template_kwargs": chat.variables}
        if chat.tools:
            body["tools"] = chat.tools
        if chat.messages and chat.messages[-1].get("role") == "assistant" and not chat.continues:
            body["continue_final_message"] = False
        text = (await self._ask("/apply-template", body))["prompt"]
        return text, [as_base64(item) for _, item in items]

    async def tokenize(self, request: Tokenize) -> Tokens:
        if isinstance(request.text, ChatParams):
            ids, *_ = await self._prompt(request.text)
        else:
            ids = await self._ids(request.text, request.add_special, request.special)
        body = {"tokens": [id for id in ids if id >= 0]}
        pieces = (await self._ask("/detokenize", body))["content"] if len(ids) == 1 else None
        if pieces is not None:
            return Tokens(ids, [pieces.encode()])
        each = await asyncio.gather(*(self._piece(id) for id in dict.fromkeys(ids)))
        by_id = dict(zip(dict.fromkeys(ids), each, strict=True))
        return Tokens(ids, [by_id[id] for id in ids])

    async def _piece(self, id: int) -> bytes:
        if id < 0:
            return b""
        return (await self._ask("/detokenize", {"tokens": [id]}))["content"].encode()

    async def detokenize(self, request: Detokenize) -> Text:
        return Text((await self._ask("/detokenize", {"tokens": request.ids}))["content"])

    async def adapt(self, request: Adapt) -> Strengths:
        return Strengths({})

    async def slot(self, request: SlotCall) -> SlotChanged:
        raise Unsupported("slots of llama.cpp's server are not saved from here")

    async def render(self, request: Render) -> Text:
        return Text((await self._rendered(request.chat))[0])

    # rows

    async def embed(self, request: Embed) -> Rows:
        if request.pooling is not None:
            raise Unsupported("llama.cpp's server takes the file's pooling; leave pooling out")
        if request.prompt_name is not None:
            raise Unsupported(
                "llama.cpp's server knows no prompts by name; write it before the text"
            )
        texts = [await self._ids(t) if isinstance(t, str) else t for t in request.texts]
        if request.truncate:
            most = self._state.context_length
            texts = [[*t[: most - 1], t[-1]] if len(t) > most else t for t in texts]
        body = {"content": texts, "embd_normalize": 2 if request.normalize else -1}
        results = sorted(await self._ask("/embeddings", body), key=lambda one: one["index"])
        rows = [one["embedding"][0] for one in results]
        if (most := request.dimensions) is not None:
            if not 1 <= most <= len(rows[0]):
                raise ConfigError(f"dimensions is {most}; rows of this model have {len(rows[0])}")
            rows = [cut_to(row, most, request.normalize) for row in rows]
        data = b"".join(struct.pack(f"<{len(row)}f", *row) for row in rows)
        return Rows(data, len(rows), len(rows[0]), [len(t) for t in texts])

    async def rank(self, request: Rank) -> Ranks:
        if "rerank" not in self._state.abilities:
            raise Unsupported(f"{self.name} has no head that ranks documents")
        body = {"query": request.query, "documents": request.documents}
        results = (await self._ask("/v1/rerank", body))["results"]
        scores = {one["index"]: one["relevance_score"] for one in results}
        query, *each = await asyncio.gather(
            *(self._ids(text) for text in (request.query, *request.documents))
        )
        tokens = [len(query) + len(ids) for ids in each]
        listed = [scores[i] for i in range(len(request.documents))]
        # Qwen3's rerankers give probabilities anyway.
        if request.normalize and not self._state.architecture.startswith("qwen3"):
            listed = [0.5 + 0.5 * math.tanh(score / 2) for score in listed]
        return Ranks(listed, tokens)

    async def transcribe(self, request: Transcribe) -> Transcript:
        raise Unsupported(
            "llama.cpp's server does not transcribe; load a Whisper or a Voxtral with ggmodel"
        )

    async def close(self) -> None:
        self._closed = True
        await self._child.end()


def _free_memory() -> int:
    """Bytes that the system can give; a large number where it does not say."""
    if sys.platform != "linux":
        return machine.memory().free
    try:
        with open("/proc/meminfo") as lines:
            fields = dict(line.split(":", 1) for line in lines)
        return int(fields["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError):
        return sys.maxsize
