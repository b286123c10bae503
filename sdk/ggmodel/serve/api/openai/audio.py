"""Transcription and translation of speech: /v1/audio, with forms of RFC 7578."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.routing import Route

from ...endpoint import DONE, EVENTS, TEXT, Answers, Call, event, route
from ...errors import Refused
from ...requests import Segment, Transcribe, Transcript
from ...server import Server
from .schemas import OPENAI, TranscriptDelta, TranscriptDone, Transcription, TranscriptSegment

_PARTS = 64
_PART_HEADERS = 8
_HEADER_BYTES = 4096  # of a part's header line, and of the request's content-type
_NAME_BYTES = 256
_PIECE = 1 << 18  # bytes that are searched without giving back Python's lock

logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # warns of each wrong form


def read_form(body: bytes, content_type: str) -> dict[str, list[bytes]]:
    """The values of a form by field name, in a time linear in the body.

    Raises:
        Refused: it is no such form, or its parts or their headers are too many or too long.
    """
    kind, options = parse_options_header(content_type[: _HEADER_BYTES + 1])
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary or len(content_type) > _HEADER_BYTES:
        raise Refused("send a form as multipart/form-data", 415, code="no_form")
    # The parser goes byte by byte over each delimiter and over what looks like one.
    if body.count(b"--" + boundary) > _PARTS + 1:
        raise Refused(f"the form has more than {_PARTS} fields")
    parts = _Parts()
    try:
        parser = MultipartParser(
            boundary,
            {
                "on_part_begin": parts.begin,
                "on_header_begin": parts.header,
                "on_header_field": parts.add_header,
                "on_header_value": parts.add_value,
                "on_headers_finished": parts.headers_end,
                "on_part_data": parts.add_data,
                "on_end": parts.end,
            },
            max_header_count=_PART_HEADERS,
            max_header_size=_HEADER_BYTES,
        )
        for start in range(0, len(body), _PIECE):
            parser.write(body[start : start + _PIECE])
    except FormParserError as error:
        raise Refused(f"the form is damaged: {error}") from None
    if not parts.complete:
        raise Refused("the form has no end; its body is not complete")
    fields: dict[str, list[bytes]] = {}
    for name, pieces in parts.fields:
        fields.setdefault(name, []).append(b"".join(pieces))
    return fields


class _Parts:
    """Collects what the parser calls back with.

    Attributes:
        fields: name and pieces of the value of each part.
        complete: the end of the form was read.
    """

    def __init__(self) -> None:
        self.fields: list[tuple[str, list[bytes]]] = []
        self.complete = False
        self._headers: list[tuple[bytearray, bytearray]] = []

    def begin(self) -> None:
        self._headers = []

    def header(self) -> None:
        self._headers.append((bytearray(), bytearray()))

    def add_header(self, data: bytes, start: int, end: int) -> None:
        self._headers[-1][0].extend(data[start:end])

    def add_value(self, data: bytes, start: int, end: int) -> None:
        self._headers[-1][1].extend(data[start:end])

    def headers_end(self) -> None:
        headers = {bytes(name).lower(): bytes(value) for name, value in self._headers}
        _, options = parse_options_header(headers.get(b"content-disposition"))
        name = options.get(b"name", b"")
        if not 0 < len(name) <= _NAME_BYTES:
            raise Refused(f"a field of the form has no name of up to {_NAME_BYTES} bytes")
        self.fields.append((name.decode("utf-8", "replace"), []))

    def add_data(self, data: bytes, start: int, end: int) -> None:
        self.fields[-1][1].append(data[start:end])

    def end(self) -> None:
        self.complete = True


_OTHERS = {TEXT: [str], EVENTS: [TranscriptDelta | TranscriptDone]}
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


class _Form:
    """The fields of a form."""

    def __init__(self, fields: Mapping[str, Sequence[bytes]]):
        self._fields = fields

    def file(self) -> bytes:
        data = self._fields.get("file", [b""])[0]
        if not data:
            raise Refused("file: is missing or empty", param="file")
        return data

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
        transcript = await runner.transcribe(request)
    if form.text("stream") == "true" and kind == "json":
        delta, done = TranscriptDelta(transcript.text), TranscriptDone(transcript.text)
        async with call.stream():
            await call.send_all([event(delta), event(done), DONE])
    elif kind == "json":
        await call.json(Transcription(transcript.text))
    elif kind == "verbose_json":
        await call.json(_verbose(transcript, translate))
    else:
        text = {"text": _text, "srt": _srt, "vtt": _vtt}[kind](transcript)
        await call.reply(text.encode(), "text/plain; charset=utf-8")


def _verbose(transcript: Transcript, translate: bool) -> Transcription:
    pieces = enumerate(transcript.segments)
    segments = [TranscriptSegment(i, one.start, one.end, one.text) for i, one in pieces]
    task = "translate" if translate else "transcribe"
    return Transcription(transcript.text, task, transcript.language, transcript.seconds, segments)


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
