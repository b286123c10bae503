"""A server certified: one that answers as its checkpoint would, and one with a fault."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from benchmarks.certify_files import TOKENS, write_folder

import ggmodel
from ggmodel.chat import ChatTemplate
from ggmodel.errors import ConfigError, Error
from ggmodel.runner import LoadedModel
from ggmodel.workbench.certify.server import certify_server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    return write_folder(tmp_path_factory.mktemp("server") / "llama", "llama")


@contextmanager
def serving(
    model: LoadedModel,
    template: str | None = None,
    without: str = "",
    program: str = "",
    refused: int = 0,
) -> Iterator[str]:
    """The address of a server of few endpoints.

    Args:
        template: in place of the model's.
        without: the endpoint that it lacks.
        program: what it calls itself. "llama.cpp" leaves the first token of conversations out.
        refused: for so many prompts, the first ones, it has no probabilities.
    """
    tokenizer = model.tokenizer
    assert tokenizer is not None
    chat = ChatTemplate.from_metadata(model.source.metadata, tokenizer, template)
    places = itertools.count()

    def answer(path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        if path == without:
            return None
        if path == "/tokenize" and "content" in body:
            return {"tokens": tokenizer.encode(body["content"], add_special=body["add_special"])}
        if path == "/apply-template":
            extra = body.pop("chat_template_kwargs", {})
            text = chat.render(**body, **extra)
            return {"prompt": text.removeprefix("<s>") if program == "llama.cpp" else text}
        if path == "/v1/completions":
            row = model.logits(body["prompt"])[-1].astype(np.float64)
            row -= np.log(np.exp(row - row.max()).sum()) + row.max()
            top = np.argsort(-row)[: body["logprobs"]]
            each = {tokenizer.decode([int(i)]): float(row[i]) for i in top}
            top_logprobs = None if next(places) < refused else {"top_logprobs": [each]}
            return {"choices": [{"logprobs": top_logprobs}]}
        return None

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            try:
                made = answer(self.path, body)
            except Error:
                made = None
            data = json.dumps(made or {}).encode()
            self.send_response(200 if made else 404)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def version_string(self) -> str:
            return program

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.slow
def test_a_server(folder: Path):
    with ggmodel.load(folder) as model, serving(model) as url:
        certificate = certify_server(url, folder)
    assert certificate.faults == []
    assert set(certificate.checked) == {"tokenizer", "template", "behaviour"}
    (note,) = certificate.findings
    assert not note.fault and "likeliest tokens are the same" in note.message


def test_a_server_with_another_template(folder: Path):
    other = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with ggmodel.load(folder) as model, serving(model, other, "/tokenize") as url:
        certificate = certify_server(url, folder)
    assert [f.part for f in certificate.faults] == ["template"]
    assert "the tokenizer: the server has no /tokenize" in certificate.unchecked


@pytest.mark.slow
def test_llama_server(folder: Path):
    with ggmodel.load(folder) as model, serving(model, program="llama.cpp", refused=3) as url:
        certificate = certify_server(url, folder)
    assert certificate.faults == []
    assert set(certificate.checked) == {"tokenizer", "template", "behaviour"}
    assert "3 of 16 places: no probabilities" in certificate.unchecked
    (note,) = certificate.findings
    assert "of 13 likeliest tokens are the same" in note.message  # 3 are parts of characters


@pytest.mark.parametrize("ends", [False, True])
def test_places_without_probabilities_are_a_fault_of_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
):
    """But for answers that end at once."""
    if ends:
        every = frozenset(range(TOKENS))
        monkeypatch.setattr("ggmodel.tokenizer.tokenizer.end_tokens", lambda vocab: every)
    with ggmodel.load(folder) as model, serving(model, without="/tokenize", refused=3) as url:
        certificate = certify_server(url, folder)
    assert [f.part for f in certificate.faults] == ([] if ends else ["behaviour"])
    assert "3 of 16 places: no probabilities" in certificate.unchecked


@pytest.mark.parametrize("program", ["", "llama.cpp"])
def test_most_places_without_probabilities(folder: Path, program: str):
    with (
        ggmodel.load(folder) as model,
        serving(model, without="/tokenize", program=program, refused=9) as url,
    ):
        certificate = certify_server(url, folder)
    assert "behaviour" not in {*certificate.checked, *(f.part for f in certificate.findings)}
    assert "the next tokens: the server's completions have no logprobs" in certificate.unchecked


@pytest.mark.parametrize("program", ["", "llama.cpp"])
def test_what_the_template_refuses_and_the_server_does_not(
    folder: Path, tmp_path: Path, program: str
):
    stricter = shutil.copytree(folder, tmp_path / "stricter")
    settings = json.loads((stricter / "tokenizer_config.json").read_text("utf-8"))
    settings["chat_template"] = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        + settings["chat_template"]
    )
    (stricter / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    with (
        ggmodel.load(folder) as model,
        serving(model, without="/v1/completions", program=program) as url,
    ):
        certificate = certify_server(url, stricter)
    (fault,) = certificate.faults
    assert fault.part == "template" and "the checkpoint refuses one" in fault.message


@pytest.mark.parametrize("program", ["", "llama.cpp"])
def test_a_template_without_its_first_token(folder: Path, program: str):
    with ggmodel.load(folder) as model:
        template = str(model.source.metadata["tokenizer.chat_template"])
        other = template.replace("{{ bos_token }}", "") if program == "" else "<s> " + template
        assert other != template
        with serving(model, other, "/v1/completions", program) as url:
            certificate = certify_server(url, folder)
    assert [f.part for f in certificate.faults] == ["template"]


def test_addresses(folder: Path):
    with pytest.raises(ConfigError, match="is no address"):
        certify_server("127.0.0.1", folder)
    with pytest.raises(ConfigError, match="does not answer"):
        certify_server("http://127.0.0.1:1", folder)
