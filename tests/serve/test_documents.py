"""Documents in messages: PDF files and files of text, in the parts that each API has."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from ggmodel import limits
from ggmodel.serve import document_child
from ggmodel.serve.server import Server
from tests.serve.conftest import serving
from tests.serve.standin import InProcess, InProcessModels

needs_pypdf = pytest.mark.skipif(
    importlib.util.find_spec("pypdf") is None, reason="needs the extra documents"
)


def pdf(text: str) -> bytes:
    """A PDF file of one page; without text for ""."""
    content = f"BT /F1 12 Tf 20 100 Td ({text}) Tj ET".encode() if text else b""
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 200 200] /Contents 4 0 R "
        b"/Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%b\nendstream" % (len(content), content),
        font,
    ]
    file, places = b"%PDF-1.4\n", []
    for i, one in enumerate(objects):
        places.append(len(file))
        file += b"%d 0 obj\n%b\nendobj\n" % (i + 1, one)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    end = b"trailer\n<< /Size 6 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % len(file)
    return file + b"xref\n0 6\n0000000000 65535 f \n" + table + end


def ask(http: httpx.Client, path: str, part: Any) -> httpx.Response:
    """The answer to a message with a part of a content."""
    messages = [{"role": "user", "content": [part]}]
    if path == "/v1/responses":
        return http.post(path, json={"input": messages, "max_output_tokens": 1})
    return http.post(path, json={"messages": messages, "max_tokens": 1})


def as_url(data: bytes, kind: str = "application/pdf") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def parts(data: bytes) -> list[tuple[str, Any]]:
    """A document in each API's form, with a title."""
    encoded = base64.b64encode(data).decode()
    file = {"filename": "a", "file_data": as_url(data)}
    source = {"type": "base64", "media_type": "application/pdf", "data": encoded}
    return [
        ("/v1/chat/completions", {"type": "file", "file": file}),
        ("/v1/chat/completions", {"type": "file", "file": {"filename": "a", "file_data": encoded}}),
        ("/v1/responses", {"type": "input_file", **file}),
        ("/v1/messages", {"type": "document", "title": "a", "source": source}),
    ]


@pytest.mark.parametrize("number", range(4))
def test_files_of_text_are_text(http: httpx.Client, runner: InProcess, number: int):
    path, part = parts("Körper".encode())[number]
    answer = ask(http, path, part)
    assert answer.status_code == 200, answer.text
    assert runner.seen[-1].prompt.messages[-1]["content"] == "a:\nKörper"


def test_texts_of_kept_conversations_count(models: InProcessModels):
    async def fetch(url: str, param: str) -> bytes:
        return b"once " * int(url)

    server = Server(models)
    server.media.fetch = fetch  # type: ignore[method-assign]
    taken: list[int] = []
    with serving(server) as url, httpx.Client(base_url=url, timeout=30) as http:
        for count in ("010", "310"):
            part = {"type": "input_file", "filename": "a", "file_url": count}
            found = ask(http, "/v1/responses", part)
            assert found.status_code == 200, found.text
            stored = server.stored.get(found.json()["id"], "")
            assert stored is not None
            # Without the answer, whose times have more digits or fewer, as some beside it.
            taken.append(stored.nbytes - len(stored.answer))
    assert abs(taken[1] - taken[0] - 300 * len("once ")) < 100


@needs_pypdf
@pytest.mark.parametrize("number", range(4))
def test_pdf_files_are_text(http: httpx.Client, runner: InProcess, number: int):
    path, part = parts(pdf("Once upon a page"))[number]
    answer = ask(http, path, part)
    assert answer.status_code == 200, answer.text
    assert runner.seen[-1].prompt.messages[-1]["content"] == "a:\nOnce upon a page"


def test_an_uploaded_file_is_a_part_by_its_id(http: httpx.Client, runner: InProcess):
    form = {"purpose": "user_data"}
    id = http.post("/v1/files", files={"file": ("b.txt", b"Words")}, data=form).json()["id"]
    for path, part in (
        ("/v1/chat/completions", {"type": "file", "file": {"file_id": id}}),
        ("/v1/responses", {"type": "input_file", "file_id": id}),
    ):
        assert ask(http, path, part).status_code == 200
        assert runner.seen[-1].prompt.messages[-1]["content"] == "b.txt:\nWords"


BLOCKS: Any = [
    ({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "A"}},
     "A"),
    ({"type": "document", "title": "T", "context": "C",
      "source": {"type": "content", "content": [{"type": "text", "text": "A"}]}}, "T\nC:\nA"),
    ({"type": "search_result", "title": "T", "source": "S",
      "content": [{"type": "text", "text": "A"}]}, "T\nS\nA"),
]  # fmt: skip


@pytest.mark.parametrize(("block", "text"), BLOCKS)
def test_blocks_of_anthropic(http: httpx.Client, runner: InProcess, block: Any, text: str):
    assert ask(http, "/v1/messages", block).status_code == 200
    assert runner.seen[-1].prompt.messages[-1]["content"] == text


@pytest.mark.parametrize(
    ("path", "part", "words"),
    [
        ("/v1/chat/completions", {"type": "file", "file": {"file_data": as_url(b"\0\xff")}},
         "neither a PDF file nor text"),
        ("/v1/chat/completions", {"type": "file", "file": {"file_id": "file-1"}}, "no file has"),
        ("/v1/chat/completions", {"type": "file"}, "file: is missing"),
        ("/v1/responses", {"type": "input_file", "file_url": "https://a.example/b"}, "file_url"),
        ("/v1/responses", {"type": "input_file", "file_data": "%"}, "is no base64"),
        ("/v1/messages", {"type": "document", "source": {"type": "file", "file_id": "1"}},
         "source.type: 'file' is unsupported"),
    ],
)  # fmt: skip
def test_wrong_documents_are_refused(http: httpx.Client, path: str, part: Any, words: str):
    answer = ask(http, path, part)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


def test_documents_are_bounded(http: httpx.Client, monkeypatch: pytest.MonkeyPatch):
    part = {"type": "file", "file": {"file_data": as_url(b"Words", "text/plain")}}
    monkeypatch.setattr(limits, "serve_document_characters", 4)
    answer = ask(http, "/v1/chat/completions", part)
    assert answer.status_code == 413 and "serve_document_characters" in answer.text
    monkeypatch.undo()
    monkeypatch.setattr(limits, "serve_items", 1)
    messages = [{"role": "user", "content": [part, part]}]
    answer = http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1})
    assert answer.status_code == 400 and "serve_items" in answer.text


def test_stored_files_are_bounded_before_they_are_read(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
):
    form = {"purpose": "user_data"}
    id = http.post("/v1/files", files={"file": ("b.txt", b"Words")}, data=form).json()["id"]
    part = {"type": "file", "file": {"file_id": id}}
    monkeypatch.setattr(limits, "serve_items_bytes", 9)
    assert ask(http, "/v1/chat/completions", part).status_code == 200
    messages = [{"role": "user", "content": [part, part]}]
    answer = http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1})
    assert answer.status_code == 400 and "serve_items_bytes" in answer.text
    monkeypatch.setattr(limits, "serve_items_bytes", 4)
    monkeypatch.setattr(Path, "read_bytes", None)
    answer = ask(http, "/v1/chat/completions", part)
    assert answer.status_code == 400 and "serve_items_bytes" in answer.text


@pytest.mark.parametrize("kind", ["search_result", "document"])
def test_documents_have_no_documents_within(http: httpx.Client, kind: str):
    block: Any = {"type": "text", "text": "A"}
    for _ in range(2):
        if kind == "document":
            block = {"type": kind, "source": {"type": "content", "content": [block]}}
        else:
            block = {"type": kind, "title": "T", "source": "S", "content": [block]}
    answer = ask(http, "/v1/messages", block)
    assert answer.status_code == 400, answer.text
    assert "supported are text and image" in answer.json()["error"]["message"]


@needs_pypdf
def test_a_page_has_no_more_text_than_wanted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    stdin = io.TextIOWrapper(io.BytesIO(pdf("a" * 1000)))
    monkeypatch.setattr("sys.stdin", stdin)
    monkeypatch.setattr(document_child, "bound", lambda memory, seconds: None)
    document_child.main(0, 0, 10)
    assert json.loads(capsys.readouterr().out) == {"text": "a" * 11}


@needs_pypdf
def test_the_pdf_files_of_a_request_share_their_time(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
):
    clock = SimpleNamespace(monotonic=count(0, 20).__next__)  # 20 s for a file, of 30
    monkeypatch.setattr("ggmodel.serve.documents.time", clock)
    (path, part), *_ = parts(pdf("Once"))
    messages = [{"role": "user", "content": [part] * 3}]
    answer = http.post(path, json={"messages": messages, "max_tokens": 1})
    assert answer.status_code == 400 and "content[2]" in answer.json()["error"]["param"]
    assert "serve_document_seconds" in answer.text


@needs_pypdf
@pytest.mark.parametrize(
    ("data", "words"),
    [(pdf(""), "has no text"), (b"%PDF-1.4\n" + b"x" * 99, "cannot be read"), (b"%PDF-", "cannot")],
)
def test_pdf_files_without_text_are_refused(http: httpx.Client, data: bytes, words: str):
    answer = ask(http, *parts(data)[0])
    assert answer.status_code == 400 and words in answer.json()["error"]["message"]


@needs_pypdf
def test_a_pdf_file_that_takes_long_is_given_up(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(limits, "serve_document_seconds", 0.01)
    answer = ask(http, *parts(pdf("Once"))[0])
    assert answer.status_code == 400 and "serve_document_seconds" in answer.text


def test_the_error_names_what_to_install(http: httpx.Client, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    answer = ask(http, *parts(pdf("Once"))[0])
    assert answer.status_code == 400
    assert "pypdf" in answer.text and "documents" in answer.text
