"""The examples that come with the clients of OpenAI, Anthropic and Ollama, run as they are."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import ggmodel
from ggmodel.serve.requests import ChatParams, Event, Request
from ggmodel.serve.server import Server, Settings
from tests.agents.scripted import AnyName, Script, Scripted
from tests.nightly.table import ASSETS, LOOPBACK, folder
from tests.serve.conftest import serving
from tests.serving import running

SECONDS = 120
# Models: a small one that talks, one that sees, and one that calls the first tool it is given, and
# else obeys the schema of the answer.
TALKS, SEES, CALLS = "talks", "sees", "calls"
EXAMPLES: dict[str, dict[str, str]] = {
    "openai": {
        TALKS: "async_demo demo httpx2_client responses_input_tokens streaming "
        "responses/multi_agent_streaming",
        CALLS: "parsing parsing_stream parsing_tools parsing_tools_stream responses/background "
        "responses/background_async responses/background_streaming "
        "responses/background_streaming_async responses/streaming "
        "responses/streaming_tools responses/structured_outputs responses/structured_outputs_tools",
    },
    "anthropic": {
        TALKS: "fallbacks memory/basic messages messages_stream thinking thinking_stream "
        "web_search web_search_stream",
        SEES: "images",
        CALLS: "structured_outputs structured_outputs_streaming tools tools_runner "
        "tools_runner_search_tool tools_stream",
    },
    "ollama": {
        TALKS: "async-chat async-generate chat chat-logprobs chat-stream embed generate "
        "generate-logprobs generate-stream list show",
        CALLS: "async-structured-outputs async-tools gpt-oss-tools gpt-oss-tools-stream "
        "structured-outputs tools",
    },
}
"""Client → model → the examples that it answers."""
LEFT_OUT: dict[str, dict[str, str]] = {
    "openai": {
        "pictures, videos, speech": "audio image_stream picture text_to_speech video",
        "sound as it is spoken": "realtime/* speech_to_text",
        "WebSockets": "responses/multi_agent_websocket responses/websocket",
        "uploads in parts": "uploads",
        "other services and certificates": "azure azure_ad bedrock module_client mtls_*",
    },
    "anthropic": {
        "agents that Anthropic runs": "agents* managed-agents-*",
        "threads": "message_threads",
        "programs or ids of one's own": "batch_results mcp_tool_runner "
        "tools_runner_deferred_streaming",
        "other services": "azure bedrock google_cloud vertex workload_identity",
    },
    "ollama": {
        "names in Ollama's registry": "create ps pull systemone",
        "a model that thinks, or fills gaps": "fill-in-middle multi-tool thinking*",
        "pictures made, or fetched": "generate-image multimodal-generate",
        "somebody at the keyboard": "chat-with-history multimodal-chat structured-outputs-image",
        "Ollama's search of the web": "web-search* web_search_*",
    },
}
"""Client → what the others ask for → their names, as patterns."""


class Eager(Script):
    """Calls the first tool of a request, and tells the result."""

    def answer(self, chat: ChatParams) -> str:
        results = [message["content"] for message in chat.messages if message["role"] == "tool"]
        if results or not chat.tools:
            return self.ending or f"I have seen: {results[-1] if results else 'nothing'}"
        function = chat.tools[0]["function"]
        call = {"name": function["name"], "arguments": filled(function.get("parameters") or {})}
        return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


class Obedient(Scripted):
    """Calls tools, and answers as the schema of a request wants."""

    async def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        form, ending = request.grammar, ""
        if form is not None and form.kind == "json_schema":
            ending = json.dumps(filled(json.loads(form.text)))
        self.script = Eager(ending)
        async for event in super().generate(request):
            yield event


def filled(schema: Mapping[str, Any], root: Mapping[str, Any] | None = None) -> Any:
    """The simplest value that obeys a schema of the kind that classes and functions have."""
    root = schema if root is None else root
    if "$ref" in schema:
        return filled(root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    for name in ("anyOf", "allOf", "oneOf"):
        if name in schema:
            return filled(schema[name][0], root)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type", "object")
    kind = kind if isinstance(kind, str) else kind[0]
    if kind == "object":
        return {name: filled(one, root) for name, one in schema.get("properties", {}).items()}
    if kind == "array":
        return [filled(schema["items"], root)] if "items" in schema else []
    simple = {"string": "Paris", "integer": 1, "number": 1.5, "boolean": True, "null": None}
    return simple[kind]


@contextmanager
def servers() -> Iterator[dict[str, str]]:
    """The URL of a server of each model, by any name."""
    talks = next((folder() / "smollm2").rglob("*.gguf"))
    context = ("--any-name", "--context-length", "4096", "--max-tokens", "32", "--threads", "1")
    with ExitStack() as stack:
        urls = {
            TALKS: stack.enter_context(running(f"gemma4={talks}", *context)).url,
            SEES: stack.enter_context(running(str(ASSETS / "shapes.gguf"), "--any-name")).url,
        }
        model = stack.enter_context(ggmodel.load(ASSETS / "stories.gguf", threads=1))
        server = Server(AnyName(Obedient(model)), Settings())
        urls[CALLS] = stack.enter_context(serving(server))
        yield urls


def examples(client: str) -> Path:
    """The folder of a client's examples."""
    (found,) = (folder() / "sources").glob(f"{client}-*/examples")
    return found


def runs(client: str, name: str, url: str) -> None:
    """Runs an example.

    Raises:
        AssertionError: it failed; with what it said.
    """
    variables = {
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": "any",
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "any",
        "OLLAMA_HOST": url,
    }
    file = examples(client) / f"{name}.py"
    done = subprocess.run(
        [str(folder() / "bin" / "python"), str(file)],
        cwd=file.parent,
        env={**os.environ, **LOOPBACK, **variables, "PYTHONPATH": ""},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout[-8000:]


def rows() -> list[str]:
    """The table of docs/serving.md."""
    lines: list[str] = []
    for client, models in EXAMPLES.items():
        version = examples(client).parent.name.removeprefix(f"{client}-")
        count = sum(len(names.split()) for names in models.values())
        others = "; ".join(LEFT_OUT[client])
        lines.append(f"| {client} {version} | {count} of {len(listed(client))} | {others} |")
    return lines


def listed(client: str) -> set[str]:
    """The names of a client's examples."""
    folder = examples(client)
    paths = (path.relative_to(folder).with_suffix("") for path in folder.rglob("*.py"))
    return {path.as_posix() for path in paths if path.name != "__init__"}
