"""Requests of many clients at random times, some of which go away: each gets its own answer.

Texts are given, so that near ties decide nothing: chats must say a sentence, prompts have
log-probabilities. Sums in another order make 0.01 of these, another client's prompt whole units.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest

WORDS = ("dog", "cat", "bird", "girl", "boy", "tree", "house", "ball", "star", "boat")
COUNT = 40
CLOSE = 0.2
Make = Callable[[str], tuple[str, Any]]


def chat(word: str) -> tuple[str, Any]:
    messages = [{"role": "user", "content": f"A story about a {word}."}]
    said = f"The {word} and the other {word} went home."
    return "/v1/chat/completions", {"messages": messages, "guided_choice": [said]}


def completion(word: str) -> tuple[str, Any]:
    prompt = f"Once there was a {word}, and then there was another {word}."
    return "/v1/completions", {"prompt": prompt, "echo": True, "logprobs": 0, "max_tokens": 0}


def embedding(word: str) -> tuple[str, Any]:
    return "/v1/embeddings", {"input": [f"a {word}", word]}


def read(text: str) -> tuple[str, list[float]]:
    """The text of an answer and its numbers, whether it was streamed or not."""
    lines = [line.removeprefix("data: ") for line in text.splitlines()]
    found = [json.loads(line) for line in lines if line.startswith("{")]
    if "data" in found[0]:
        return "", [number for one in found[0]["data"] for number in one["embedding"]]
    said, numbers = "", []
    for choice in [choice for one in found for choice in one["choices"]]:
        part = choice.get("message") or choice.get("delta") or choice
        said += part.get("content") or part.get("text") or ""
        logprobs = choice["logprobs"] or {}
        numbers += logprobs.get("token_logprobs", [])[1:]
    return said, numbers


async def ask(
    http: httpx.AsyncClient, make: Make, word: str, stream: bool = False, leave: int | None = None
) -> tuple[str, list[float]] | None:
    """The answer; None if the client goes away after so many lines."""
    path, body = make(word)
    async with http.stream("POST", path, json={**body, "stream": stream}) as answer:
        assert answer.status_code == 200
        lines: list[str] = []
        async for line in answer.aiter_lines():
            lines.append(line)
            if leave is not None and len(lines) >= leave:
                return None
        return read("\n".join(lines))


@pytest.mark.parametrize("seed", range(3))
def test_answers_are_those_that_each_would_get_alone(url: str, seed: int):
    dice = random.Random(seed)
    makes: list[Make] = [chat, completion, embedding]
    plan = [(dice.choice(makes), dice.choice(WORDS)) for _ in range(COUNT)]

    async def run() -> None:
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            alone = {(make, word): await ask(http, make, word) for make, word in set(plan)}

            async def one(make: Make, word: str) -> None:
                await asyncio.sleep(dice.random() / 4)
                leave = dice.choice((None, None, 1, 5))
                found = await ask(http, make, word, dice.random() < 0.6, leave)
                if found is None:
                    return
                wanted = alone[make, word]
                assert wanted is not None
                assert found[0] == wanted[0]
                assert wanted[0] or wanted[1]
                np.testing.assert_allclose(found[1], wanted[1], atol=CLOSE)

            await asyncio.gather(*(one(make, word) for make, word in plan))

    asyncio.run(run())
