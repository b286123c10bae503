"""Runners in the tests' process: the contract of `ggmodel.serve.requests` on a loaded model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from msgspec.structs import replace

from ggmodel import Grammar, LoadedModel
from ggmodel.errors import Busy, ModelNotFound, Unsupported
from ggmodel.runner.sampling import DEFAULTS, log_probabilities
from ggmodel.serve.monitoring import note_model
from ggmodel.serve.pool import Condition, ListedModel, same_name
from ggmodel.serve.requests import (
    Adapt,
    ChatParams,
    Detokenize,
    Embed,
    Event,
    Finished,
    GrammarSpec,
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
    Token,
    TokenEvent,
    Tokenize,
    Tokens,
    Transcribe,
    Transcript,
)
from ggmodel.serve.runners.work import Work


class InProcess:
    """A runner on a model of this process.

    Attributes:
        running: requests under way. seen: all that were asked.
        template: in place of the file's.
    """

    name = "stories"

    def __init__(self, model: LoadedModel):
        self.model, self.running = model, 0
        self.seen: list[Any] = []
        self.template: str | None = None
        self.work = Work(model)

    @property
    def state(self) -> State:
        metadata = self.model.source.metadata
        ids = {name: metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos")}
        token = self.model.prompts.vocabulary().token
        return State(
            engine="ggmodel",
            path=self.model.source.name,
            architecture=self.model.report.architecture,
            kinds=list(self.model.model.modalities()),
            abilities=["completion", "chat", "embedding"],
            context_length=self.model.context_length,
            trained_context=512,
            parallel=4,
            vocabulary=self.model.engine.vocabulary,
            width=192,
            nbytes=1,
            parameters=1,
            quantization="Q8_0",
            template=self.template or str(metadata.get("tokenizer.chat_template", "")),
            special_tokens={f"{k}_token": token(v) for k, v in ids.items() if v is not None},
            special_ids=self.model.prompts.vocabulary().special,
            end_ids=sorted(self.model.prompts.vocabulary().eog),
            sampling=dict(DEFAULTS),
            metadata={"general.name": metadata.get("general.name", "")},
            running=self.running,
        )

    async def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        self.seen.append(request)
        options = dict(request.options)
        if request.grammar is not None:
            options["grammar"] = _grammar(request.grammar)
        prompt: Any = request.prompt
        ending = ""
        if isinstance(prompt, ChatParams):
            if options.pop("truncate", False):
                given: Any = {"tools": prompt.tools, "template": prompt.template}
                given |= {"variables": prompt.variables, "max_tokens": options.get("max_tokens")}
                kept = self.model.fitting(prompt.messages, **given)
                prompt = replace(prompt, messages=[*kept])
            options["truncate"] = False
            ending, prompt = self._render(prompt)[-200:], self._prompt(prompt)
        top = request.prompt_logprobs
        made = self.model.request(prompt, **options)
        ids = [int(id) for id in made.prompt]
        yield Started(ids, ending, None if top is None else self._scored(ids, top))
        self.running += 1
        pieces = made.apieces()
        try:
            async for piece in pieces:
                token = None
                if piece.logprob is not None:
                    token = self._token(piece.token, piece.logprob, piece.top_logprobs)
                yield TokenEvent(str(piece), piece.token, token)
        finally:
            self.running -= 1
            await pieces.aclose()
        used = made.usage
        counts = (used.prompt_tokens, used.completion_tokens)
        finished = Finished(made.finish_reason, *counts, made.stop, used.reused_tokens)
        yield replace(finished, steps=self.work.steps)

    def _prompt(self, chat: ChatParams) -> Any:
        options: Any = {"tools": chat.tools, "template": chat.template or self.template}
        return self.model.chat_prompt(chat.messages, **options, variables=chat.variables)

    def _render(self, chat: ChatParams) -> str:
        from ggmodel.chat import ChatTemplate, take_items

        vocabulary = self.model.prompts.vocabulary()
        metadata = self.model.source.metadata
        template = ChatTemplate.from_metadata(metadata, vocabulary, chat.template or self.template)
        messages, items = take_items(chat.messages)
        markers = {kind: self.model.prompts.marker(kind) for kind, _ in items}
        return template.render(messages, tools=chat.tools, markers=markers, **chat.variables)

    def _token(self, id: int, logprob: float | None, top: Any = ()) -> Token:
        data = self.model.prompts.vocabulary().token_bytes(id)
        likeliest = [self._token(i, p) for i, p in top or ()]
        return Token(id, data.decode("utf-8", "replace"), data, logprob, likeliest)

    def _scored(self, ids: list[int], top: int) -> list[Token]:
        found = [self._token(ids[0], None)]
        for row, id in zip(self.model.logits(ids), ids[1:], strict=False):
            found.append(self._token(id, *log_probabilities(row, id, top)))
        return found

    async def embed(self, request: Embed) -> Rows:
        return self.work.embed(request, lambda: None)

    async def rank(self, request: Rank) -> Ranks:
        scores = np.array([float(len(d)) for d in request.documents])
        scores = 1 / (1 + np.exp(-scores)) if request.normalize else scores
        return Ranks(scores.tolist(), [1] * len(request.documents))

    async def tokenize(self, request: Tokenize) -> Tokens:
        if isinstance(request.text, ChatParams):
            ids = self._prompt(request.text)
        else:
            ids = self.model.tokenize(request.text, add_special=request.add_special)
        vocabulary = self.model.prompts.vocabulary()
        return Tokens(ids, [vocabulary.token_bytes(id) for id in ids])

    async def detokenize(self, request: Detokenize) -> Text:
        return Text(self.model.detokenize(request.ids))

    async def render(self, request: Render) -> Text:
        return Text(self._render(request.chat))

    async def adapt(self, request: Adapt) -> Strengths:
        return Strengths(dict(self.model.adapters))

    async def slot(self, request: SlotCall) -> SlotChanged:
        return self.work.slot(request, lambda: None)

    async def transcribe(self, request: Transcribe) -> Transcript:
        raise Unsupported("this model does not hear")

    async def close(self) -> None:
        pass


class InProcessModels:
    """One model under the name "stories".

    Attributes:
        is_loaded: as `loaded` tells it.
        most: uses at a time; more are refused.
        changes: names that requests have changed.
    """

    def __init__(self, runner: InProcess):
        self.runner, self.uses, self.most = runner, 0, 100
        self.changes: list[str] = []
        self.is_loaded = True

    async def loaded(self, name: str | None) -> InProcess | None:
        async with self.use(name) as runner:
            return runner if self.is_loaded else None

    @asynccontextmanager
    async def use(self, name: str | None, **_: Any) -> AsyncIterator[InProcess]:
        note_model(name)
        if name is not None and not same_name(name, "stories"):
            raise ModelNotFound(f"no model is called {name!r}")
        if self.uses >= self.most:
            raise Busy("too many requests wait")
        self.uses += 1
        try:
            yield self.runner
        finally:
            self.uses -= 1

    def start(self) -> None:
        pass

    async def listed(self) -> list[ListedModel]:
        state = self.runner.state
        return [ListedModel("stories", state.path, 0.0, 1, "0" * 64, state=state)]

    def conditions(self) -> dict[str, Condition]:
        return {"stories": "ready"}

    async def unload(self, name: str) -> None:
        pass

    async def changed(self, name: str) -> None:
        self.changes.append(name)

    async def close(self) -> None:
        await asyncio.sleep(0)


def _grammar(spec: GrammarSpec) -> Grammar:
    if spec.kind == "json":
        return Grammar.json_schema({"type": "object"})
    if spec.kind == "choice":
        import json

        return Grammar.choice(json.loads(spec.text))
    return getattr(Grammar, spec.kind)(spec.text)
