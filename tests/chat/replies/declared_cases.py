"""Declarations of replies, texts for them, and transformers' reading of these.

make_declared.py writes the reading anew.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).with_name("declared.json")
_FUNCTION = {"name": "{name}", "arguments": "{content}"}
_THOUGHT = {"open": "<think>", "close": "</think>"}

DECLARATIONS: dict[str, dict[str, Any]] = {
    "objects": {
        "version": 1,
        "defaults": {"role": "assistant"},
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "reasoning_content": _THOUGHT,
            "tool_calls": {
                "open_pattern": r"\s*<tool_call>",
                "close": "</tool_call>",
                "content": "json",
                "repeats": True,
                "transform": {"type": "function", "function": "{content}"},
            },
            "content": {"close_pattern": r"\s*(?:<\|im_end\|>|<\|endoftext\|>)"},
        },
    },
    "tags": {
        "start_anchor": ["<|im_start|>assistant\n", "<|im_start|>tool\n"],
        "fields": {
            "thinking": _THOUGHT,
            "tool_calls": {
                "open_pattern": r"\s*<call>\s*<fn=(?P<name>[^>\n]+)>",
                "close_pattern": r"</fn>\s*</call>",
                "repeats": True,
                "content": "xml-inline",
                "content_args": {
                    "tag_pattern": r"<arg=(?P<key>[\w-]+)>\s*(?P<value>.*?)\s*</arg>",
                    "merge_duplicates": True,
                },
                "transform": {"type": "function", "function": _FUNCTION},
            },
            "content": {"content": "text"},
        },
    },
    "quotes": {
        "start_anchor_pattern": r"<\|turn>model\n|<tool_response\|>",
        "fields": {
            "reasoning_content": {"open": "<|channel>thought\n", "close": "<channel|>"},
            "tool_calls": {
                "open_pattern": r"<\|tool_call>call:(?P<name>\w+)",
                "close": "<tool_call|>",
                "repeats": True,
                "content": "json",
                "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
                "transform": {"type": "function", "function": _FUNCTION},
            },
            "content": {"close": ["<turn|>", "<|tool_response>", "<turn|>\n"]},
        },
    },
    "list": {
        "start_anchor": "[/INST]",
        "fields": {
            "reasoning": {"open": "[T]", "close": "[/T]", "repeats": True, "join": " | "},
            "tool_calls": {
                "open": "[CALLS]",
                "close": "[/CALLS]",
                "content": "json",
                "transform_each": True,
                "transform": {
                    "id": "{id}",
                    "function": {"name": "{name}", "arguments": "{args.in}"},
                },
            },
            "content": {"content_args": {"strip": False}},
        },
    },
    "lines": {
        "start_anchor": "ASSISTANT:",
        "fields": {
            "tool_calls": {
                "open_pattern": r"!(?P<name>[a-z]{2,6}?)[ \t]*\n",
                "close_pattern": r"\n\n+",
                "repeats": True,
                "content": "kv-lines",
                "content_args": {
                    "kv_sep": "=",
                    "value_parser": {"name": "json", "args": {"allow_non_json": True}},
                },
                "transform": _FUNCTION,
            },
            "content": {"open_pattern": r"\A\s*>|\n>", "close": "\n"},
        },
    },
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {
                "type": "object",
                "properties": {
                    "n": {"type": "integer"},
                    "x": {"type": ["number", "null"]},
                    "b": {"type": "boolean"},
                    "o": {"anyOf": [{"type": "object"}, {"type": "array"}]},
                    "s": {"type": "string"},
                    "m": {"type": "string", "nullable": True},
                },
            },
        },
    }
]
_CALL = (
    '<tool_call>\n{"name": "f", "arguments": {"n": 1, "s": "a\\nb", "o": {"k": [1, 2.5, null]}}}'
    "\n</tool_call>"
)
_TAGS = "<call>\n<fn=f>\n<arg=n>\n{}\n</arg>\n<arg=s>two\nlines</arg>\n</fn>\n</call>"
TEXTS: dict[str, list[tuple[str, str]]] = {
    "objects": [
        ("", "Hello"),
        ("<|im_start|>assistant\n", "<think>\nhm\n</think>\n\nHello, <b>you</b>"),
        ("<|im_start|>assistant\n<think>\n", "hm < </think>\n\nHello <think"),
        ("x<|im_start|>assistant\n", f"  Hello\n\n{_CALL}"),
        ("<|im_start|>assistant\n", f"{_CALL}\n{_CALL}\n<|im_end|>"),
        ("<|im_start|>assistant\n", f"<think>a</think>{_CALL}"),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "Hi \n <|im_end|>\n<|endoftext|>"),
        ("<think> of the user<|im_start|>assistant\n", "no thought"),
        ("", "<think>never closed"),
    ],
    "tags": [
        ("", _TAGS.format("12")),
        ("<|im_start|>assistant\n<think>", "hm</think>\nHello " + _TAGS.format("1.0")),
        ("", _TAGS.format("none") + "\n" + _TAGS.format(" 7 ")),
        ("", "<call><fn=f><arg=x>1.50</arg><arg=b>TRUE</arg><arg=o>[1]</arg></fn></call>"),
        (
            "",
            "<call><fn=f><arg=x>null</arg><arg=b>x</arg><arg=o>{}</arg><arg=m>null</arg></fn></call>",
        ),
        ("", "<call><fn=f><arg=u>1</arg><arg=u>2</arg><arg=u>3</arg></fn></call>"),
        ("", "<call><fn=g><arg=n>1</arg></fn></call>"),
        ("", "a <call> b <fn=f> c"),
    ],
    "quotes": [
        (
            "<|turn>model\n",
            '<|tool_call>call:f{s:<|"|>a, "b"<|"|>,n:-3,o:{k:[true,null]}}<tool_call|>',
        ),
        ("<|turn>model\n", "<|channel>thought\nhm<channel|>Hello<turn|>"),
        ("<|turn>model\n<|channel>thought\n", "hm\n<channel|>Hello<turn|>\n"),
        ("<|turn>model\nold<tool_response|>", "new <|tool"),
        ("<|turn>model\n", "<|tool_call>call:f{}<tool_call|><|tool_call>call:g{}<tool_call|>"),
    ],
    "list": [
        (
            "[/INST]",
            ' kept [T] a [/T][T]b[/T][CALLS][{"id": "1", "name": "f", "args": {"in": {"n": 1}}}]',
        ),
        (
            "[/INST]",
            '[CALLS][{"id": "1", "name": "f", "args": {"in": {}}}, '
            '{"id": "2", "name": "g", "args": {"in": {"a": "é"}}}][/CALLS]',
        ),
        ("[/INST]", "  as it is \n"),
        ("[/INST] x [/INST][T]", "begun[/T]said"),
    ],
    "lines": [
        ("ASSISTANT:", "!get \nn = 1\ns = a = b\n\n"),
        ("ASSISTANT:", "> said\n!getthe\no = [1, {}]\nx = word\n\n\n!go\n"),
        ("ASSISTANT:", "dropped !longname\na=1\n\n"),
    ],
}


def cuts(text: str, seed: int) -> list[str]:
    """The text in pieces."""
    random_ = random.Random(seed)
    pieces, at = [], 0
    while at < len(text):
        size = random_.choice((1, 1, 2, 3, 7, 20))
        pieces.append(text[at : at + size])
        at += size
    return pieces


def cases() -> list[dict[str, Any]]:
    return [
        {"declaration": name, "prefix": prefix, "text": text, "tools": tools}
        for name, texts in TEXTS.items()
        for prefix, text in texts
        for tools in (False, True)
    ]
