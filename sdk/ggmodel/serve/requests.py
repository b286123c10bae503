"""Requests to a runner, the events of its answers, and the contract of a runner.

An API turns its own requests into these, and these events into its own answers.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Literal, Protocol

from msgspec import Struct, field


class GrammarSpec(Struct, frozen=True):
    """The form that an answer must have.

    Attributes:
        kind: "json_schema", "regex", "lark" or "choice", as the class methods of `Grammar` take
            their text; "json" is any JSON object; "gbnf" is llama.cpp's.
        text: the schema as JSON text, the expression, the grammar, or the choices as a JSON list.
    """

    kind: Literal["json_schema", "regex", "lark", "choice", "json", "gbnf"]
    text: str = ""


class ChatParams(Struct, omit_defaults=True):
    """A chat, whatever API it came by: a prompt that the model's chat template makes of messages.

    Attributes:
        messages: as `LoadedModel.chat` takes them. Images and other items are data URLs or bytes;
            never paths or addresses, which the server has fetched or refused before.
        tools: JSON schemas of functions, as OpenAI spells them.
        template: Jinja text, or the name of another template of the file; None takes the file's.
        variables: of the template.
        continues: the last message is an answer that has begun, and goes on.
        choice: "auto", "none" or "required"; this and the rest are the server's affair, which makes
            a grammar of them.
        function: the name of the one that is required; None for any.
        parallel: several calls in an answer are welcome.
        strict: calls obey the schemas of their functions.
        custom: names of the functions whose calls are one text, their only argument.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    template: str | None = None
    variables: dict[str, Any] = field(default_factory=dict)
    continues: bool = False
    choice: Literal["auto", "none", "required"] = "auto"
    function: str | None = None
    parallel: bool = True
    strict: bool = False
    custom: list[str] = field(default_factory=list)


class Request(Struct):
    """Asks for a text.

    Attributes:
        prompt: a chat, a text, token ids, or a list that mixes texts, ids and items as parts of a
            message.
        options: as `RequestOptions` calls them, but for grammar, sampler and items. `truncate`
            leaves out the oldest turns of a chat, and the middle of another prompt.
        grammar: the form that the text has to obey.
        special: special tokens are part of the text; without them it reads as `generate` gives it.
        progress: tell how far the prefill is, by `PromptProgress`.
        slot: the number of the slot that has to compute it; None for any.
        prompt_logprobs: how many of the likeliest tokens to tell at each place of the prompt, 0 for
            the prompt's own alone; None for no log-probabilities of the prompt.
    """

    prompt: ChatParams | str | list[Any]
    options: dict[str, Any] = field(default_factory=dict)
    grammar: GrammarSpec | None = None
    special: bool = False
    prompt_logprobs: int | None = None
    progress: bool = False
    slot: int | None = None


class Token(Struct, array_like=True):
    """A token with its log-probability, and the likeliest at its place.

    Attributes:
        text: its bytes as text; bytes that are no whole character by U+FFFD.
        data: its bytes.
        logprob: None at the beginning of a prompt.
    """

    id: int
    text: str
    data: bytes
    logprob: float | None = None
    top: list[Token] = field(default_factory=list)


class Started(Struct, tag=True):
    """The prompt is read: it is no error of the caller, and waits for its turn.

    Attributes:
        prompt: its token ids; −1 in the place of images and other items.
        ending: the end of the rendered text of a chat, in which a parser sees what the template has
            already begun, such as a thought.
        tokens: the prompt's with their log-probabilities, where asked for.
    """

    prompt: list[int]
    ending: str = ""
    tokens: list[Token] | None = None


class PromptProgress(Struct, tag=True):
    """A step of the prefill; the first one before any.

    Attributes:
        total: positions of the prompt. reused: of these, those taken from the cache.
        processed: those that are computed, with the reused ones.
        seconds: since the request got its slot.
    """

    total: int
    reused: int
    processed: int
    seconds: float


class TokenEvent(Struct, tag=True):
    """The contribution of one token.

    Attributes:
        text: may be empty.
        token: None unless log-probabilities or ids were asked for.
    """

    text: str
    id: int = -1
    token: Token | None = None


class CapturedRows(Struct):
    """Results of a module for the tokens of a request.

    Attributes:
        shape: tokens and width. data: float32 little-endian, row after row; base64 in JSON.
    """

    shape: tuple[int, int]
    data: bytes


class Steps(Struct, frozen=True, array_like=True):
    """Steps of the model since it was loaded, and the sequences in them added up.

    Attributes:
        process: another one each time that the model is loaded; "" tells no steps.
    """

    process: str = ""
    count: int = 0
    sequences: int = 0


class Finished(Struct, tag=True):
    """The answer is complete.

    Attributes:
        reason: "stop" or "length".
        stop: the stop string that ended it; None at the model's own end.
        prompt_tokens: positions of the prompt. reused_tokens: those of them taken from the cache.
        prompt_seconds, decode_seconds: as `Usage` has them. queue_seconds: before the first step.
        drafts, drafted, accepted: as `Usage` has them.
        reasoning_tokens: those of thoughts, counted by the one who reads the answer.
        captured: name of a module → its results; None where nothing was to be captured.
    """

    reason: Literal["stop", "length"]
    prompt_tokens: int
    completion_tokens: int
    stop: str | None = None
    reused_tokens: int = 0
    prompt_seconds: float = 0.0
    decode_seconds: float = 0.0
    queue_seconds: float = 0.0
    drafted: int = 0
    accepted: int = 0
    reasoning_tokens: int = 0
    captured: dict[str, CapturedRows] | None = None
    drafts: int = 0
    steps: Steps = Steps()


Event = Started | PromptProgress | TokenEvent | Finished


class Embed(Struct):
    """Asks for rows of numbers, one a text.

    Attributes:
        pooling: as `LoadedModel.embed` calls it; "none" gives a row a token; None takes the file's.
        truncate: cut texts that are too long at their end.
        dimensions: the first of each row only, made of length 1 again where `normalize`.
        prompt_name: of a prompt of the file that is put before texts; None takes its default.
        adapters: names of those to compute with; None takes the strengths for all requests.
    """

    texts: list[str | list[int]]
    pooling: str | None = None
    normalize: bool = True
    truncate: bool = False
    dimensions: int | None = None
    prompt_name: str | None = None
    adapters: list[str] | None = None


class Rows(Struct):
    """Embeddings: float32 little-endian, row after row.

    Attributes:
        data: `count` × `width` floats.
        tokens: of each text.
    """

    data: bytes
    count: int
    width: int
    tokens: list[int]
    steps: Steps = Steps()


class Rank(Struct):
    """Asks how well each document answers a query.

    Attributes:
        normalize: scores from 0 to 1.
    """

    query: str
    documents: list[str]
    normalize: bool = False


class Ranks(Struct):
    """A score a document, higher is better, and the number of tokens of each pair."""

    scores: list[float]
    tokens: list[int]
    steps: Steps = Steps()


class Tokenize(Struct):
    """Asks for token ids, and with `pieces` for the text of each. Special tokens in the text count
    as such if `special`."""

    text: str | ChatParams
    add_special: bool = True
    special: bool = True
    pieces: bool = False


class Tokens(Struct):
    """Token ids, and their texts where asked for."""

    ids: list[int]
    pieces: list[bytes]


class Detokenize(Struct):
    """Asks for the text of token ids."""

    ids: list[int]


class Adapt(Struct):
    """Asks for the adapters.

    Attributes:
        strengths: those that requests get from now on which choose none; adapters that it leaves
            out get 0. None changes nothing.
    """

    strengths: dict[str, float] | None = None


class Strengths(Struct):
    """The adapters, in the order of their loading: name → strength in requests that choose none."""

    strengths: dict[str, float]


class SlotCall(Struct):
    """Asks for a change of a slot.

    Attributes:
        action: "save" to a file, "restore" from one, or "erase".
        path: of the file.
    """

    action: Literal["save", "restore", "erase"]
    slot: int
    path: str = ""


class SlotChanged(Struct):
    """A slot was saved, restored or erased.

    Attributes:
        tokens: that it holds, or held. nbytes: of the file.
    """

    tokens: int
    nbytes: int = 0
    seconds: float = 0.0


class Render(Struct):
    """Asks for the text that the chat template makes."""

    chat: ChatParams


class Text(Struct):
    """An answer that is one text."""

    text: str


class Transcribe(Struct):
    """Asks for the words of a sound.

    Attributes:
        audio: the file's bytes.
        language: a code or a name; None has the model find it.
        translate: into English.
        timestamps: times of the segments.
        prompt: text that might have been said before.
    """

    audio: bytes
    language: str | None = None
    translate: bool = False
    timestamps: bool = False
    prompt: str | None = None
    temperature: float = 0.0


class Segment(Struct):
    """A stretch of speech; seconds from the beginning."""

    start: float
    end: float
    text: str


class Transcript(Struct):
    """Words of a sound."""

    text: str
    language: str | None
    seconds: float
    segments: list[Segment]


class State(Struct):
    """A runner and its model.

    Attributes:
        engine: "ggmodel" or "llama.cpp".
        path: the model's file or folder.
        kinds: what a prompt may hold beside text: "image", "audio", "video".
        abilities: "completion", "chat", "embedding", "rerank", "transcription", "tools",
            "thinking", "infill".
        context_length: positions a sequence may have. trained_context: 0 if unknown.
        parallel: sequences computed together.
        nbytes: memory that weights, cache and graphs take. parameters: numbers in the weights.
        quantization: the main tensor type, such as "Q4_K_M".
        template: the chat template's Jinja text; "" without one.
        response_template: transformers' declaration of the form of answers; None without one.
        special_ids: text → id of the special tokens, of which chats are made.
        special_tokens: "bos_token", "eos_token", … → text.
        end_ids: of the tokens that end an answer; none where they are unknown.
        metadata: GGUF keys but for long lists.
        sampling: options of requests that say nothing of them.
        deterministic: whether answers have the same bits in any batch.
        adapters: their names, in the order of their loading.
        running, waiting: requests now.
    """

    engine: Literal["ggmodel", "llama.cpp"]
    path: str
    architecture: str
    kinds: list[str]
    abilities: list[str]
    context_length: int
    trained_context: int
    parallel: int
    vocabulary: int
    width: int
    nbytes: int
    parameters: int
    quantization: str
    template: str = ""
    response_template: dict[str, Any] | None = None
    special_tokens: dict[str, str] = field(default_factory=dict)
    special_ids: dict[str, int] = field(default_factory=dict)
    end_ids: list[int] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    sampling: dict[str, Any] = field(default_factory=dict)
    deterministic: bool = False
    adapters: list[str] = field(default_factory=list)
    running: int = 0
    waiting: int = 0

    @property
    def build(self) -> str:
        """The program that computes."""
        from .. import __version__

        return f"ggmodel-{__version__}" + "-llama.cpp" * (self.engine == "llama.cpp")

    def having(self, requests: int) -> State:
        """Notes so many requests under way."""
        self.running = min(requests, self.parallel)
        self.waiting = requests - self.running
        return self


class Failure(Struct, tag=True):
    """A request failed.

    Attributes:
        error: the name of the class in `ggmodel.errors`.
        message: for the user.
        tokens, context: of a prompt that is too long; see `PromptTooLong`.
    """

    error: str
    message: str
    tokens: int = 0
    context: int = 0


class Runner(Protocol):
    """A model in another process.

    All methods raise the errors of `ggmodel.errors` that the model raised, `DeviceLost` where the
    process has ended, and `Unsupported` where the engine has no such ability.
    """

    @property
    def name(self) -> str:
        """The model's own name, whatever requests call it."""
        ...

    @property
    def state(self) -> State:
        """The model, as of its loading; `running` and `waiting` as of now."""
        ...

    def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """`Started`, `PromptProgress` where asked for, a `TokenEvent` a token, `Finished`. Closing
        the iterator cancels the request within one step."""
        ...

    async def embed(self, request: Embed) -> Rows: ...

    async def rank(self, request: Rank) -> Ranks: ...

    async def tokenize(self, request: Tokenize) -> Tokens: ...

    async def detokenize(self, request: Detokenize) -> Text: ...

    async def render(self, request: Render) -> Text: ...

    async def adapt(self, request: Adapt) -> Strengths: ...

    async def slot(self, request: SlotCall) -> SlotChanged: ...

    async def transcribe(self, request: Transcribe) -> Transcript: ...

    async def close(self) -> None:
        """Ends the process; requests that run get `Cancelled`. Idempotent."""
        ...
