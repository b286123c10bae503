"""Messages of the library, with options in place of Python's arguments."""

from __future__ import annotations

import pytest

from ggmodel.cli.terminal import in_options

OPTIONS = {
    name: "--" + name.replace("_", "-")
    for name in ("max_tokens", "context_length", "truncate", "template", "threads", "type", "rpc")
}


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("max_tokens is -1; it must be 0", "--max-tokens is -1; it must be 0"),
        ("threads is -1; two threads is fine", "--threads is -1; two threads is fine"),
        ("a larger context_length, or", "a larger --context-length, or"),
        ("too long; truncate=True leaves", "too long; --truncate leaves"),
        ("none; pass template= with Jinja", "none; pass --template with Jinja"),
        ("no workers; leave out rpc", "no workers; leave out --rpc"),
        ("a type goes with the folder", "a type goes with the folder"),
        ("'llama.context_length' is missing", "'llama.context_length' is missing"),
        ("/tmp/context_length.gguf is empty", "/tmp/context_length.gguf is empty"),
        ("key 'context_length'", "key 'context_length'"),
    ],
)
def test_messages(message: str, shown: str):
    assert in_options(message, OPTIONS) == shown
