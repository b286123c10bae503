"""Forms with files (multipart/form-data, RFC 7578), whole in memory."""

from __future__ import annotations

from email.message import Message
from email.parser import BytesHeaderParser

from ...errors import Refused

_PARTS = 64


def read_form(body: bytes, content_type: str) -> dict[str, list[bytes]]:
    """The fields of a form by their name, each with its values.

    Raises:
        Refused: it is no such form.
    """
    header = Message()
    header["content-type"] = content_type
    boundary = header.get_boundary()
    if header.get_content_type() != "multipart/form-data" or not boundary:
        raise Refused("send a form as multipart/form-data", 415, code="no_form")
    mark = b"--" + boundary.encode("latin-1", "replace")
    parts = (b"\r\n" + body).split(b"\r\n" + mark, _PARTS + 2)
    if len(parts) > _PARTS + 2:
        raise Refused(f"the form has more than {_PARTS} fields")
    if len(parts) < 3 or not parts[-1].startswith(b"--"):
        raise Refused("the form has no end; its body is not complete")
    found: dict[str, list[bytes]] = {}
    for part in parts[1:-1]:
        head, blank, value = part.partition(b"\r\n\r\n")
        fields = BytesHeaderParser().parsebytes(head.strip() + b"\r\n\r\n")
        name = fields.get_param("name", header="content-disposition")
        if not blank or not isinstance(name, str):
            raise Refused("a field of the form has no name")
        found.setdefault(name, []).append(value)
    return found
