"""llama-server's own /completion, and its counts of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs

from starlette.routing import Route

from ...chat.replies import Content
from ...errors import TokenizerError
from ..answers import Answer, Reply, all_whole
from ..chat_requests import Asked, ask, called, check_logprobs, within
from ..endpoint import EVENTS, Answers, Call, event, route
from ..errors import Refused
from ..infill import Extra, fill_prompt
from ..requests import Detokenize, Ended, Generate, Runner, Token
from ..server import Server
from .openai.chat import ChatRequest, wish
from .openai.inputs import Input, Sampling, converted, inputs_of
from .openai.responses import prompt_tokens
from .openai.schemas import OPENAI, InputTokens, entry, timings
from .schemas import ContinuedText, Slot

_TOP = 100


class Wanted(Sampling, kw_only=True):
    """Wishes for an answer; `n_predict` of −1 goes on to the model's end."""

    n_predict: int | None = None
    n_keep: int | None = None
    n_probs: int = 0
    return_tokens: bool = False


class CompletionRequest(Wanted, kw_only=True):
    """A request."""

    prompt: Input | None = None


class InfillRequest(Wanted, kw_only=True):
    """A request for the text between two others, of which `prompt` is the beginning."""

    input_prefix: str
    input_suffix: str
    input_extra: list[Extra] = []
    prompt: str = ""


def routes(server: Server) -> list[Route]:
    """Its endpoints."""
    texts = Answers(ContinuedText | list[ContinuedText], [EVENTS])
    chats = ("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens")
    return [
        *(
            route("POST", path, create, server, OPENAI, CompletionRequest, answers=texts)
            for path in ("/completion", "/completions")
        ),
        *(
            route("POST", path, count, server, OPENAI, ChatRequest, answers=Answers(InputTokens))
            for path in chats
        ),
        route("GET", "/slots", slots, server, OPENAI, answers=Answers(list[Slot])),
        route("POST", "/infill", infill, server, OPENAI, InfillRequest, answers=texts),
    ]


async def count(call: Call) -> None:
    """Count the tokens of a conversation."""
    given, server = await call.decode(ChatRequest), call.server
    messages = await converted(given.messages, server.media.of_request())
    async with server.models.use(given.model, keep_alive=given.keep_alive) as runner:
        asked = await ask(runner, await wish(given, messages, runner, call), server.settings)
        number = await prompt_tokens(runner, asked)
    await call.json({"object": "response.input_tokens", "input_tokens": number})


async def slots(call: Call) -> None:
    """Tell how many sequences of the first model are taken."""
    async with call.server.models.use(None) as runner:
        state = runner.state
    if parse_qs(call.query).get("fail_on_no_slot") and state.running >= state.parallel:
        raise Refused("no slot is free", 503)
    same = {"n_ctx": state.context_length, "speculative": False}
    found = [{"id": i, **same, "is_processing": i < state.running} for i in range(state.parallel)]
    await call.json(found)


async def create(call: Call) -> None:
    """Continue texts, in llama-server's shape."""
    given = await call.decode(CompletionRequest)
    prompts = inputs_of(given.prompt, "prompt")
    if given.stream and len(prompts) > 1:
        raise Refused("stream: needs a single prompt", param="stream")
    async with call.server.models.use(given.model, keep_alive=given.keep_alive) as runner:
        options = await _options(call.server, given, runner)
        await _answer(call, given, prompts, options, runner)


async def infill(call: Call) -> None:
    """Write what stands between two texts."""
    given = await call.decode(InfillRequest)
    async with call.server.models.use(given.model, keep_alive=given.keep_alive) as runner:
        options = await _options(call.server, given, runner)
        prompt = await fill_prompt(
            runner,
            given.input_prefix,
            given.input_suffix,
            begun=given.prompt,
            extra=given.input_extra,
            max_tokens=options.get("max_tokens"),
        )
        await _answer(call, given, [prompt], options, runner)


async def _answer(
    call: Call, given: Wanted, prompts: list[Any], options: dict[str, Any], runner: Runner
) -> None:
    name = called(given.model, runner.state)
    asked = [Asked(Generate(prompt, dict(options), given.form())) for prompt in prompts]
    check_logprobs(asked, runner)
    answers = [Answer(runner, one, call.server.metrics) for one in asked]
    if given.stream:
        await _stream(call, given, answers[0], name, runner)
        return
    both = zip(answers, await all_whole(answers), strict=True)
    found = [
        _whole(given, i, answer.asked, reply, name, await _prompt(runner, answer))
        for i, (answer, reply) in enumerate(both)
    ]
    await call.json(found[0] if len(found) == 1 else found)


async def _prompt(runner: Runner, answer: Answer) -> str:
    """The text of a prompt, which may be given as token ids; "" without a vocabulary."""
    given = answer.asked.generate.prompt
    if isinstance(given, str):
        return given
    try:
        return (await runner.detokenize(Detokenize(answer.begun.prompt))).text
    except TokenizerError:
        return ""


async def _options(server: Server, given: Wanted, runner: Runner) -> dict[str, Any]:
    most = given.max_tokens if given.n_predict is None else given.n_predict
    options = await given.options(runner, most)
    if given.n_keep is not None and given.n_keep >= 0:
        options["num_keep"] = given.n_keep
    if not 0 <= given.n_probs <= _TOP:
        raise Refused(f"n_probs: {given.n_probs} is not between 0 and {_TOP}", param="n_probs")
    if given.n_probs or given.return_tokens or given.stream:  # each with its id
        options |= {"logprobs": True, "top_logprobs": given.n_probs}
    return within(options, server.settings)


async def _stream(call: Call, given: Wanted, answer: Answer, name: str, runner: Runner) -> None:
    tokens: list[Token] = []
    text: list[str] = []
    async with answer, call.stream() as out:
        await out.begin()
        prompt_tokens = len(answer.begun.prompt)
        async for said in answer:
            piece = "".join(delta.text for delta in said.deltas if isinstance(delta, Content))
            new = [] if said.token is None else [said.token]
            tokens += new
            text.append(piece)
            part = {
                "index": 0,
                "content": piece,
                "tokens": [token.id for token in new],
                "stop": False,
                "id_slot": -1,
                "tokens_predicted": len(tokens),
                "tokens_evaluated": prompt_tokens,
            }
            if given.n_probs:
                part["completion_probabilities"] = _probabilities(new)
            await out.send(event(part))
        reply = Reply(answer.ended, "".join(text))
        end = _whole(given, 0, answer.asked, reply, name, await _prompt(runner, answer))
        await out.send(event({**end, "content": "", "tokens": []}))


def _whole(
    given: Wanted, index: int, asked: Asked, reply: Reply, name: str, prompt: str
) -> dict[str, Any]:
    ended = reply.ended
    found: dict[str, Any] = {
        "index": index,
        "content": reply.content,
        "tokens": [token.id for token in reply.tokens] if given.return_tokens else [],
        "id_slot": -1,
        "stop": True,
        "model": name,
        "tokens_predicted": ended.completion_tokens,
        "tokens_evaluated": ended.prompt_tokens,
        "generation_settings": _settings(given, asked.generate.options),
        "prompt": prompt,
        "has_new_line": "\n" in reply.content,
        "truncated": False,
        "stop_type": _stop_type(ended),
        "stopping_word": ended.stop or "",
        "tokens_cached": ended.prompt_tokens + ended.completion_tokens,
        "timings": timings(ended),
    }
    if given.n_probs and reply.tokens:
        found["completion_probabilities"] = _probabilities(reply.tokens)
    return found


def _stop_type(ended: Ended) -> str:
    if ended.reason == "length":
        return "limit"
    return "eos" if ended.stop is None else "word"


def _settings(given: Wanted, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a request, under llama-server's names."""
    found = {k: v for k, v in options.items() if k not in ("logprobs", "top_logprobs")}
    found["n_predict"] = found.pop("max_tokens", -1)
    biases = options.get("logit_bias", {})
    found["logit_bias"] = [{"token": id, "bias": bias} for id, bias in biases.items()]
    return {"n_probs": given.n_probs, "stream": bool(given.stream), "seed": -1, **found}


def _probabilities(tokens: Sequence[Token]) -> list[dict[str, Any]]:
    """Log-probabilities of tokens, with ids."""
    return [
        {"id": one.id, **entry(one), "top_logprobs": [{"id": t.id, **entry(t)} for t in one.top]}
        for one in tokens
    ]
