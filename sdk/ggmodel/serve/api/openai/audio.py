"""/v1/audio/transcriptions and /v1/audio/translations."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from starlette.routing import Route

from ...endpoint import EVENTS, TEXT, Answers, Call, route
from ...errors import Refused
from ...requests import Segment, Transcribe, Transcript
from ...server import Server
from ...streaming import event, written
from .answered import Transcription
from .multipart import read_form
from .shapes import OPENAI

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
    answers = Answers(Transcription, [TEXT, EVENTS], form=TranscriptionForm)
    handlers = {"transcriptions": transcribe, "translations": translate}
    return [
        route("POST", f"/v1/audio/{name}", handler, server, OPENAI, answers=answers)
        for name, handler in handlers.items()
    ]


async def transcribe(call: Call) -> None:
    """Write down what is said in a sound; a form with its file."""
    await _answer(call, False)


async def translate(call: Call) -> None:
    """Write down in English what is said in a sound; a form with its file."""
    await _answer(call, True)


class _Form:
    """The fields of a form."""

    def __init__(self, fields: Mapping[str, Sequence[bytes]]):
        self._fields = fields

    def file(self) -> bytes:
        found = self._fields.get("file", [b""])[0]
        if not found:
            raise Refused("file: is missing or empty", param="file")
        return found

    def text(self, name: str) -> str | None:
        values = self._fields.get(name)
        return values[0].decode("utf-8", "replace") if values and values[0] else None

    def number(self, name: str) -> float:
        text = self.text(name)
        try:
            return float(text or 0)
        except ValueError:
            raise Refused(f"{name}: expected a number", param=name) from None


async def _answer(call: Call, translate: bool) -> None:
    content_type = call.headers.get("content-type", "")
    form = _Form(await asyncio.to_thread(read_form, call.body, content_type))
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
    async with call.server.models.use(form.text("model")) as runner:
        found = await runner.transcribe(request)
    if form.text("stream") == "true" and kind == "json":
        async with call.stream() as out:
            await out.send(event({"type": "transcript.text.delta", "delta": found.text}))
            await out.send(event({"type": "transcript.text.done", "text": found.text}))
            await out.send(written(b"[DONE]"))
    elif kind in ("json", "verbose_json"):
        await call.json(_verbose(found, translate) if kind != "json" else {"text": found.text})
    else:
        text = {"text": _text, "srt": _srt, "vtt": _vtt}[kind](found)
        await call.reply(text.encode(), "text/plain; charset=utf-8")


def _verbose(found: Transcript, translate: bool) -> dict[str, Any]:
    return {
        "task": "translate" if translate else "transcribe",
        "language": found.language,
        "duration": found.seconds,
        "text": found.text,
        "segments": [
            {"id": i, "start": one.start, "end": one.end, "text": one.text}
            for i, one in enumerate(found.segments)
        ],
    }


def _text(found: Transcript) -> str:
    return f"{found.text}\n"


def _srt(found: Transcript) -> str:
    blocks = (f"{n}\n{_lines(one, ',')}\n" for n, one in enumerate(found.segments, 1))
    return "\n".join(blocks)


def _vtt(found: Transcript) -> str:
    return "WEBVTT\n\n" + "\n".join(f"{_lines(one, '.')}\n" for one in found.segments)


def _lines(one: Segment, point: str) -> str:
    text = " ".join(one.text.split())  # an empty line would end it
    return f"{_time(one.start, point)} --> {_time(one.end, point)}\n{text}"


def _time(seconds: float, point: str) -> str:
    rest, thousandths = divmod(round(seconds * 1000), 1000)
    minutes, second = divmod(rest, 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{second:02}{point}{thousandths:03}"
