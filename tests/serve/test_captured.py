"""Results of modules in answers, and steering by request."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import ggmodel
from ggmodel import Steering
from ggmodel.workbench.inside import save_steering
from tests.runner.requests.hooks import direction
from tests.serving import running

STORIES = Path(__file__).parents[2] / "examples" / "assets" / "stories.gguf"
ASKED: Any = {"prompt": "Once upon a time", "max_tokens": 5, "temperature": 0}
CHAT: Any = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3, "temperature": 0}
PUSH = Steering({2: 20 * direction(192)})


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A server whose model has a steering vector that acts when it is asked for."""
    path = tmp_path_factory.mktemp("steering") / "push.gguf"
    save_steering(path, PUSH, "llama")
    with (
        running(str(STORIES), "--steer", f"{path}:0", "--deterministic") as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def stories() -> Iterator[ggmodel.LoadedModel]:
    with ggmodel.load(STORIES, deterministic=True) as model:
        yield model


def arrays(captured: Any) -> dict[str, np.ndarray]:
    return {
        name: np.frombuffer(base64.b64decode(rows["data"]), "<f4").reshape(rows["shape"])
        for name, rows in captured.items()
    }


def events(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def test_an_answer_has_what_it_asks_for(http: httpx.Client, stories: ggmodel.LoadedModel):
    asked = {**ASKED, "capture": ["layers.*"]}
    (choice,) = http.post("/v1/completions", json=asked).json()["choices"]
    want = stories.generate(ASKED["prompt"], max_tokens=5, temperature=0, capture="layers.*")
    assert want.captured is not None
    for name, values in arrays(choice["captured"]).items():
        assert values.shape == want.captured[name].shape
        np.testing.assert_array_equal(values, want.captured[name])
    streamed = events(http.post("/v1/completions", json={**asked, "stream": True}).text)
    assert [*streamed[-1]["choices"][0]["captured"]] == [*choice["captured"]] == stories.residual
    assert "captured" not in http.post("/v1/completions", json=ASKED).text
    (choice,) = http.post("/v1/chat/completions", json={**CHAT, "capture": "head"}).json()[
        "choices"
    ]
    assert arrays(choice["captured"])["head"].shape[0] == 3
    streamed = events(
        http.post("/v1/chat/completions", json={**CHAT, "capture": "head", "stream": True}).text
    )
    assert streamed[-1]["choices"][0]["captured"]


def test_wrong_names_are_errors_of_the_request(http: httpx.Client):
    answer = http.post("/v1/completions", json={**ASKED, "capture": ["layer.1"]})
    assert answer.status_code == 400 and "nearest names are layers." in answer.text
    answer = http.post("/v1/completions", json={**ASKED, "steer": {"happy": 1.0}})
    assert answer.status_code == 400 and "no steering vector is called" in answer.text


def test_requests_choose_strengths(http: httpx.Client, stories: ggmodel.LoadedModel):
    def text(**more: Any) -> str:
        return http.post("/v1/completions", json={**ASKED, **more}).json()["choices"][0]["text"]

    assert text() == text(steer={}) == text(steer={"push": 0})
    want = stories.generate(ASKED["prompt"], max_tokens=5, temperature=0, steer=PUSH)
    assert text(steer={"push": 1}) == want != text()


def test_towers_of_pictures_are_captured_within_the_limit(monkeypatch: pytest.MonkeyPatch):
    shapes, scene = STORIES.with_name("shapes.gguf"), STORIES.with_name("scene.png")
    url = f"data:image/png;base64,{base64.b64encode(scene.read_bytes()).decode()}"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "what?"}]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 2}
    monkeypatch.setenv("GGMODEL_LIMIT_SERVE_CAPTURED_BYTES", "30000")
    with running(str(shapes)) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        answers = [
            client.post("/v1/chat/completions", json={**body, "capture": [name]})
            for name in ("vision.layers.0", "vision.layers.*")
        ]
    with ggmodel.load(shapes) as model, model.capture("vision.layers.0") as seen:
        model.encode_image(scene)
    (rows,) = arrays(answers[0].json()["choices"][0]["captured"]).values()
    assert rows.shape == seen["vision.layers.0"].shape
    np.testing.assert_allclose(rows, seen["vision.layers.0"], rtol=1e-3, atol=1e-3)
    assert "takes over 30,000 bytes" in answers[1].text
