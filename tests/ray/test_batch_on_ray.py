"""A batch on a real cluster of two nodes, of which one is lost midway; see `make test-ray`."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from ggmodel.cli.serve import make_server
from ggmodel.serve.batch import AnswerFile, RequestFile
from ggmodel.serve.batch.on_ray import answer_on_ray

# Ray warns of its own code.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

ASSETS = Path(__file__).parents[2] / "examples" / "assets"
COUNT = 160


def requests(path: Path) -> RequestFile:
    with open(path, "w") as file:
        for i in range(COUNT):
            messages = [{"role": "user", "content": f"Tell story {i}."}]
            body = {"messages": messages, "max_tokens": 30, "temperature": 0}
            line = {"custom_id": f"r{i}", "method": "POST", "url": "/v1/chat/completions"}
            file.write(json.dumps({**line, "body": body}) + "\n")
    return RequestFile(path)


def server() -> Any:
    models = {"stories": str(ASSETS / "stories.gguf")}
    return make_server(models, {"threads": 1, "parallel": 2}, 4)


def test_every_request_is_answered_once_though_a_node_is_lost(cluster: Cluster, tmp_path: Path):
    ray.init(address=cluster.address, log_to_driver=False)
    asked, partial = requests(tmp_path / "asked"), tmp_path / "answers.part"
    lost = threading.Event()

    def lose_a_node() -> None:
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline:
            if partial.exists() and partial.read_bytes().count(b"\n") >= 16:
                other = next(n for n in cluster.list_all_nodes() if n is not cluster.head_node)
                cluster.remove_node(other, allow_graceful=False)
                lost.set()
                return
            time.sleep(0.05)

    loser = threading.Thread(target=lose_a_node)
    loser.start()
    with AnswerFile(tmp_path / "answers", asked) as answers:
        told: list[int] = []
        answer_on_ray(asked, answers, server, 4, 2, told.append, cpus=1.0)
    loser.join(10)

    assert lost.is_set()
    found = [json.loads(line) for line in (tmp_path / "answers").read_text().splitlines()]
    assert [one["custom_id"] for one in found] == [f"r{i}" for i in range(COUNT)]
    assert {one["response"]["status_code"] for one in found} == {200}
    assert told == list(range(1, COUNT + 1))
