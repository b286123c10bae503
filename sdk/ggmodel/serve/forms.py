"""Forms of RFC 7578, with files."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from .errors import Refused

_PARTS = 64
_PART_HEADERS = 8
_HEADER_BYTES = 4096  # of a part's header line, and of the request's content-type
_NAME_BYTES = 256
_PIECE = 1 << 18  # bytes that are searched without giving back Python's lock

logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # warns of each wrong form


def read_form(body: bytes, content_type: str) -> Form:
    """The fields of a form, in a time linear in the body.

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
    return Form(fields, parts.filename)


class _Parts:
    """Collects what the parser calls back with.

    Attributes:
        fields: name and pieces of the value of each part. filename: of the last that has one.
        complete: the end of the form was read.
    """

    def __init__(self) -> None:
        self.fields: list[tuple[str, list[bytes]]] = []
        self.complete = False
        self.filename = ""
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
        if filename := options.get(b"filename"):
            self.filename = filename[:_NAME_BYTES].decode("utf-8", "replace")

    def add_data(self, data: bytes, start: int, end: int) -> None:
        self.fields[-1][1].append(data[start:end])

    def end(self) -> None:
        self.complete = True


class Form:
    """The fields of a form.

    Attributes:
        filename: of its file, as the client calls it; "" where it has none.
    """

    def __init__(self, fields: Mapping[str, Sequence[bytes]], filename: str = ""):
        self._fields, self.filename = fields, filename

    def file(self) -> bytes:
        """The bytes of the field `file`.

        Raises:
            Refused: there are none.
        """
        data = self._fields.get("file", [b""])[0]
        if not data:
            raise Refused("file: is missing or empty", param="file")
        return data

    def text(self, name: str) -> str | None:
        """A field as text; None if it is missing or empty."""
        values = self._fields.get(name)
        return values[0].decode("utf-8", "replace") if values and values[0] else None

    def number(self, name: str) -> float:
        """A field as a number, 0 if it is missing.

        Raises:
            Refused: it is none.
        """
        text = self.text(name)
        try:
            return float(text or 0)
        except ValueError:
            raise Refused(f"{name}: expected a number", param=name) from None
