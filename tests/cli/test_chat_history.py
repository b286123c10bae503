"""The room that `ggmodel chat` keeps free for an answer, and the lines that are commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ggmodel

TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.role[0] }} {{ m.content }}.{% endfor %}"


@pytest.fixture(scope="module")
def path(write_gguf: Any, vary: Any, source: Any, tmp_path_factory: Any) -> Path:
    talking = vary(source, metadata={"tokenizer.chat_template": TEMPLATE})
    return write_gguf(tmp_path_factory.mktemp("chat") / "chat.gguf", talking)


def test_no_more_is_kept_free_than_an_answer_may_have(program: Any, path: Path):
    question = "abc " * 9 + "abc"
    args = ("--temperature", 0, "-n", 2, "--context-length", 64)
    ran = program("chat", path, *args, stdin=f"{question}\nlmn\n")
    with ggmodel.load(path, context_length=64) as model:
        asked = {"role": "user", "content": question}
        first = str(model.chat([asked], temperature=0, max_tokens=2))
        answered = {"role": "assistant", "content": first}
        messages = [asked, answered, {"role": "user", "content": "lmn"}]
        # A quarter of the context would not be free behind these, but two tokens are.
        assert 64 - 16 < model.length(model.chat_prompt(messages)) <= 64 - 2
        second = str(model.chat(messages, temperature=0, max_tokens=2))
    assert ran.stdout == f"{first}\n{second}\n"
    assert ran.stderr == ""


@pytest.mark.parametrize("question", ["/1", "/etc/hosts", "/"])
def test_only_a_word_behind_a_slash_is_a_command(program: Any, path: Path, question: str):
    ran = program("chat", path, "--temperature", 0, "-n", 4, stdin=question)
    with ggmodel.load(path) as model:
        said = model.chat([{"role": "user", "content": question}], temperature=0, max_tokens=4)
    assert ran.stdout == f"{said}\n"
    assert ran.stderr == ""
