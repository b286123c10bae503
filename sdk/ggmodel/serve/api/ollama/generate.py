"""/api/generate."""

from __future__ import annotations

from typing import Any

from starlette.routing import Route

from ....chat.replies import Content, Reasoning
from ....names import as_jinja
from ...answers import Answer, whole
from ...asking import Asked, Wish, ask, check_logprobs, within
from ...conversation import Message
from ...endpoint import Answers, Call, route
from ...errors import Refused
from ...infill import fill_prompt
from ...requests import Chat, Generate, Render
from ...runner import Runner
from ...server import Server
from .answered import TextPart
from .chat import loaded
from .options import (
    AnswerRequest,
    form,
    thinking,
    with_images,
)
from .shapes import LINES, OLLAMA, Clock, line, logprobs, now


class GenerateRequest(AnswerRequest, kw_only=True):
    """A prompt to be gone on with; without one, a model to be loaded or unloaded.

    Attributes:
        context: token ids of an earlier answer, whose conversation goes on.
        raw: the prompt is the whole text; no template is applied.
        template: Ollama's, in place of the model's.
    """

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    context: list[int] | None = None
    images: list[str] | None = None
    raw: bool = False


def routes(server: Server) -> list[Route]:
    path, answers = "/api/generate", Answers(TextPart, [LINES])
    return [route("POST", path, generate, server, OLLAMA, GenerateRequest, answers=answers)]


async def generate(call: Call) -> None:
    """Go on with a prompt, in Ollama's shape."""
    given, server, clock = await call.decode(GenerateRequest), call.server, Clock()
    options = given.wanted()
    if given.suffix and (given.images or given.context):
        raise Refused("suffix: goes with no images and no context", param="suffix")
    async with given.model_of(server) as runner:
        clock.loaded()
        if not (given.prompt or given.images or given.suffix):
            await call.json(loaded(given, clock, {"response": ""}))
            return
        asked = await _asked(given, options, runner, server)
        check_logprobs([asked], runner)
        answer = Answer(runner, asked, server.metrics)
        if given.stream is not False:
            await _send(call, given, answer, clock)
            return
        async with answer:
            reply = await whole(answer)
    found: dict[str, Any] = {"response": reply.content}
    if reply.reasoning:
        found["thinking"] = reply.reasoning
    if given.logprobs:
        found["logprobs"] = logprobs(reply.tokens)
    await call.json({**_head(given), **found, **_done(answer, clock)})


async def _asked(
    given: GenerateRequest, options: dict[str, Any], runner: Runner, server: Server
) -> Asked:
    content = with_images(given.prompt or "", given.images, "")["content"]
    state = runner.state
    if given.suffix:
        options = within(options, server.settings)
        most = options.get("max_tokens")
        prompt = await fill_prompt(runner, given.prompt or "", given.suffix, max_tokens=most)
        return Asked(Generate(prompt, options, form(given.format)))
    if given.raw or not (state.template or given.template):
        prompt = [*(given.context or ()), *([content] if isinstance(content, str) else content)]
        whole_prompt = content if prompt == [content] else prompt
        wanted = within(options, server.settings)
        return Asked(Generate(whole_prompt, wanted, form(given.format)))
    messages: list[Message] = [{"role": "system", "content": given.system}] if given.system else []
    wish = Wish(
        [*messages, {"role": "user", "content": content}],
        grammar=form(given.format),
        options=options,
        variables=thinking(given.think),
        template=as_jinja(given.template, "template") if given.template else None,
    )
    asked = await ask(runner, wish, server.settings)
    if given.context:
        if not isinstance(content, str):
            raise Refused("context: cannot be given with images; use /api/chat", param="context")
        assert isinstance(asked.generate.prompt, Chat)
        text = (await runner.render(Render(asked.generate.prompt))).text
        asked.generate.prompt = [*given.context, text]
    return asked


def _head(given: GenerateRequest) -> dict[str, Any]:
    return {"model": given.model, "created_at": now()}


def _done(answer: Answer, clock: Clock) -> dict[str, Any]:
    found = {"done": True, "done_reason": answer.ended.reason, **clock.of(answer.ended)}
    if min(answer.begun.prompt, default=0) >= 0:
        found["context"] = [*answer.begun.prompt, *answer.ids]
    return found


async def _send(call: Call, given: GenerateRequest, answer: Answer, clock: Clock) -> None:
    async with answer, call.stream(LINES) as out:
        async for said in answer:
            texts = [delta.text for delta in said.deltas if isinstance(delta, Content)]
            thoughts = [delta.text for delta in said.deltas if isinstance(delta, Reasoning)]
            found: dict[str, Any] = {"response": "".join(texts)}
            if thoughts:
                found["thinking"] = "".join(thoughts)
            if given.logprobs and said.token is not None:
                found["logprobs"] = logprobs([said.token])
            await out.send(line({**_head(given), **found, "done": False}))
        await out.send(line({**_head(given), "response": "", **_done(answer, clock)}))
