"""Transcription and translation of speech: /v1/audio, with forms of RFC 7578."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct
from starlette.routing import Route

from ...endpoint import DONE, EVENTS, TEXT, Answers, Call, event, route
from ...errors import Refused
from ...pool import best_name
from ...requests import Segment, Transcribe, Transcript
from ...server import Server
from .schemas import (
    OPENAI,
    Duration,
    TranscriptDelta,
    TranscriptDone,
    Transcription,
    TranscriptSegment,
)

_OTHERS = {TEXT: [str], EVENTS: [TranscriptDelta | TranscriptDone]}
_OPENAI = ("whisper-1", "gpt-4o-transcribe", "gpt-4o-mini-transcribe")
_FORMATS = ("json", "text", "srt", "verbose_json", "vtt")


class TranscriptionForm(Struct, kw_only=True):
    """The fields of a form."""

    file: Annotated[str, Meta(extra_json_schema={"format": "binary"})]
    model: str | None = None
    language: str | None = None
    prompt: str | None = None
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"
    temperature: float = 0.0
    stream: bool = False


def routes(server: Server) -> list[Route]:
    answers = Answers(Transcription, _OTHERS, form=TranscriptionForm)
    handlers = {"transcriptions": transcribe, "translations": translate}
    return [
        route("POST", f"{version}/audio/{name}", handler, server, OPENAI, answers=answers)
        for version in ("/v1", "")  # the second is llama-server's
        for name, handler in handlers.items()
    ]


async def transcribe(call: Call) -> None:
    """Write down what is said in a sound; a form with its file."""
    await _answer(call, False)


async def translate(call: Call) -> None:
    """Write down in English what is said in a sound; a form with its file."""
    await _answer(call, True)


async def _model(name: str | None, call: Call) -> str | None:
    """The name of a model. OpenAI's, which clients send without being told to, mean the first model
    that hears, unless one is called so."""
    if name not in _OPENAI:
        return name
    listed = await call.server.models.listed()
    if best_name(name, (one.name for one in listed)) is not None:
        return name
    for one in listed:
        able = one.state.kinds if one.state else one.details.get("capabilities", ())
        if "audio" in able:
            return one.name
    return name


async def _answer(call: Call, translate: bool) -> None:
    form = await call.form()
    kind = form.text("response_format") or "json"
    if kind not in _FORMATS:
        raise Refused(
            f"response_format: {kind!r:.50} is none of {', '.join(_FORMATS)}",
            param="response_format",
        )
    request = Transcribe(
        form.file(),
        language=form.text("language"),
        translate=translate,
        timestamps=kind in ("srt", "vtt", "verbose_json"),
        prompt=form.text("prompt"),
        temperature=form.number("temperature"),
    )
    async with call.server.models.use(await _model(form.text("model"), call)) as runner:
        transcript = await runner.transcribe(request)
    if form.text("stream") == "true" and kind == "json":
        delta, done = TranscriptDelta(transcript.text), TranscriptDone(transcript.text)
        async with call.stream():
            await call.send_all([event(delta), event(done), DONE])
    elif kind == "json":
        await call.json(Transcription(transcript.text, Duration(transcript.seconds)))
    elif kind == "verbose_json":
        await call.json(_verbose(transcript, translate))
    else:
        text = {"text": _text, "srt": _srt, "vtt": _vtt}[kind](transcript)
        await call.reply(text.encode(), "text/plain; charset=utf-8")


def _verbose(transcript: Transcript, translate: bool) -> Transcription:
    pieces = enumerate(transcript.segments)
    segments = [TranscriptSegment(i, one.start, one.end, one.text) for i, one in pieces]
    task = "translate" if translate else "transcribe"
    return Transcription(
        text=transcript.text,
        usage=Duration(transcript.seconds),
        task=task,
        language=transcript.language,
        duration=transcript.seconds,
        segments=segments,
    )


def _text(transcript: Transcript) -> str:
    return f"{transcript.text}\n"


def _srt(transcript: Transcript) -> str:
    blocks = (f"{n}\n{_lines(one, ',')}\n" for n, one in enumerate(transcript.segments, 1))
    return "\n".join(blocks)


def _vtt(transcript: Transcript) -> str:
    return "WEBVTT\n\n" + "\n".join(f"{_lines(one, '.')}\n" for one in transcript.segments)


def _lines(one: Segment, point: str) -> str:
    text = " ".join(one.text.split())  # an empty line would end it
    return f"{_time(one.start, point)} --> {_time(one.end, point)}\n{text}"


def _time(seconds: float, point: str) -> str:
    rest, thousandths = divmod(round(seconds * 1000), 1000)
    minutes, second = divmod(rest, 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{second:02}{point}{thousandths:03}"
