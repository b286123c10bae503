"""`ggmodel serve --ray` on a real cluster of two nodes, of which one is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from typing import Any

import openai
import pytest
from ray.cluster_utils import Cluster

from tests.ray.processes import runners

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

STORIES = str(Path(__file__).parents[2] / "examples" / "assets" / "stories.gguf")
LONG = 1500  # tokens of an answer: a second or more
SPEAKING = 100  # letters; the answer before it has ended by then
PATIENCE = 120  # seconds


@dataclass
class Front:
    """`ggmodel serve` in a process."""

    process: subprocess.Popen[str]
    lines: Queue[str] = field(default_factory=Queue)
    url: str = ""

    def __post_init__(self) -> None:
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.lines.put(line)
        self.lines.put("it has ended")

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.url}/v1", api_key="none", timeout=PATIENCE, max_retries=0, **options
        )


@contextmanager
def serving(cluster: Cluster, *arguments: str) -> Iterator[Front]:
    """A server on the cluster, once it can be asked."""
    command = [sys.executable, "-m", "ggmodel", "serve", "--port", "0", "--threads", "1"]
    process = subprocess.Popen(
        [*command, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "RAY_ADDRESS": cluster.address},
    )
    front = Front(process)
    try:
        front.url = front.lines.get(timeout=PATIENCE).split()[2]
        yield front
    finally:
        process.kill()
        process.wait(10)
        front.reader.join(10)


def until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what} takes too long"
        time.sleep(0.05)


@dataclass
class Story:
    """An answer as its client sees it."""

    prompt: str
    text: str = ""
    ends: list[str] = field(default_factory=list)
    error: Exception | None = None

    def read(self, client: openai.OpenAI, tokens: int = LONG) -> None:
        asked: dict[str, Any] = {"max_tokens": tokens, "temperature": 0}
        asked["logit_bias"] = {"1": -100, "4": -100}  # without an end of its own
        try:
            with client.completions.create(
                model="stories", prompt=self.prompt, stream=True, **asked
            ) as answer:
                for chunk in answer:
                    self.text += chunk.choices[0].text
                    if chunk.choices[0].finish_reason:
                        self.ends.append(chunk.choices[0].finish_reason)
        except openai.APIError as error:
            self.error = error


def on_two_replicas(
    pool: ThreadPoolExecutor, client: openai.OpenAI
) -> tuple[list[Story], list[Future[None]]]:
    """Answers under way, of which two speak at a time: they are on two replicas of one sequence
    each. Replicas with queues of one length are chosen at random: all of six may go to one."""
    for _ in range(3):
        stories = [Story(f"Once there were {i} cats") for i in range(6)]
        reading = [pool.submit(story.read, client) for story in stories]
        while not all(done.done() for done in reading):
            if sum(len(s.text) > SPEAKING and not s.ends for s in stories) == 2:
                return stories, reading
            time.sleep(0.02)
        for done, story in zip(reading, stories, strict=True):
            done.result()
            assert story.error is None
    raise AssertionError("one replica answers all")


def test_lengths_of_queues_are_asked_for_each_time():
    """Ray Serve knows the variable, and has read it."""
    asked = (
        "from ggmodel.serve.replicas.cluster import need_ray; need_ray();"
        "from ray.serve._private import constants;"
        "print(constants.RAY_SERVE_QUEUE_LENGTH_CACHE_TIMEOUT_S)"
    )
    told = subprocess.run(
        [sys.executable, "-c", asked], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert float(told.stdout) == 0


def test_a_node_is_lost_while_answers_are_under_way(cluster: Cluster):
    # Two processors a replica: one on each node; one sequence each, so that others wait.
    given = ("--ray", "2", "--ray-cpus", "2", "--parallel", "1", "--context-length", "4096")
    with serving(cluster, *given, STORIES) as front, ThreadPoolExecutor(10) as pool:
        client = front.client()
        stories, reading = on_two_replicas(pool, client)
        spoken = [s for s in stories if s.text]
        cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)
        for done in reading:
            done.result(PATIENCE)

        cut = [s for s in stories if s.error]
        assert len(cut) == 1
        assert cut[0] in spoken
        assert "was lost; ask again" in str(cut[0].error)
        for whole in (s for s in stories if not s.error):
            assert whole.ends == ["length"]
            again = Story(whole.prompt)
            again.read(client, 40)
            assert again.text
            assert whole.text.startswith(again.text)
        assert len({s.text for s in stories}) == len(stories)

        # A new machine takes the place of the lost one.
        left = runners()
        assert len(left) == 1
        cluster.add_node(num_cpus=2)
        until(lambda: len(runners()) == 2, "the new replica")
        front.process.send_signal(signal.SIGTERM)
        assert front.process.wait(60) == 128 + signal.SIGTERM
        until(lambda: not runners(), "the end of all replicas")


def test_replicas_end_and_begin(cluster: Cluster):
    with serving(cluster, "--ray", "1", "--context-length", "16384", STORIES) as front:
        client = front.client()

        # A client goes away, and its sequences are free at once: these would take minutes.
        for _ in range(4):
            left = client.completions.create(
                model="stories", prompt="Once", stream=True, max_tokens=16000, temperature=0
            )
            next(iter(left))
            left.close()
        story = Story("Once upon a time")
        story.read(client, 10)
        assert story.ends == ["length"]

        # The model's process dies: it is told, and a new one answers.
        (first,) = runners()
        cut = Story("Once upon a time")
        reading = threading.Thread(target=cut.read, args=(client, 16000))
        reading.start()
        until(lambda: cut.text, "the first token")
        os.kill(first, signal.SIGKILL)
        reading.join(PATIENCE)
        assert "SIGKILL" in str(cut.error)
        again = Story("Once upon a time")
        again.read(client, 10)
        assert (again.text, again.ends) == (story.text, story.ends)
        assert first not in runners()

        # The server dies without a farewell: its replicas are taken away.
        front.process.kill()
        until(lambda: not runners(), "the end of all replicas")


def test_a_cluster_without_room_is_told(cluster: Cluster):
    command = [sys.executable, "-m", "ggmodel", "serve", "--ray", "5", "--port", "0", STORIES]
    environment = {**os.environ, "RAY_ADDRESS": cluster.address}
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert ended.returncode == 1
    assert "5 replicas with --ray-cpus 1 each are wanted" in ended.stderr
    assert "4 processors and 0 GPUs on 2 machines has room for 4" in ended.stderr
