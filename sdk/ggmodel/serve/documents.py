"""Documents of requests as text: PDF files and files of text."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from ..bounds import limits
from ..concurrency import start_python
from ..imports import install_command
from .errors import Refused

if TYPE_CHECKING:
    from .endpoint import Call

_MAGIC, _WITHIN = b"%PDF-", 1024  # readers of PDF accept other bytes before
_MEMORY = 2 << 30
_THREADS = ThreadPoolExecutor(2, "ggmodel-document")  # each waits for a process


async def document_text(call: Call, data: bytes, param: str, title: str | None = None) -> str:
    """The text of a document, below its title.

    Args:
        data: a PDF file, or text in UTF-8 or, with a mark, UTF-16. param: the field of the request.

    Raises:
        Refused: it is neither, has no text or too much, or the request has too many.
    """
    call.documents += 1
    if call.documents > limits.serve_items:
        raise Refused(f"{param}: more documents than the limit serve_items", param=param)
    if _MAGIC in data[:_WITHIN]:
        loop = asyncio.get_running_loop()
        text = await loop.run_in_executor(_THREADS, _pdf_text, call, data, param)
    else:
        text = await asyncio.to_thread(_plain_text, data, param)
    if len(text) > limits.serve_document_characters:
        raise Refused(
            f"{param}: the text has more than {limits.serve_document_characters:,} characters "
            "(the limit serve_document_characters)",
            413,
            param=param,
        )
    return f"{title}:\n{text}" if title else text


def _plain_text(data: bytes, param: str) -> str:
    marked = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    try:
        text = data.decode("utf-16" if marked else "utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise Refused(f"{param}: is neither a PDF file nor text in UTF-8", param=param)
    return text


def _pdf_text(call: Call, data: bytes, param: str) -> str:
    """The text of a PDF file, which another process reads: it may be made to take long."""
    if importlib.util.find_spec("pypdf") is None:
        raise Refused(
            f"{param}: PDF files need the package pypdf at the server, of the extra documents: "
            f"{install_command('documents')}",
            param=param,
        )
    most, begin = limits.serve_document_seconds, time.monotonic()
    seconds = max(most - call.document_seconds, 0.0)
    bounds = [_MEMORY, int(seconds) + 1, limits.serve_document_characters]
    script = str(Path(__file__).with_name("document_child.py"))
    process = start_python(
        [script, *map(str, bounds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with process:
        try:
            output, _ = process.communicate(data, seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            problem = f"takes the request's PDF files more than {most:g} s to read"
            message = f"{param}: {problem} (the limit serve_document_seconds)"
            raise Refused(message, param=param) from None
        finally:
            call.document_seconds += time.monotonic() - begin
    try:
        answer = json.loads(output)
    except ValueError:
        answer = {"error": "it takes too much memory, or time"}
    if "error" in answer:
        raise Refused(f"{param}: the PDF file cannot be read: {answer['error']}", param=param)
    if not answer["text"].strip():
        message = f"{param}: the PDF file has no text; send its pages as images"
        raise Refused(message, param=param)
    return answer["text"]
