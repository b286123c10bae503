"""Ollama's chat templates, which are written for Go's text/template, as Jinja.

The names of fields become those of the JSON that they stand for: `.Function.Name` is
`function.name`. Text becomes string literals, so that no rule of Jinja about blanks applies.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from ..errors import Unsupported

_TOKEN = re.compile(
    r"""\s*(?:(?P<text>"(?:[^"\\]|\\.)*"|`[^`]*`)|(?P<number>-?\d+(?:\.\d+)?)|"""
    r"""(?P<variable>\$\w*)|(?P<fields>(?:\.\w+)+)|(?P<dot>\.)|(?P<word>\w+)|(?P<sign>[()|]))""",
    re.DOTALL,
)
_COMPARED = {"ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_CONSTANTS = {"true": "true", "false": "false", "nil": "none"}
_DEEPEST = 50


@dataclass
class Scope:
    """Jinja's names of `.` and the variables; "" is `$`."""

    dot: str
    variables: dict[str, str] = field(default_factory=dict)


def literal(text: str) -> str:
    """A text as a string of Jinja."""
    escapes = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return "'" + "".join(escapes.get(c, c) for c in text) + "'"


def snake(name: str) -> str:
    """The key in JSON of a field of Go: ToolCalls → tool_calls."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


class Expressions:
    """Reads one pipeline.

    Args:
        text: of the action.
        scope: where it stands.
    """

    def __init__(self, text: str, scope: Scope):
        self._scope, self._tokens, self._depth = scope, list[tuple[str, str]](), 0
        at = 0
        text = text.strip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None or match.lastgroup is None:
                raise Unsupported(f"has {text[at : at + 40]!r}, which is unsupported")
            # Fields that touch what stands before them belong to it.
            kind = match.lastgroup
            if kind == "fields" and at and not text[match.start()].isspace():
                kind = "more"
            self._tokens.append((kind, match[match.lastgroup]))
            at = match.end()

    def whole(self) -> str:
        """The pipeline, and nothing after it."""
        value = self._pipeline()
        if self._tokens:
            raise Unsupported(f"has {self._tokens[0][1][:40]!r} where an action should end")
        return value

    def _pipeline(self) -> str:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise Unsupported("is nested too deeply")
        value = self._command([])
        while self._next() == ("sign", "|"):
            self._tokens.pop(0)
            value = self._command([value])
        self._depth -= 1
        return value

    def _next(self) -> tuple[str, str]:
        return self._tokens[0] if self._tokens else ("", "")

    def _command(self, piped: list[str]) -> str:
        kind, word = self._next()
        if kind == "word" and word not in _CONSTANTS:
            self._tokens.pop(0)
            args = []
            while self._next()[0] and self._next() not in (("sign", "|"), ("sign", ")")):
                args.append(self._operand())
            return self._call(word, [*args, *piped])
        if piped:
            raise Unsupported(f"pipes into {word[:40]!r}, which is no function")
        return self._operand()

    def _operand(self) -> str:
        kind, text = self._tokens.pop(0) if self._tokens else ("", "")
        if kind == "text":
            value = literal(_unquoted(text))
        elif kind == "number":
            value = text
        elif kind == "variable":
            if text[1:] not in self._scope.variables:
                raise Unsupported(f"reads {text}, which it never declared")
            value = self._scope.variables[text[1:]]
        elif kind == "fields":
            value = _fields(self._scope.dot, text)
        elif kind == "dot":
            value = self._scope.dot
        elif kind == "word" and text in _CONSTANTS:
            value = _CONSTANTS[text]
        elif (kind, text) == ("sign", "("):
            value = f"({self._pipeline()})"
            if self._next() != ("sign", ")"):
                raise Unsupported("has a bracket that does not close")
            self._tokens.pop(0)
        else:
            raise Unsupported(f"has {text[:40]!r} where a value should be")
        while self._next()[0] == "more":
            value = _fields(value, self._tokens.pop(0)[1])
        return value

    def _call(self, name: str, args: list[str]) -> str:
        n = len(args)
        if name in ("and", "or") and n:
            return "(" + f" {name} ".join(args) + ")"
        if name == "not" and n == 1:
            return f"(not {args[0]})"
        if name == "eq" and n > 1:
            return "(" + " or ".join(f"{args[0]} == {other}" for other in args[1:]) + ")"
        if name in _COMPARED and n == 2:
            return f"({args[0]} {_COMPARED[name]} {args[1]})"
        if name == "len" and n == 1:
            return f"(({args[0]} or []) | length)"
        if name == "index" and n > 1:
            return args[0] + "".join(f"[{arg}]" for arg in args[1:])
        if name == "slice" and 1 < n < 4:
            return f"{args[0]}[{':'.join([*args[1:], ''][:2])}]"
        if name in ("json", "toJson") and n == 1:
            return f"({args[0]} | tojson(separators=(',', ':')))"
        if name == "print" and n == 1:
            return args[0]
        if name == "currentDate" and n == 0:
            return "strftime_now('%Y-%m-%d')"
        raise Unsupported(f"calls {name[:40]!r} with {n} values, which is unsupported")


def _fields(value: str, fields: str) -> str:
    return value + "".join(f"[{literal(snake(name))}]" for name in fields[1:].split("."))


def _unquoted(text: str) -> str:
    if text[0] == "`":
        return text[1:-1]
    try:
        return json.loads(text, strict=False)
    except ValueError:
        raise Unsupported(f"has the text {text[:40]}, whose escapes are unsupported") from None


_ACTION = re.compile(r"\{\{(-\s)?(.*?)(\s-)?\}\}", re.DOTALL)
_DECLARES = re.compile(r"\$(\w+)\s*(:?=)\s*(.*)", re.DOTALL)
_RANGE = re.compile(r"\$(\w+)\s*(?:,\s*\$(\w+)\s*)?:=\s*(.*)", re.DOTALL)

# Prints a value as Go does: objects and lists as JSON, nothing for what is absent.
_SHOW = (
    "{%- macro show(v) -%}{%- if v is string -%}{{ v }}{%- elif v is boolean -%}"
    "{{ 'true' if v else 'false' }}{%- elif v is mapping or v is iterable and v is defined -%}"
    "{{ v | tojson(separators=(',', ':')) }}{%- elif v is defined and v is not none -%}{{ v }}"
    "{%- endif -%}{%- endmacro -%}"
)
# Neighbours of the same role become one message; the system's are also one text.
_COLLATE = (
    "{%- set all = namespace(system='', has_system=false, messages=[]) -%}"
    "{%- for m in messages -%}{%- set text = m['content'] or '' -%}"
    "{%- if m['role'] == 'system' -%}"
    "{%- set all.system = all.system + ('\\n\\n' if all.has_system else '') + text -%}"
    "{%- set all.has_system = true -%}{%- endif -%}"
    "{%- set last = all.messages[-1] if all.messages else {} -%}"
    "{%- if last and last['role'] == m['role'] and m['role'] != 'tool' -%}"
    "{%- set one = dict(last, content=last['content'] + '\\n\\n' + text) -%}"
    "{%- set all.messages = all.messages[:-1] + [one] -%}"
    "{%- else -%}{%- set all.messages = all.messages + [dict(m, content=text{OF_MESSAGE})] -%}"
    "{%- endif -%}{%- endfor -%}"
)
_WHOLE = (
    "{%- set root = dict({'system': all.system, 'messages': all.messages, 'response': ''}, **own) "
    "-%}"
)
# Fields beside the messages. A template gets those that it reads: the rest would be taken for what
# the model can do.
_OWN = {
    "Tools": "'tools': tools or []",
    "Think": "'think': enable_thinking | default(true)",
    "ThinkLevel": "'think_level': reasoning_effort | default('')",
    "IsThinkSet": "'is_think_set': true",
}
# Templates without messages are written once a turn, the last time up to the answer.
_TURNS = (
    "{%- macro turn(root) -%}{TURN}{%- endmacro -%}{%- macro last(root) -%}{LAST}{%- endmacro -%}"
    "{%- set t = namespace(system='', prompt='', response='') -%}"
    "{%- for m in all.messages -%}"
    "{%- if m['role'] == 'system' and (t.prompt or t.response) "
    "or m['role'] == 'user' and t.response -%}"
    "{{ turn(dict({'system': t.system, 'prompt': t.prompt, 'response': t.response}, **own)) }}"
    "{%- set t.system = '' -%}{%- set t.prompt = '' -%}{%- set t.response = '' -%}{%- endif -%}"
    "{%- if m['role'] == 'system' -%}{%- set t.system = m['content'] -%}"
    "{%- elif m['role'] == 'user' -%}{%- set t.prompt = m['content'] -%}"
    "{%- elif m['role'] == 'assistant' -%}{%- set t.response = m['content'] -%}{%- endif -%}"
    "{%- endfor -%}"
    "{{ last(dict({'system': t.system, 'prompt': t.prompt, 'response': t.response}, **own)) }}"
)


def as_jinja(template: str, name: str) -> str:
    """A template of Ollama in Jinja.

    Args:
        name: of the model, for messages.

    Raises:
        Unsupported: it holds what is no part of the language that Ollama's templates use.
    """
    try:
        nodes = _nodes(template)
        fields = {match[1] for match in re.finditer(r"\.(\w+)", " ".join(n[1] for n in nodes))}
        thoughts = ", thinking=m['reasoning_content'] or ''" if "Thinking" in fields else ""
        own = ", ".join(value for name, value in _OWN.items() if name in fields)
        begin = (
            _SHOW + _COLLATE.replace("{OF_MESSAGE}", thoughts) + f"{{%- set own = {{{own}}} -%}}"
        )
        if "Messages" in fields:
            return begin + _WHOLE + _Writer().write(nodes)
        if "Response" not in fields:
            nodes.append(("action", ".Response"))
        turn, last = _Writer().write(nodes), _Writer(until_response=True).write(nodes)
        return begin + _TURNS.replace("{TURN}", turn).replace("{LAST}", last)
    except Unsupported as error:
        raise Unsupported(
            f"the chat template of {name} in Ollama {error}; pass template= with Jinja text, or "
            "load the model by its path"
        ) from None


def _nodes(template: str) -> list[tuple[str, str]]:
    """("text", …) and ("action", …) in order, blanks trimmed as the actions ask for it."""
    nodes: list[tuple[str, str]] = []
    at, trim = 0, False
    while (begin := template.find("{{", at)) >= 0:
        if (end := template.find("}}", begin)) < 0:
            raise Unsupported("has an action that does not end")
        text = template[at:begin]
        text = text.lstrip(" \t\r\n") if trim else text
        match = _ACTION.fullmatch(template, begin, end + 2)
        assert match is not None
        nodes.append(("text", text.rstrip(" \t\r\n") if match[1] else text))
        at, trim = end + 2, bool(match[3])
        if not match[2].strip().startswith("/*"):
            nodes.append(("action", match[2].strip()))
    text = template[at:]
    nodes.append(("text", text.lstrip(" \t\r\n") if trim else text))
    return [node for node in nodes if node[1]]


@dataclass
class _Writer:
    """Writes nodes as Jinja.

    Args:
        until_response: leave out what comes after the answer's place.
    """

    until_response: bool = False
    scopes: list[tuple[str, Scope]] = field(default_factory=list)
    count: int = 0
    cut: bool = False

    def write(self, nodes: list[tuple[str, str]]) -> str:
        self.scopes.append(("", Scope("root", {"": "root"})))
        written = "".join(
            self._text(body) if kind == "text" else self._action(body) for kind, body in nodes
        )
        if len(self.scopes) > 1:
            raise Unsupported(f"has a {self.scopes[-1][0]!r} without its end")
        return written

    def _text(self, text: str) -> str:
        return "" if self.cut else f"{{{{ {literal(text)} }}}}"

    def _action(self, body: str) -> str:
        word, _, rest = body.partition(" ")
        if word in ("if", "range", "with"):
            return getattr(self, f"_{word}")(rest.strip())
        if word == "else":
            return self._else(rest.strip())
        if word == "end":
            return self._end()
        if word in ("define", "template", "block"):
            raise Unsupported(f"uses {word!r}")
        if word in ("break", "continue") and not rest:
            return "" if self.cut else f"{{%- {word} -%}}"
        if match := _DECLARES.fullmatch(body):
            return self._set(match[1], match[2] == ":=", self._read(match[3]))
        value = self._read(body)
        if self.cut:
            return ""
        self.cut = self._is_answer(body)
        return f"{{{{ show({value}) }}}}"

    def _is_answer(self, body: str) -> bool:
        return self.until_response and ".Response" in body

    def _read(self, text: str) -> str:
        return Expressions(text, self.scopes[-1][1]).whole()

    def _set(self, name: str, declares: bool, value: str) -> str:
        variables = self.scopes[-1][1].variables
        if declares:
            variables[name] = f"{self._name()}.v"
            return f"{{%- set {variables[name][:-2]} = namespace(v={value}) -%}}"
        if name not in variables:
            raise Unsupported(f"sets ${name}, which it never declared")
        return f"{{%- set {variables[name]} = {value} -%}}"

    def _open(self, kind: str, dot: str, **variables: str) -> None:
        outer = self.scopes[-1][1]
        self.scopes.append((kind, Scope(dot, {**outer.variables, **variables})))

    def _if(self, condition: str) -> str:
        self._open("if", self.scopes[-1][1].dot)
        before = (
            ""
            if not (match := _DECLARES.fullmatch(condition))
            else self._set(match[1], True, self._read(match[3]))
        )
        value = self._read(f"${match[1]}" if match else condition)
        self.cut = self.cut or self._is_answer(condition)
        return before + f"{{%- if {value} -%}}"

    def _with(self, condition: str) -> str:
        match = _DECLARES.fullmatch(condition)
        value, name = self._read(match[3] if match else condition), self._name()
        self._open("with", f"{name}.v", **({match[1]: f"{name}.v"} if match else {}))
        return f"{{%- set {name} = namespace(v={value}) -%}}{{%- if {name}.v -%}}"

    def _range(self, what: str) -> str:
        match = _RANGE.fullmatch(what)
        items, name = self._read(match[3] if match else what), self._name()
        key, value = f"{name}k.v", f"{name}v.v"
        names = [n for n in (match[1], match[2]) if n] if match else []
        variables = dict(zip(names, (key, value) if len(names) > 1 else (value,), strict=False))
        self._open("range", value, **variables)
        return (
            f"{{%- set {name} = namespace(v={items} or []) -%}}"
            f"{{%- for {name}i in ({name}.v | dictsort(true) if {name}.v is mapping "
            f"else {name}.v) -%}}"
            f"{{%- set {name}k = namespace(v={name}i[0] if {name}.v is mapping "
            f"else loop.index0) -%}}"
            f"{{%- set {name}v = namespace(v={name}i[1] if {name}.v is mapping else {name}i) -%}}"
        )

    def _else(self, rest: str) -> str:
        kind = self.scopes[-1][0]
        if kind in ("", "else"):
            raise Unsupported("has an 'else' without its beginning")
        outer = self.scopes[-2][1]
        if not rest:
            self.scopes[-1] = (kind, Scope(outer.dot, dict(outer.variables)))
            return "{%- else -%}"
        word, _, condition = rest.partition(" ")
        if word != "if" or kind != "if":
            raise Unsupported(f"uses 'else {word}'")
        self.scopes[-1] = (kind, Scope(outer.dot, dict(outer.variables)))
        return f"{{%- elif {self._read(condition)} -%}}"

    def _end(self) -> str:
        kind = self.scopes.pop()[0]
        if not kind:
            raise Unsupported("has an 'end' without its beginning")
        return "{%- endfor -%}" if kind == "range" else "{%- endif -%}"

    def _name(self) -> str:
        self.count += 1
        return f"v{self.count}"
