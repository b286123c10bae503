"""The program that reads an untrusted PDF file: it may be killed at any time.

It reads the file from standard input, within the bounds that its arguments are: bytes of memory,
seconds of a processor, characters of text. The answer is JSON, `{"text": …}` or `{"error": …}`.
"""

from __future__ import annotations

import io
import json
import sys

from ggmodel.convert.vocabulary.steps_child import bound


def pdf_text(data: bytes, characters: int) -> str:
    """The text of all pages, or of those until it is longer than so many characters."""
    from pypdf import PdfReader

    reader = PdfReader(io.BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        raise ValueError("it needs a password")
    pages, length = list[str](), 0
    for page in reader.pages:
        pages.append(page.extract_text())
        length += len(pages[-1])
        if length > characters:
            break
    return "\n\n".join(pages)


def main(memory: int, seconds: int, characters: int) -> None:
    """Answers on standard output."""
    data = sys.stdin.buffer.read()
    bound(memory, seconds)
    try:
        answer = {"text": pdf_text(data, characters)[: characters + 1]}
    except BaseException as error:  # such as recursion, or memory that runs out
        answer = {"error": str(error)[:200] or type(error).__name__}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
