"""Modelfiles: what is read, what is written, and what is refused."""

from __future__ import annotations

import pytest

from ggmodel.errors import ConfigError
from ggmodel.names.modelfile import Modelfile, read

TEXT = '''\ufeff# a comment
FROM ./my model.gguf
from mmproj.gguf

ADAPTER  lora.gguf
TEMPLATE """{{ if .System }}
  {{ .System }}
{{ end }}"""
SYSTEM "Two
# lines"
PARAMETER temperature 0.5
PARAMETER num_ctx 4096
PARAMETER stop "<|end|>"
parameter stop a b
PARAMETER use_mmap false
LICENSE """MIT "License"
"""
LICENSE other
MESSAGE user Why?
MESSAGE assistant """Because "it" is.
"""
PARSER qwen3
REQUIRES 0.14.0
'''


def test_all_commands_are_read():
    assert read(TEXT) == Modelfile(
        bases=["./my model.gguf", "mmproj.gguf"],
        adapters=["lora.gguf"],
        template="{{ if .System }}\n  {{ .System }}\n{{ end }}",
        system="Two\n# lines",
        parameters={
            "temperature": 0.5,
            "num_ctx": 4096,
            "stop": ["<|end|>", "a b"],
            "use_mmap": False,
        },
        licenses=['MIT "License"\n', "other"],
        messages=[
            {"role": "user", "content": "Why?"},
            {"role": "assistant", "content": 'Because "it" is.\n'},
        ],
        ignored=["PARSER", "REQUIRES"],
    )


@pytest.mark.parametrize(
    "value",
    [
        "plain",
        " before",
        "after ",
        "a\nb",
        '"',
        '"quoted"',
        'say "x"\n',
        "\n",
        "#",
        "\ta",
        '"""a',
        "é",
    ],
)
def test_what_is_written_is_read_again(value: str):
    made = Modelfile(
        bases=["/a b/model.gguf"],
        adapters=["/a.gguf"],
        template=value,
        system=value,
        parameters={"top_k": 1_000_000, "temperature": 1e-05, "stop": [value, ""]},
        licenses=[value, value],
        messages=[{"role": "system", "content": value}],
    )
    assert read(str(made)) == made


def test_lines_of_windows():
    assert str(read("FROM a\r\nSYSTEM b\r\n")) == "FROM a\nSYSTEM b\n"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "no FROM line"),
        ("SYSTEM x", "no FROM line"),
        ("FROM a\n\nWHAT b", "line 3: 'WHAT' is no command"),
        ("FROM a\nMESSAGE robot x", "line 2: a message's role"),
        ('FROM a\nSYSTEM "x\ny', "line 2: the text of SYSTEM has no end"),
        ('FROM a\nSYSTEM """x"', "line 2: the text of SYSTEM has no end"),
    ],
)
def test_what_is_no_modelfile(text: str, what: str):
    with pytest.raises(ConfigError, match=what):
        read(text)
