"""Replies as families of models write them, and what is in them.

The texts follow what the families' templates print, and what llama.cpp's tests accept.
"""

from __future__ import annotations

from typing import NamedTuple

from ggmodel.chat.replies import ReplyFormat
from ggmodel.chat.replies.families import FAMILIES, PLAIN

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": properties, "required": required},
        },
    }
    for name, properties, required in (
        ("add", {"a": {"type": "integer"}, "b": {"type": "integer"}}, ["a"]),
        ("say", {"text": {"type": "string"}, "loud": {"type": "boolean"}}, ["text"]),
        ("now", {}, []),
        ("python", {"code": {"type": "string"}}, ["code"]),
        ("set", {"value": {"type": "object"}, "list": {"type": "array"}}, []),
    )
]
ADD = ("add", {"a": 1}, "")
NOW = ("now", {}, "")


def format_of(name: str) -> ReplyFormat:
    return ReplyFormat({f.name: f for f in (*FAMILIES, PLAIN)}[name])


class Case(NamedTuple):
    family: str
    text: str
    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, dict, str], ...] = ()
    ending: str = ""


_JSON = '{"name": "add", "arguments": {"a": 1}}'
_CODER = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
_SEP = "<｜tool▁sep｜>"
_BEGIN, _END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_CALLS = "<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>"
_KIMI = '<|tool_call_begin|>functions.add:{0}<|tool_call_argument_begin|>{{"a": 1}}'
_KIMI_CALL = ("add", {"a": 1}, "functions.add:0")
_ANALYSIS = "<|channel|>analysis<|message|>hm\nso<|end|><|start|>assistant"

CASES = [
    Case("plain", "  <think>as</think> it is\n", "  <think>as</think> it is\n"),
    Case("plain", _JSON, calls=(ADD,)),
    Case("magistral", f"[THINK]hm[/THINK]{_JSON}", "", "hm", (ADD,)),
    Case("think", f"<think>hm</think>\n{_JSON}", "", "hm", (ADD,)),
    Case("think", "<think>\nhm\n\nso\n</think>\n\nHello\n", "Hello\n", "hm\n\nso"),
    Case("think", "hm</think>Hello", "Hello", "hm", ending="<｜Assistant｜><think>\n"),
    Case("think", "</think>Hello", "Hello", ending="<｜Assistant｜><think>\n"),
    Case("think", "Hello", "Hello", ending="<|im_start|>assistant\n<think>\n\n</think>\n\n"),
    Case("think", "Hello", "Hello", ending="no <think>?<|im_end|>\n<|im_start|>assistant\n"),
    Case("think", "hm</think>Hello", "Hello", "hm", ending="ASSISTANT: <think>\n"),
    Case("think", " so</think>Hello", "Hello", " so", ending="<|im_start|>assistant\n<think>hm"),
    Case("think", "The tag <think> is text </think>.", "The tag <think> is text </think>."),
    Case("think", "<think>hm", "", "hm"),
    Case("magistral", "[THINK]hm[/THINK]Hello", "Hello", "hm"),
    Case("hermes", f"<tool_call>\n{_JSON}\n</tool_call>", calls=(ADD,)),
    Case("hermes", f"<tool_call>\n{_JSON}</tool_call>", calls=(ADD,)),
    Case("hermes", f"<tool_call>{_JSON}", calls=(ADD,)),
    Case(
        "hermes",
        f"<think>hm</think>\n\nHello\n<tool_call>\n{_JSON}\n</tool_call>\n"
        '<tool_call>\n{"name": "now"}\n</tool_call>',
        "Hello",
        "hm",
        (ADD, NOW),
    ),
    Case(
        "hermes",
        '<tool_call>{"arguments": {"text": "</tool_call>\\n\\"}{"}, "name": "say"}</tool_call> Bye',
        "Bye",
        calls=(("say", {"text": '</tool_call>\n"}{'}, ""),),
    ),
    Case(
        "hermes",
        '<tool_call>{"name": "say", "arguments": "{\\"text\\": \\"1\\"}"}</tool_call>',
        calls=(("say", {"text": "1"}, ""),),
    ),
    Case(
        "hermes",
        '<tool_call>{"name": "say", "arguments": {"text": "two\nlines"}}</tool_call>',
        calls=(("say", {"text": "two\nlines"}, ""),),
    ),
    Case("qwen3-coder", _CODER, calls=(ADD,)),
    Case(
        "qwen3-coder",
        f"hm\n</think>\n\n{_CODER}",
        "",
        "hm",
        (ADD,),
        "<|im_start|>assistant\n<think>\n",
    ),
    Case("qwen3-coder", f"Hello\n\n{_CODER}\n{_CODER}", "Hello", calls=(ADD, ADD)),
    Case("qwen3-coder", "So.\n" + _CODER.removeprefix("<tool_call>\n"), "So.", calls=(ADD,)),
    Case("qwen3-coder", f"<tool_call>\n{_JSON}\n</tool_call>", f"<tool_call>\n{_JSON}"),
    Case(
        "qwen3-coder",
        "<tool_call>\n<function=python>\n<parameter=code>\n  if a:\n    b('</tool_call>')\n"
        "\n</parameter>\n</function>\n</tool_call>",
        calls=(("python", {"code": "  if a:\n    b('</tool_call>')\n"}, ""),),
    ),
    Case(
        "glm-4",
        "ok\n<tool_call>say\n<arg_key>text</arg_key>\n<arg_value>1</arg_value>\n<arg_key>loud</arg_key>\n"
        "<arg_value>true</arg_value>\n</tool_call>",
        "ok",
        calls=(("say", {"text": "1", "loud": True}, ""),),
    ),
    Case(
        "glm-4",
        "hm</think><tool_call>add<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>"
        "<tool_call>now</tool_call>",
        "",
        "hm",
        (ADD, NOW),
        "<|assistant|><think>",
    ),
    Case(
        "minimax-m2",
        'hm\n</think>\n\n<minimax:tool_call>\n<invoke name="add">\n'
        '<parameter name="a">1</parameter>\n</invoke>\n'
        '<invoke name="now">\n</invoke>\n</minimax:tool_call>',
        "",
        "hm",
        (ADD, NOW),
        "]~b]ai\n<think>\n",
    ),
    Case(
        "seed-oss",
        "<seed:think>hm</seed:think><seed:tool_call>\n<function=add>\n<parameter=a>1</parameter>\n"
        "</function>\n</seed:tool_call>",
        "",
        "hm",
        (ADD,),
    ),
    Case(
        "minicpm5",
        '<function name="say"><param name="text"><![CDATA[a < b]]></param>'
        '<param name="loud">true</param></function>',
        calls=(("say", {"text": "a < b", "loud": True}, ""),),
    ),
    Case(
        "deepseek",
        _CALLS.format(
            f'{_BEGIN}function{_SEP}add\n```json\n{{"a": 1}}\n```{_END}\n'
            f"{_BEGIN}function{_SEP}now\n```json\n{{}}\n```{_END}"
        ),
        calls=(ADD, NOW),
    ),
    Case(
        "deepseek",
        "hm</think>" + _CALLS.format(f'{_BEGIN}function{_SEP}add\n```json\n{{"a": 1}}```{_END}'),
        "",
        "hm",
        (ADD,),
        "<｜Assistant｜><think>\n",
    ),
    Case(
        "deepseek-v3.1",
        "hm</think>Hello"
        + _CALLS.format(f'{_BEGIN}add{_SEP}{{"a": 1}}{_END}{_BEGIN}now{_SEP}{{}}{_END}'),
        "Hello",
        "hm",
        (ADD, NOW),
        "<｜Assistant｜><think>",
    ),
    Case(
        "deepseek-v3.2",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="set">\n'
        '<｜DSML｜parameter name="value" string="false">{"k": 1}</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="list" string="true">[1]</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        calls=(("set", {"value": {"k": 1}, "list": "[1]"}, ""),),
    ),
    Case(
        "kimi-k2",
        "<think>hm</think>Hello<|tool_calls_section_begin|>"
        + _KIMI.format(0)
        + "<|tool_call_end|><|tool_calls_section_end|>",
        "Hello",
        "hm",
        (_KIMI_CALL,),
    ),
    Case(
        "kimi-k2",
        "<think>hm<|tool_call_begin|>"
        + (_KIMI.format(0) + _KIMI.format(1)).removeprefix("<|tool_call_begin|>"),
        "",
        "hm",
        (_KIMI_CALL, ("add", {"a": 1}, "functions.add:1")),
    ),
    Case("mistral", '[TOOL_CALLS]add[ARGS]{"a": 1}', calls=(ADD,)),
    Case(
        "mistral",
        "[THINK]so [TOOL_CALLS]add[ARGS]{}[/THINK]"
        'Hello[TOOL_CALLS]add[CALL_ID]000000001[ARGS]{"a": 1}'
        "[TOOL_CALLS]now[CALL_ID]000000002[ARGS]{}",
        "Hello",
        "so [TOOL_CALLS]add[ARGS]{}",
        (("add", {"a": 1}, "000000001"), ("now", {}, "000000002")),
    ),
    Case(
        "mistral-nemo",
        '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}, "id": "123456789"}, '
        '{"name": "now", "arguments": {}}]',
        calls=(ADD, NOW),  # an id after the arguments comes too late
    ),
    Case("llama-3", '{"name": "add", "parameters": {"a": 1}}', calls=(ADD,)),
    Case(
        "llama-3",
        '\n{"name": "add", "parameters": {"a": 1}}; {"name": "now", "parameters": {}}',
        calls=(ADD, NOW),
    ),
    Case(
        "llama-3", '{"name": "unknown", "parameters": {}}', '{"name": "unknown", "parameters": {}}'
    ),
    Case("llama-3", '{"a": [1, 2]} is JSON', '{"a": [1, 2]} is JSON'),
    Case("llama-3", "<|python_tag|>add.call(a=1)<|eom_id|>", calls=(ADD,)),
    Case("llama-3", '<|python_tag|>{"name": "add", "parameters": {"a": 1}}', calls=(ADD,)),
    Case(
        "llama-3",
        "<|python_tag|>print('{')\nprint(2)",
        calls=(("python", {"code": "print('{')\nprint(2)"}, ""),),
    ),
    Case("llama-4", "[add(a=1), now()]", calls=(ADD, NOW)),
    Case("llama-4", "<|python_start|>[add(a=1)]<|python_end|>", calls=(ADD,)),
    Case("llama-4", "[a link](https://a.b) and more", "[a link](https://a.b) and more"),
    Case(
        "lfm2",
        "<think>hm</think>Hello<|tool_call_start|>"
        '[add(a=1), say(text="a \\"b\\"\\n\\u00e9", loud=True), '
        "A.set(value={'k': [None, false, -1.5e3]}, list=[])]<|tool_call_end|>",
        "Hello",
        "hm",
        (
            ADD,
            ("say", {"text": 'a "b"\né', "loud": True}, ""),
            ("A.set", {"value": {"k": [None, False, -1500.0]}, "list": []}, ""),
        ),
    ),
    Case("lfm2", f"<|tool_call_start|>[{_JSON}]<|tool_call_end|>", calls=(ADD,)),
    Case("lfm2", "A [link](url).", "A [link](url)."),
    Case(
        "gemma4",
        '<|channel>thought\nhm<channel|>Hello<|tool_call>call:say{text:<|"|>a{"b"}<|"|>,loud:false}<tool_call|>'
        '<|tool_call>call:set{value:{k:[1,<|"|>x<|"|>]},list:[]}<tool_call|>',
        "Hello",
        "hm",
        (
            ("say", {"text": 'a{"b"}', "loud": False}, ""),
            ("set", {"value": {"k": [1, "x"]}, "list": []}, ""),
        ),
    ),
    Case("gemma4", "<|channel>thought\n<channel|>Hello<|channel>thought\n<channel|>", "Hello"),
    Case("gemma4", "<|channel><|channel>thought\n<channel|>Hello<channel|>", "Hello"),
    Case("gemma4", "<|channel>thought<channel|>Hello", "Hello", ending="<|turn>model\n"),
    Case("gemma4", "hm<channel|>Hello", "Hello", "hm", ending="<|turn>model\n<|channel>thought\n"),
    Case(
        "gemma4",
        "<|tool_call>call:now{}<tool_call|>",
        calls=(NOW,),
        ending="<|turn>model\n<|tool_call>call:now{}<tool_call|><|tool_response>x<tool_response|>",
    ),
    Case(
        "functiongemma",
        "<start_function_call>call:say{text:<escape>a, b<escape>}<end_function_call>",
        calls=(("say", {"text": "a, b"}, ""),),
    ),
    Case(
        "cohere2",
        "<|START_THINKING|>hm<|END_THINKING|><|START_ACTION|>[\n"
        '    {"tool_call_id": "0", "tool_name": "add", "parameters": {"a": 1}}\n]<|END_ACTION|>',
        "",
        "hm",
        (("add", {"a": 1}, "0"),),
    ),
    Case("cohere2", "<|START_RESPONSE|>Hello<|END_RESPONSE|>", "Hello"),
    Case(
        "command-r",
        'Action:\n```json\n[{"tool_name": "add", "parameters": {"a": 1}}]\n```',
        calls=(ADD,),
    ),
    Case("phi-4-mini", f"functools[{_JSON}]", calls=(ADD,)),
    Case("phi-4-mini", f"<|tool_call|>[{_JSON}]<|/tool_call|>", calls=(ADD,)),
    Case("granite-3", f"<|tool_call|>[{_JSON}]", calls=(ADD,)),
    Case("granite-3", "<think>hm</think><response>Hello</response>", "Hello", "hm"),
    Case(
        "nemotron-nano-2",
        f"hm\n</think>\n<TOOLCALL>[{_JSON}]</TOOLCALL>\n",
        "",
        "hm",
        (ADD,),
        "<think>\n",
    ),
    Case("apriel", f"<tool_calls>[{_JSON}]</tool_calls>", calls=(ADD,)),
    Case("functionary-3.1", '<function=add>{"a": 1}</function>', calls=(ADD,)),
    Case("harmony", _ANALYSIS + "<|channel|>final<|message|>Hello", "Hello", "hm\nso"),
    Case(
        "harmony",
        _ANALYSIS + "<|channel|>final<|message|>Hello<|return|>",
        "Hello",
        "hm\nso",
        ending="<|start|>assistant",
    ),
    Case(
        "harmony",
        ' to=functions.add<|channel|>commentary <|constrain|>json<|message|>{"a": 1}',
        calls=(ADD,),
        ending="<|start|>assistant",
    ),
    Case(
        "harmony",
        '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}<|call|>',
        calls=(ADD,),
        ending="<|start|>assistant",
    ),
    Case(
        "harmony",
        _ANALYSIS + ' to=functions.add<|channel|>analysis<|message|>{"a": 1}',
        "",
        "hm\nso",
        (ADD,),
    ),
    Case(
        "harmony",
        "<|channel|>commentary to=assistant<|channel|>analysis<|message|>hm<|end|>",
        "",
        "hm",
    ),
    Case(
        "harmony",
        "<|channel|>commentary<|message|>I look.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.now<|message|>{}<|call|>",
        "I look.",
        calls=(NOW,),
    ),
    Case("harmony", "Hello", "Hello", ending="<|start|>assistant"),
    Case(
        "harmony",
        " so<|end|><|start|>assistant<|channel|>final<|message|>Hello",
        "Hello",
        " so",
        ending="<|start|>assistant<|channel|>analysis<|message|>hm",
    ),
]
