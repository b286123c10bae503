"""The JSON of the root's answers, for /openapi.json."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from ..pool import Condition
from .openai.answered import PromptUsage, Timings


class Health(Struct, omit_defaults=True):
    """`models`: their names → conditions; left out for who has none of the server's keys."""

    status: Literal["ok"]
    models: dict[str, Condition] | None = None


class TokenPiece(Struct):
    """The text of a token, or its bytes where they are no text."""

    id: int
    piece: str | list[int]


class Tokenized(Struct, kw_only=True):
    """The count comes to those who give `prompt` or messages."""

    tokens: list[int | TokenPiece]
    count: int = 0
    max_model_len: int = 0
    token_strs: list[str] = []


class Detokenized(Struct):
    prompt: str
    content: str


class TokenizerInfo(Struct):
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    chat_template: str | None
    model_max_length: int
    vocab_size: int


class Rendered(Struct):
    prompt: str


class RankedText(Struct):
    text: str


class Ranked(Struct, kw_only=True):
    index: int
    relevance_score: float
    document: RankedText | None = None


class RankedList(Struct):
    object: Literal["list"]
    model: str
    results: list[Ranked]
    usage: PromptUsage


class RankedPlain(Struct, kw_only=True):
    """As TEI's, for a request with `texts`."""

    index: int
    score: float
    text: str = ""


class Score(Struct):
    index: int
    object: Literal["score"]
    score: float


class ScoreList(Struct):
    object: Literal["list"]
    model: str
    data: list[Score]
    usage: PromptUsage


class Props(Struct):
    default_generation_settings: dict[str, Any]
    total_slots: int
    model_path: str
    chat_template: str
    bos_token: str
    eos_token: str
    modalities: dict[str, bool]
    build_info: str


class Slot(Struct):
    id: int
    n_ctx: int
    speculative: bool
    is_processing: bool


class ContinuedText(Struct, kw_only=True):
    """An answer of llama-server's own endpoint."""

    index: int
    content: str
    tokens: list[int]
    id_slot: int
    stop: bool
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    generation_settings: dict[str, Any]
    prompt: str
    has_new_line: bool
    truncated: bool
    stop_type: Literal["limit", "eos", "word"]
    stopping_word: str
    tokens_cached: int
    timings: Timings
    completion_probabilities: list[dict[str, Any]] = []
