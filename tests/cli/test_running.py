"""`ggmodel ps` and `ggmodel stop`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serving import running

from .test_bad_input import refused

STORIES = Path(__file__).parents[2] / "examples" / "assets" / "stories.gguf"


@pytest.mark.slow
def test_models_of_a_server_are_listed_and_unloaded(program: Any):
    key = {"GGMODEL_API_KEY": "secret"}
    with running(f"tale={STORIES}", "--keep-alive", "-1", "--api-key", "secret") as server:
        here, bearer = ("--server", server.url), {"Authorization": "Bearer secret"}
        asked = {"model": "tale", "prompt": "", "stream": False}
        httpx.post(f"{server.url}/api/generate", json=asked, headers=bearer, timeout=60)
        loaded = json.loads(program("ps", *here, "--json", env=key).stdout)
        assert [one["name"] for one in loaded] == ["tale:latest"]
        table = program("ps", *here, env=key).stdout
        assert "tale" in table and "forever" in table
        refused(program("ps", *here), "answers 401")
        refused(program("stop", "fable", *here, env=key), "fable", "`ggmodel ps` lists names")
        assert program("stop", "tale", *here, env=key).returncode == 0
        for _ in range(20):  # it ends beside the answer
            ran = program("ps", *here, env=key)
            if not ran.stdout:
                break
        assert (ran.stdout, ran.stderr) == ("", "no model is loaded; a request loads one\n")
        server.stop()


def test_no_server(program: Any):
    refused(program("ps", "--server", "http://127.0.0.1:9"), "no server at", "ggmodel serve")
    refused(program("ps", "--server", "localhost"), "give an address such as")
