"""/v1/audio/transcriptions, with a runner that says what it heard."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import openai
import pytest
from msgspec.structs import replace

import ggmodel
from ggmodel.serve import endpoint
from ggmodel.serve.errors import Refused
from ggmodel.serve.forms import Form, read_form
from ggmodel.serve.requests import Segment, State, Transcribe, Transcript
from ggmodel.serve.runners.work import Work
from ggmodel.serve.server import Server
from tests.audio.sounds import pcm
from tests.serve.conftest import serving
from tests.serve.standin import InProcess, InProcessModels
from tests.transcript import voxtrals

SOUND = bytes(range(256)) + b"\r\n--\r\n\n\r" * 9


class Hearing(InProcess):
    @property
    def state(self) -> State:
        return replace(super().state, kinds=["audio"])

    async def transcribe(self, request: Transcribe) -> Transcript:
        self.seen.append(request)
        segments = [Segment(0.0, 1.5, " One."), Segment(61.25, 3600.0, "Two.")]
        return Transcript("One. Two.", request.language or "en", 3600.0, segments)


@pytest.fixture(scope="module")
def hearing(runner: InProcess) -> Hearing:
    return Hearing(runner.model)


@pytest.fixture(scope="module")
def hears(hearing: Hearing) -> Iterator[str]:
    with serving(Server(InProcessModels(hearing))) as url:
        yield url


@pytest.fixture
def listener(hears: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{hears}/v1", api_key="none", max_retries=0) as found:
        yield found


def test_the_file_arrives_byte_for_byte(listener: openai.OpenAI, hearing: Hearing):
    found = listener.audio.transcriptions.create(
        model="stories", file=("a.wav", SOUND), language="de", temperature=0.5
    )

    assert found.text == "One. Two."
    request = hearing.seen[-1]
    assert request.audio == SOUND
    assert (request.language, request.temperature, request.translate) == ("de", 0.5, False)


def test_forms_of_the_answer(listener: openai.OpenAI):
    def ask(form):
        return listener.audio.transcriptions.create(
            model="stories", file=("a.wav", SOUND), response_format=form
        )

    assert ask("text").strip() == "One. Two."
    assert "2\n00:01:01,250 --> 01:00:00,000\nTwo.\n" in ask("srt")
    assert ask("vtt").startswith("WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nOne.\n")
    verbose = ask("verbose_json")
    assert verbose.segments[1].start == 61.25
    for found in (verbose, ask("json")):
        assert (found.usage.type, found.usage.seconds) == ("duration", verbose.duration)


def test_openais_names_mean_the_model_that_hears(hears: str, url: str):
    def ask(server: str, name: str) -> int:
        path = f"{server}/v1/audio/transcriptions"
        return httpx.post(path, files={"file": SOUND}, data={"model": name}).status_code

    assert [ask(hears, name) for name in ("whisper-1", "gpt-4o-transcribe")] == [200, 200]
    assert ask(hears, "whisper-2") == ask(url, "whisper-1") == 404


def test_translations(hears: str, hearing: Hearing):
    httpx.post(f"{hears}/v1/audio/translations", files={"file": SOUND}).raise_for_status()
    assert hearing.seen[-1].translate is True


@pytest.mark.parametrize(
    ("files", "data"),
    [
        ({"other": b"x"}, {}),
        ({"file": b"x"}, {"response_format": "xml"}),
        ({"file": b"x"}, {"temperature": "hot"}),
    ],
)
def test_wrong_forms_are_400(hears: str, files: dict, data: dict):
    answer = httpx.post(f"{hears}/v1/audio/transcriptions", files=files, data=data)
    assert answer.status_code == 400


NAMED = b'--b\r\nContent-Disposition: form-data; name="file"'
BROKEN = {
    "empty": b"",
    "no end": b"--b\r\n\r\nx",
    "no name": b"--b\r\nX: y\r\n\r\nx\r\n--b--",
    "many parts": b"--b\r\n" * 999 + b"--b--",
    "many headers": NAMED + b"\r\nX: y" * 99 + b"\r\n\r\nx\r\n--b--",
    "long header": NAMED + b'; x="' + b";" * 5000 + b'"\r\n\r\nx\r\n--b--',
    "long name": NAMED[:-1] + b"x" * 300 + b'"\r\n\r\nx\r\n--b--',
    "much like delimiters": NAMED + b"\r\n\r\n" + b"\r\n--bx" * 999 + b"\r\n--b--",
}


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN)
def test_broken_forms_are_400(hears: str, body: bytes):
    headers = {"content-type": "multipart/form-data; boundary=b"}
    answer = httpx.post(f"{hears}/v1/audio/transcriptions", content=body, headers=headers)
    assert answer.status_code == 400


def test_what_is_no_form_is_415(hears: str):
    assert httpx.post(f"{hears}/v1/audio/transcriptions", json={}).status_code == 415
    long = {"content-type": 'multipart/form-data; boundary=b; x="' + ";" * 40_000 + '"'}
    answer = httpx.post(f"{hears}/v1/audio/transcriptions", headers=long, content=b"")
    assert answer.status_code == 415


HOSTILE = {
    "semicolons in a header": NAMED + b'; x="' + b";" * (1 << 20) + b'"\r\n\r\nx\r\n--b--',
    "delimiters and a letter": NAMED + b"\r\n\r\n" + b"\r\n--bx" * (1 << 18) + b"\r\n--b--",
    "beginnings of delimiters": NAMED + b"\r\n\r\n" + b"\r\n-" * (1 << 18) + b"\r\n--b--",
    "blank lines": b"\r\n" * (1 << 19) + b"x",
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
def test_hostile_forms_take_a_linear_time(body: bytes):
    began = time.thread_time()
    with suppress(Refused):
        read_form(body, "multipart/form-data; boundary=b")
    assert time.thread_time() - began < 2


def test_a_wrong_form_writes_nothing_to_the_log(caplog: pytest.LogCaptureFixture):
    with pytest.raises(Refused, match="the form is damaged"):
        read_form(b"--x\r\n", "multipart/form-data; boundary=b")
    assert not caplog.records


def test_forms_are_read_beside_the_event_loop(hears: str, monkeypatch: pytest.MonkeyPatch):
    reading, may_end = threading.Event(), threading.Event()

    def slow(body: bytes, content_type: str) -> Form:
        reading.set()
        may_end.wait(20)
        return read_form(body, content_type)

    monkeypatch.setattr(endpoint, "read_form", slow)
    ask = functools.partial(httpx.post, f"{hears}/v1/audio/translations", files={"file": SOUND})
    with ThreadPoolExecutor(1) as pool:
        form = pool.submit(ask, timeout=30)
        try:
            assert reading.wait(20)
            assert httpx.get(f"{hears}/health", timeout=10).status_code == 200
        finally:
            may_end.set()
        assert form.result().status_code == 200


def test_a_model_that_does_not_hear_says_so(url: str):
    answer = httpx.post(f"{url}/v1/audio/transcriptions", files={"file": b"x"})
    assert answer.status_code == 400
    assert "hear" in answer.json()["error"]["message"]


class Asked(InProcess):
    """Writes down what it hears, as a runner's process does."""

    async def transcribe(self, request: Transcribe) -> Transcript:
        return Work(self.model).transcribe(request, lambda: None)


@pytest.fixture(scope="module")
def voxtral(voxtral_folder: Path) -> Iterator[str]:
    with (
        ggmodel.load(voxtral_folder, context_length=voxtrals.CONTEXT) as model,
        serving(Server(InProcessModels(Asked(model)))) as url,
    ):
        yield f"{url}/v1/audio/transcriptions"


def test_a_model_that_is_asked_by_a_prompt(voxtral: str, voxtral_folder: Path):
    files = {"file": pcm(voxtrals.sound("short"), width=4)}
    found = httpx.post(voxtral, files=files, data={"language": "en"}).json()["text"]
    text = httpx.post(voxtral, files=files, data={"response_format": "text"}).text
    with ggmodel.load(voxtral_folder, context_length=voxtrals.CONTEXT) as model:
        short, english, _ = (one["answer"] for one in voxtrals.goldens().values())
        decode = model.prompts.vocabulary().decode
        assert found == decode(english, skip_special=True).strip() != ""
        assert text == decode(short, skip_special=True).strip() + "\n"
        assert model.detokenize(english).strip() != found, "the answer has control tokens"


@pytest.mark.parametrize("form", ["srt", "vtt", "verbose_json"])
def test_a_model_that_tells_no_times(voxtral: str, form: str):
    files = {"file": pcm(voxtrals.sound("short"), width=4)}
    answer = httpx.post(voxtral, files=files, data={"response_format": form})
    assert answer.status_code == 400
    assert "gives no timestamps: ask for text or JSON" in answer.json()["error"]["message"]
