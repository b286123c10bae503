"""Prompts of agents that change a little with each request: how much of them is computed anew."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

import ggmodel
from ggmodel.convert import from_hf
from ggmodel.model import find
from ggmodel.serve.server import Server
from tests.golden.files import load_golden
from tests.serve.conftest import ASSETS, serving
from tests.serve.standin import InProcess, InProcessModels

RULES = " ".join(f"Rule {i}: look at file {i * 7} before you change line {i}." for i in range(24))
WORDS = "the little dog ran to the old tree and saw a bird that sang about the sun ".split()


def said(number: int, length: int = 40) -> str:
    """A text of a tool or a user, different each time."""
    return f"{number}: " + " ".join(WORDS[i * (number + 3) % len(WORDS)] for i in range(length))


class Agent:
    """An agent's conversation with the server, and how much of it is computed.

    Attributes:
        new: tokens of prompts that were no part of the prompt and answer before. computed: those
            that the server did not have in its cache. Without those of the first request.
    """

    path = "/v1/chat/completions"

    def __init__(self, http: httpx.Client, runner: InProcess):
        self.http, self.runner = http, runner
        self.history: list[dict[str, Any]] = []
        self.rounds = self.new = self.computed = 0
        self._before: list[int] = []

    def body(self) -> dict[str, Any]:
        return {"messages": [{"role": "system", "content": f"I am plain. {RULES}"}, *self.history]}

    def ask(self) -> None:
        """The next request, and its answer in the history."""
        self.history.append({"role": "user", "content": said(self.rounds)})
        asked = {"max_tokens": 12, "temperature": 0, "model": "stories", **self.body()}
        answer = self.http.post(self.path, json=asked)
        assert answer.status_code == 200, answer.text
        text, computed = self.read(answer.json())
        self.history.append({"role": "assistant", "content": text})
        assert "billing" not in str(self.runner.seen[-1].prompt.messages)
        prompt = self.runner.model.chat_prompt(self.runner.seen[-1].prompt.messages)
        if self.rounds:
            alike = (a == b for a, b in zip(self._before, prompt, strict=False))
            shared = next((i for i, same in enumerate(alike) if not same), len(self._before))
            self.new, self.computed = self.new + len(prompt) - shared, self.computed + computed
        self._before = [*prompt, *self.runner.model.tokenize(text, add_special=False)]
        self.rounds += 1

    def read(self, answer: Any) -> tuple[str, int]:
        """The text of an answer, and how many tokens of its prompt were computed."""
        usage = answer["usage"]
        computed = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
        return answer["choices"][0]["message"]["content"], computed


class Reminded(Agent):
    """Its last message is followed by a reminder, which is gone from the history later."""

    def body(self) -> dict[str, Any]:
        reminder = f"<reminder> {said(self.rounds + 50, 20)} </reminder>"
        first = {"role": "system", "content": f"I am reminded. {RULES}"}
        return {"messages": [first, *self.history, {"role": "user", "content": reminder}]}


class Billed(Agent):
    """Its system prompt begins with a line that has a hash of each request, as Claude Code's."""

    path = "/v1/messages"

    def body(self) -> dict[str, Any]:
        digest = hashlib.sha256(repr(self.history).encode()).hexdigest()[:5]
        line = f"x-anthropic-billing-header: cc_version=2.1.1.{digest[:3]}; cch={digest};"
        system = [{"type": "text", "text": line}, {"type": "text", "text": f"I am billed. {RULES}"}]
        return {"system": system, "messages": self.history}

    def read(self, answer: Any) -> tuple[str, int]:
        (block,), usage = answer["content"], answer["usage"]
        return block["text"], usage["input_tokens"] + usage["cache_creation_input_tokens"]


@pytest.fixture(scope="module")
def runner() -> Iterator[InProcess]:
    options: Any = {"parallel": 4, "threads": 1, "context_length": 4096}
    with (
        pytest.warns(UserWarning, match="context"),
        ggmodel.load(ASSETS / "stories.gguf", **options) as model,
    ):
        yield InProcess(model)


@pytest.fixture
def http(runner: InProcess) -> Iterator[httpx.Client]:
    with serving(Server(InProcessModels(runner))) as url, httpx.Client(base_url=url) as client:
        client.timeout = 60
        yield client


@pytest.mark.parametrize("kinds", [[Agent], [Reminded], [Billed], [Agent, Reminded, Billed]])
def test_little_more_than_what_is_new_is_computed(
    http: httpx.Client, runner: InProcess, kinds: list[type[Agent]]
):
    agents = [kind(http, runner) for kind in kinds]
    for number in range(5):
        for agent in agents:
            agent.ask()
            # Beside its conversation an agent asks for a title, say.
            title = [{"role": "user", "content": f"Title {number}. {said(number, 9)}"}]
            asked = {"model": "stories", "messages": title, "max_tokens": 3}
            assert http.post("/v1/chat/completions", json=asked).status_code == 200
    for agent in agents:
        assert 0 < agent.new <= agent.computed <= 1.2 * agent.new


def test_an_unrelated_prompt_that_begins_alike_leaves_a_long_one():
    with ggmodel.load(ASSETS / "stories.gguf", parallel=2, threads=1) as model:

        def reused(prompt: list[int]) -> int:
            return model.generate(prompt, max_tokens=1).usage.reused_tokens

        long = list(range(10, 310))
        assert reused(long) == 0
        assert reused(long[:4] + list(range(400, 420))) == 0  # too little to be shared
        assert reused(long[:40] + list(range(500, 530))) == 40
        assert reused([*long, 5]) == 300
        assert reused([*long[:200], 5, 6]) == 200  # it goes on elsewhere: the rest goes
        assert reused(long) == 200
        for first in range(310, 1300, 110):
            assert reused(list(range(first, first + 100))) == 0
        assert reused(long) == 0  # nobody has taken it for a while


@pytest.mark.parametrize("arch", ["qwen35", "llama"])
def test_reminders_at_the_end_leave_the_rest_of_the_prompt(arch: str):
    """States of recurrent layers are kept where the next prompt will go on otherwise."""
    golden = load_golden(arch, "published" if arch == "qwen35" else "mha")
    source = from_hf(find(arch), golden.config, golden.weights())
    random = np.random.default_rng(1)

    def some(count: int) -> list[int]:
        return random.integers(3, golden.config["vocab_size"], count).tolist()

    with ggmodel.load(source, kv_type="f32", context_length=512, batch_size=64) as model:
        history, computed = some(150), list[int]()
        for _ in range(5):
            prompt = [*history, *some(9)]  # a reminder
            answer = model.generate(prompt, max_tokens=7, temperature=0)
            computed.append(len(prompt) - answer.usage.reused_tokens)
            expected = model.logits(prompt)[-1]
            assert answer.tokens == [] or answer.tokens[0] == int(expected.argmax())
            history += some(60)
        # The second request finds out how much of each prompt is gone in the next one.
        new, most = 60 + 9, 64
        assert computed[0] == 159 and computed[1] <= new + most
        assert all(new - 2 <= one <= 1.2 * new for one in computed[2:])
