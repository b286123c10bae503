"""Work of a runner: a method for each request that needs the model, and its answers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from msgspec.structs import replace

from ...bounds import limits
from ...chat.messages import LISTS, item_of
from ...errors import ConfigError, PromptError, PromptTooLong, Unsupported
from ...gguf_file.values import KeyValues
from ...runner import Grammar, LoadedModel
from ...runner import Piece as Generated
from ...runner.engine.scoring import Scoring
from ...runner.requests.generation import Generation
from ...runner.requests.prompt_parts import PromptText
from ...runner.sampling import log_probabilities
from ...tokenizer import Tokenizer
from ...transcript import transcribe
from ..requests import (
    Adapt,
    CapturedRows,
    ChatParams,
    Detokenize,
    Embed,
    Event,
    Failure,
    Finished,
    GrammarSpec,
    PromptProgress,
    Rank,
    Ranks,
    Render,
    Request,
    Rows,
    Segment,
    SlotCall,
    SlotChanged,
    Started,
    Steps,
    Strengths,
    Text,
    Token,
    TokenEvent,
    Tokenize,
    Tokens,
    Transcribe,
    Transcript,
)
from .protocol import WINDOW, failure_of

Check = Callable[[], None]
_ENDING = 512  # characters of a rendered text's end
# Compiled forms that are kept, and the length of their texts; of longer ones the latest is.
_GRAMMARS, _GRAMMAR_CHARACTERS = 64, 1 << 16
_NOT_OPTIONS = {"grammar", "sampler", *LISTS}


class Work:
    """Answers requests by a loaded model, from any thread.

    `check` raises Cancelled once nobody waits for the answer; long calls ask it now and then.
    """

    def __init__(self, model: LoadedModel):
        self.model = model
        self._process = os.urandom(8).hex()

    @property
    def steps(self) -> Steps:
        return Steps(self._process, *self.model.engine.computed)

    # texts

    def prepare(self, request: Request, check: Check) -> GenerationEvents:
        """Reads a prompt: opens its items, and computes its log-probabilities where asked for.

        Raises:
            Error: the prompt, an option or the grammar is wrong.
        """
        refused = _NOT_OPTIONS & {*request.options}
        if refused:
            raise ConfigError(f"{min(refused)} is no option of a request to a runner")
        options: dict[str, Any] = dict(request.options)
        prompt, ending = self._prompt(request.prompt, options)
        check()
        if request.grammar is not None:
            options["grammar"] = grammar_of(request.grammar)
        generation = self.model.request(prompt, **options)  # type: ignore[arg-type]
        generation.slot = request.slot
        check()
        if generation.probe is not None:
            generation.probe.captured.most = limits.serve_captured_bytes
        ids = np.where(generation.prompt < 0, -1, generation.prompt).tolist()
        started = Started(ids, ending)
        events = GenerationEvents(self, started, generation, request.special, request.progress)
        if request.prompt_logprobs is not None:
            events.complete = generation.left <= 1
            top = request.prompt_logprobs
            started.tokens = self._scored(generation, ids, top, events.complete, check)
        return events

    def _prompt(
        self, prompt: ChatParams | str | list[Any], options: dict[str, Any]
    ) -> tuple[Any, str]:
        """A prompt as the model takes it, and the end of the text that a template made of it.

        Args:
            options: of the request. A chat is shortened here, where they want that.
        """
        if isinstance(prompt, ChatParams):
            rendered = self._rendered(prompt)
            if options.get("truncate"):
                options["truncate"] = False
                kept = self.model.fitting(prompt.messages, **_template(prompt), **options)
                if len(kept) < len(prompt.messages):
                    rendered = self._rendered(replace(prompt, messages=[*kept]))
            return self.model.prompts.chat(rendered), rendered.text[-_ENDING:]
        if isinstance(prompt, list):
            for part in prompt:
                if not isinstance(part, (str, int)):
                    _need_data(*(item_of(part) or ("item", part)))
        return prompt, ""

    def _rendered(self, chat: ChatParams) -> PromptText:
        rendered = self.model.chat_text(chat.messages, **_template(chat))
        for kind, item in rendered.items:
            _need_data(kind, item)
        return rendered

    def _scored(
        self, generation: Generation, ids: list[int], top: int, complete: bool, check: Check
    ) -> list[Token]:
        """The prompt's tokens with their log-probabilities.

        Args:
            complete: the same logits give the answer, of one token at most.
        """
        begun, tokens = time.perf_counter(), [self.token(ids[0])]

        def take(rows: np.ndarray) -> None:
            check()
            for row in rows:
                if len(tokens) == len(ids):
                    if complete:
                        generation.finish_with(row, time.perf_counter() - begun)
                elif (id := ids[len(tokens)]) < 0:
                    tokens.append(self.token(id))
                else:
                    tokens.append(self.token(id, *log_probabilities(row, id, top)))

        scoring = Scoring(self.model.engine, generation.adapters)
        scoring.each_logits(generation.prompt, take, probe=generation.probe)
        return tokens

    def token(
        self, id: int, logprob: float | None = None, top: list[tuple[int, float]] | None = None
    ) -> Token:
        """A token with its log-probability and the likeliest at its place."""
        data = self.bytes_of(id)
        others = [self.token(*one) for one in top or ()]
        return Token(id, data.decode("utf-8", "replace"), data, logprob, others)

    def bytes_of(self, id: int) -> bytes:
        """The bytes of a token; none of an item, or without a vocabulary."""
        tokenizer = self.model.tokenizer
        in_vocabulary = tokenizer is not None and 0 <= id < tokenizer.size
        return tokenizer.bytes_and_start(id)[0] if tokenizer is not None and in_vocabulary else b""

    def tokenize(self, request: Tokenize, check: Check) -> Tokens:
        """The ids of a text or a chat; −1 in the places of images and other items."""
        if isinstance(request.text, ChatParams):
            rendered = self._rendered(request.text)
            self._need_short(rendered.text)
            numbers = self.model.prompts.numbers(self.model.prompts.chat(rendered))
            ids = [max(-1, int(n)) for n in numbers]
        else:
            self._need_short(request.text)
            ids = self._vocabulary().encode(
                request.text, add_special=request.add_special, parse_special=request.special
            )
        return Tokens(ids, [self.bytes_of(id) for id in ids] if request.pieces else [])

    def _need_short(self, text: str) -> None:
        """Raises PromptTooLong for a text that is longer than the limit and than any prompt."""
        most = self.model.prompts.longest_text(self.model.engine.context_length)
        most = max(most, limits.serve_tokenize_characters)
        if len(text) > most:
            raise PromptTooLong(
                f"the text has {len(text):,} characters; tokens are returned for texts of up to "
                f"{most:,} (the limit serve_tokenize_characters, or what the context holds)"
            )

    def detokenize(self, request: Detokenize, check: Check) -> Text:
        return Text(self.model.detokenize(request.ids))

    def render(self, request: Render, check: Check) -> Text:
        return Text(self._rendered(request.chat).text)

    def adapt(self, request: Adapt, check: Check) -> Strengths:
        adapters = self.model.adapters
        if request.strengths is not None:
            adapters.update({name: request.strengths.get(name, 0.0) for name in adapters})
        return Strengths(dict(adapters))

    def slot(self, request: SlotCall, check: Check) -> SlotChanged:
        begun = time.perf_counter()
        if request.action == "erase":
            return SlotChanged(self.model.erase_state(slot=request.slot))
        change = self.model.save_state if request.action == "save" else self.model.load_state
        tokens = change(request.path, slot=request.slot)
        nbytes = os.path.getsize(request.path)
        return SlotChanged(tokens, nbytes, time.perf_counter() - begun)

    def _vocabulary(self) -> Tokenizer:
        return self.model.prompts.vocabulary()

    # rows and sounds

    def embed(self, request: Embed, check: Check) -> Rows:
        """Raises ConfigError where `dimensions` are 0, or more than a row has."""
        if request.dimensions == 0:
            raise ConfigError("dimensions is 0; give 1 or more, or leave it out")
        prompt = self.model.readout.prompt(None, request.prompt_name)
        texts: list[str | list[int]] = []
        for text in request.texts:
            check()
            if isinstance(text, str):
                text = self._encoded(prompt + text, request.truncate)
            texts.append(text)
        ids = self.model.embedding_ids(texts, truncate=request.truncate)
        if request.pooling == "none":
            self._need_few(sum(map(len, ids)))
            each = self.model.states_of_tokens(ids, adapters=request.adapters)
            rows = np.concatenate(each)
        else:
            rows = self.model.embed_ids(
                ids,
                pooling=request.pooling,  # type: ignore[arg-type]
                normalize=request.normalize,
                prompt=prompt,
                dimensions=request.dimensions,
                adapters=request.adapters,
            )
        data = np.ascontiguousarray(rows, "<f4").tobytes()
        return Rows(data, len(rows), rows.shape[1], [len(text) for text in ids], self.steps)

    def _need_few(self, tokens: int) -> None:
        """Raises PromptError where the rows of so many tokens exceed the limit."""
        width = KeyValues(self.model.source.metadata).get("embedding_length", int) or 0
        if tokens * width > limits.serve_embedding_numbers:
            raise PromptError(
                f"the texts have {tokens:,} tokens, each with a row of {width:,} numbers, and the "
                f"limit serve_embedding_numbers is {limits.serve_embedding_numbers:,}: send fewer "
                "or shorter texts"
            )

    def _encoded(self, text: str, truncate: bool) -> list[int]:
        """The ids of a text for a row; those of its beginning, where the end is cut off anyway."""
        longest = self.model.prompts.longest_text(self._most)
        if not truncate:
            self.model.prompts.check_length(len(text), self._most)
        return self.model.tokenize(text[:longest])

    @property
    def _most(self) -> int:
        """Tokens of a text for a row."""
        engine = self.model.engine
        most = engine.context_length
        return min(most, engine.batch_size) if engine.single_step else most

    def rank(self, request: Rank, check: Check) -> Ranks:
        if not self.model.ranks:
            raise Unsupported("the model has no head that ranks documents")
        tokens: list[int] = []
        for document in request.documents:
            check()
            size = len(request.query) + len(document)
            self.model.prompts.check_length(size, self._most)
            tokens.append(len(self.model.pair_ids(request.query, document)[0]))
        scores = self.model.rerank(request.query, request.documents, normalize=request.normalize)
        return Ranks(scores.tolist(), tokens, self.steps)

    def transcribe(self, request: Transcribe, check: Check) -> Transcript:
        transcript = transcribe(
            self.model,
            request.audio,
            language=request.language,
            task="translate" if request.translate else None,
            timestamps=request.timestamps,
            prompt=request.prompt,
            temperature=request.temperature,
            progress=lambda *_: check(),
        )
        segments = [Segment(one.start, one.end, one.text) for one in transcript.segments]
        return Transcript(transcript.text, transcript.language, transcript.seconds, segments)


def grammar_of(spec: GrammarSpec) -> Grammar:
    """The form; known ones are compiled already.

    Raises:
        GrammarError: it is broken. Unsupported: llguidance is missing.
    """
    make = _latest_grammar if len(spec.text) > _GRAMMAR_CHARACTERS else _kept_grammar
    return make(spec.kind, spec.text)


def _grammar(kind: str, text: str) -> Grammar:
    if kind == "json":
        return Grammar.json_schema({"type": "object"})
    if kind == "json_schema":
        return Grammar.json_schema(text)
    if kind == "regex":
        return Grammar.regex(text)
    if kind == "lark":
        return Grammar.lark(text)
    if kind == "gbnf":
        return Grammar.gbnf(text)
    import msgspec

    return Grammar.choice(msgspec.json.decode(text, type=list[str]))


_kept_grammar, _latest_grammar = lru_cache(_GRAMMARS)(_grammar), lru_cache(1)(_grammar)


def _template(chat: ChatParams) -> dict[str, Any]:
    """The options of the template."""
    names = ("tools", "template", "variables", "continues")
    return {name: getattr(chat, name) for name in names}


def _need_data(kind: str, item: Any) -> None:
    """Raises PromptError where an item is a path or an address: a runner opens none."""
    if not _is_data(item):
        raise PromptError(f"the {kind} of a request must be its bytes or a data URL")


def _is_data(item: Any) -> bool:
    if isinstance(item, str):
        return item[:5].lower() == "data:"
    if isinstance(item, Mapping):
        return all(map(_is_data, item.values()))
    if isinstance(item, (list, tuple)):
        return all(map(_is_data, item))
    return isinstance(item, (bytes, int, float)) or item is None


class GenerationEvents:
    """The events of a generation for its client.

    Args:
        special: the token that ends the text is part of it.
        progress: that of the prefill is told, too.

    Attributes:
        complete: the generation is, and need not begin.
        granted: pieces that may be sent in all. The thread that reads the connection adds to it;
            all else belongs to the one that sends.
        over: its last event was taken.
    """

    def __init__(
        self,
        work: Work,
        started: Started,
        generation: Generation,
        special: bool,
        progress: bool = False,
    ):
        self._work, self.generation, self._special = work, generation, special
        self.progress = progress
        self._started: Started | None = started
        self.granted, self._sent = WINDOW, 0
        self.complete = self.over = False

    def take(self) -> list[Event | Failure]:
        """The events that have come and may be sent. Never waits."""
        events: list[Event | Failure] = []
        if self._started is not None:
            events.append(self._started)
            self._started = None
        if self.progress:
            events += map(self._prefill, self.generation.take_prefills())
        try:
            while not self.over and (room := self.granted - self._sent) > 0:
                pieces = self.generation.take(room)
                if pieces is None:
                    self.over = True
                    events += self._end()
                elif not pieces:
                    break
                else:
                    events += map(self._event, pieces)
        except Exception as error:
            self.over = True
            events.append(failure_of(error))
        return events

    def _prefill(self, step: tuple[int, float]) -> PromptProgress:
        processed, seconds = step
        total, reused = len(self.generation.prompt), self.generation.reused
        return PromptProgress(total, reused, processed, seconds)

    def _event(self, piece: Generated) -> TokenEvent:
        held_back = self._sent >= len(self.generation.tokens)  # until the end
        self._sent += 1
        if held_back:
            return TokenEvent(str(piece))
        if piece.logprob is None:
            return TokenEvent(str(piece), piece.token)
        token = self._work.token(piece.token, piece.logprob, piece.top_logprobs)
        return TokenEvent(str(piece), piece.token, token)

    def _end(self) -> list[TokenEvent | Finished]:
        generation, usage = self.generation, self.generation.usage
        finished = Finished(
            generation.finish_reason,
            usage.prompt_tokens,
            usage.completion_tokens,
            stop=generation.stop,
            reused_tokens=usage.reused_tokens,
            prompt_seconds=usage.prompt_seconds,
            decode_seconds=usage.decode_seconds,
            queue_seconds=usage.queue_seconds,
            drafted=usage.drafted,
            accepted=usage.accepted,
            drafts=usage.drafts,
            steps=self._work.steps,
        )
        if generation.probe is not None and generation.probe.captures:
            captured = generation.probe.captured.items()
            finished.captured = {
                name: CapturedRows(rows.shape, rows.astype("<f4").tobytes())
                for name, rows in captured
            }
        if not self._special or generation.ended_by is None:
            return [finished]
        return [TokenEvent(generation.ending, generation.ended_by), finished]
