"""Calls as the chat templates that llama.cpp publishes print them: each is read by its family."""

from __future__ import annotations

import json
from itertools import takewhile
from pathlib import Path

import pytest

from ggmodel.chat import ChatTemplate, Reply, reply_format
from ggmodel.errors import TemplateError

pytestmark = pytest.mark.timeout(1200)  # the first test downloads what it compares with

PLAIN = """
Apertus-8B-Instruct
GigaChat3-10B-A1.8B
GigaChat3.1-10B-A1.8B
Kimi-K3
MiniMax-M1
MiniMax-M3
fireworks-ai-llama-3-firefunction-v2
google-gemma-2-2b-it
meetkai-functionary-medium-v3.2
microsoft-Phi-3.5-mini-instruct
muse-glimmer
tencent-Hy3
upstage-Solar-Open-100B
""".split()
# They fail for calls, or print none.
SILENT = """HuggingFaceTB-SmolLM3-3B Kimi-K2-Instruct Kimi-K2-Thinking LFM2-8B-A1B LFM2.5-Instruct
deepseek-ai-DeepSeek-R1-Distill-Llama-8B ibm-granite-granite-3.3-2B-Instruct
llama-cpp-deepseek-r1 llama-cpp-rwkv-world""".split()
ARGUMENTS = {"text": "two\nlines", "n": 3}
PROPERTIES = {
    name: {"type": kind, "description": "how"}
    for name, kind in (("text", "string"), ("n", "integer"))
}
FUNCTION = {
    "name": "say",
    "description": "says it",
    "parameters": {"type": "object", "properties": PROPERTIES, "required": ["text"]},
}
TOOLS = [{"type": "function", "function": FUNCTION}]


def _printed(source: str) -> list[tuple[str, str]]:
    """Prompts, and the calls that the template prints after them."""
    user, template, found = {"role": "user", "content": "Hi"}, ChatTemplate(source), []
    for arguments in (ARGUMENTS, json.dumps(ARGUMENTS)):
        for content in ("", None):
            call = {"function": {"name": "say", "arguments": arguments}, "type": "function"}
            calls = [{"id": "123456789", **call}]
            said = {"role": "assistant", "content": content, "tool_calls": calls}
            try:
                prompt = template.render([user], tools=TOOLS)
                whole = template.render([user, said], tools=TOOLS, add_generation_prompt=False)
            except TemplateError:
                continue
            same = (a == b for a, b in zip(prompt, whole, strict=False))
            size = sum(1 for _ in takewhile(bool, same))
            found.append((prompt[:size], whole[size:]))
    return found


def _read(source: str, ending: str, text: str) -> bool:
    reply: Reply = reply_format(source).parse(text, TOOLS, ending)
    calls = [(call.name, json.loads(call.arguments)) for call in reply.calls]
    return calls == [("say", ARGUMENTS)] and "say" not in reply.content


def test_printed_calls_are_read(llama_cpp_dir: Path) -> None:
    plain, silent, wrong = [], [], []
    for path in sorted((llama_cpp_dir / "models" / "templates").glob("*.jinja")):
        source = path.read_text("utf-8")
        if reply_format(source).name == "plain":
            plain.append(path.stem)
            continue
        printed = _printed(source)
        if not any("say" in text for _, text in printed):
            silent.append(path.stem)
        elif not any(_read(source, *one) for one in printed):
            wrong.append(path.stem)
    assert not wrong
    assert silent == SILENT
    assert plain == PLAIN
