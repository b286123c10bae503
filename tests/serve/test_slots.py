"""Slots saved to files, restored and erased, by llama-server's endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ggmodel.serve.models import ModelPool
from ggmodel.serve.server import Server, Settings
from tests.serve.conftest import ASSETS, serving

FOX = "Once upon a time, there was a little fox. He lived in a big"
CAT = "Once upon a time, there was a little cat. He lived in a big"


def server(folder: Path | None) -> Server:
    options = {"parallel": 2, "threads": 1, "context_length": 256}
    pool = ModelPool({"stories": str(ASSETS / "stories.gguf")}, options=options, stores=False)
    return Server(pool, Settings(slot_save_path=None if folder is None else str(folder)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("slots")


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[httpx.Client]:
    with serving(server(folder)) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


def completed(client: httpx.Client, prompt: str, slot: int) -> tuple[str, int, int]:
    """The text, and the tokens of the prompt that were computed and that were there."""
    asked = {"prompt": prompt, "id_slot": slot, "temperature": 0, "n_predict": 8}
    answer = client.post("/completion", json=asked)
    assert answer.status_code == 200, answer.text
    timings = answer.json()["timings"]
    return answer.json()["content"], timings["prompt_n"], timings["cache_n"]


def changed(client: httpx.Client, slot: Any, action: str, **body: Any) -> Any:
    answer = client.post(f"/slots/{slot}?action={action}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_slot_goes_on_from_a_file(client: httpx.Client, folder: Path):
    changed(client, 0, "erase")
    changed(client, 1, "erase")
    text, computed, _ = completed(client, FOX, 1)
    saved = changed(client, 1, "save", filename="one.bin")
    assert saved["id_slot"] == 1 and saved["filename"] == "one.bin"
    assert saved["n_saved"] == computed + 7  # the last token was never computed
    assert saved["n_written"] == (folder / "one.bin").stat().st_size
    assert saved["timings"]["save_ms"] > 0
    changed(client, 1, "erase")
    restored = changed(client, 0, "restore", filename="one.bin")
    assert (restored["n_restored"], restored["n_read"]) == (saved["n_saved"], saved["n_written"])
    assert completed(client, FOX, 0) == (text, 1, computed - 1)
    _, rest, common = completed(client, CAT, 0)
    assert rest < common


def test_a_slot_is_erased(client: httpx.Client):
    for slot in (0, 1):
        changed(client, slot, "erase")
    _, computed, there = completed(client, FOX, 1)
    assert there == 0
    assert changed(client, 1, "erase")["n_erased"] == computed + 7
    assert completed(client, FOX, 1)[1:] == (computed, 0)


def test_a_file_outlives_the_server(client: httpx.Client, folder: Path):
    text, _, _ = completed(client, FOX, 0)
    changed(client, 0, "save", filename="two.bin")
    with serving(server(folder)) as url, httpx.Client(base_url=url, timeout=60) as later:
        changed(later, 1, "restore", filename="two.bin")
        assert completed(later, FOX, 1)[1] == 1
        assert text


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/slots/0?action=save", {"filename": "../one.bin"}, 400, "no plain name"),
        ("/slots/0?action=save", {"filename": "a/b"}, 400, "no plain name"),
        ("/slots/0?action=save", {"filename": "/etc/passwd"}, 400, "no plain name"),
        ("/slots/0?action=save", {"filename": ".hidden"}, 400, "no plain name"),
        ("/slots/0?action=save", {"filename": "a\x00b"}, 400, "no plain name"),
        ("/slots/0?action=save", {"filename": "a" * 300}, 400, "no plain name"),
        ("/slots/0?action=save", {}, 400, "no plain name"),
        ("/slots/0?action=restore", {"filename": "absent.bin"}, 400, "there is no"),
        ("/slots/0?action=restore", {"filename": "broken.bin"}, 400, "damaged"),
        ("/slots/7?action=erase", {}, 400, "there is no slot 7"),
        ("/slots/-1?action=erase", {}, 400, "no number"),
        ("/slots/x?action=erase", {}, 400, "no number"),
        ("/slots/0?action=copy", {}, 400, "none of save, restore and erase"),
        ("/slots/0", {}, 400, "none of save, restore and erase"),
        ("/slots/0?action=erase", {"model": "absent"}, 404, "absent"),
    ],
)
def test_wrong_requests(
    client: httpx.Client, folder: Path, path: str, body: Any, status: int, message: str
):
    (folder / "broken.bin").write_bytes(b"broken")
    before = sorted(one.name for one in folder.iterdir())
    answer = client.post(path, json=body)
    assert answer.status_code == status, answer.text
    assert message in answer.json()["error"]["message"]
    assert str(folder) not in answer.text
    assert sorted(one.name for one in folder.iterdir()) == before


def test_links_lead_nowhere(client: httpx.Client, folder: Path, tmp_path: Path):
    (tmp_path / "target").write_bytes(b"kept")
    (folder / "link.bin").symlink_to(tmp_path / "target")
    for action in ("save", "restore"):
        answer = client.post(f"/slots/0?action={action}", json={"filename": "link.bin"})
        assert answer.status_code == 400
    assert (tmp_path / "target").read_bytes() == b"kept"


def test_slots_that_do_not_exist(client: httpx.Client):
    asked = {"prompt": "Once", "n_predict": 1, "id_slot": 5}
    answer = client.post("/completion", json=asked)
    assert answer.status_code == 400 and "there is no slot 5" in answer.json()["error"]["message"]
    assert completed(client, "Once", -1)[0]


def test_a_server_without_a_folder():
    with serving(server(None)) as url, httpx.Client(base_url=url, timeout=60) as client:
        answer = client.post("/slots/0?action=erase", json={})
        assert answer.status_code == 403
        assert "--slot-save-path" in answer.json()["error"]["message"]
