"""Grammars of replies that call functions, in llguidance's variant of Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ...errors import PromptError
from ...json_schema import COMPACT, closed
from .families import BARE, TURNS, Block, Family, Thought
from .tool_calls import Code, Json, Named, Python, Quoted, Tagged
from .values import Tools, types

_ANY = r"/(.|\n)*/"
_HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")


def grammar_of(
    family: Family,
    tools: Tools,
    choice: str,
    parallel: bool,
    strict: bool,
    special: Mapping[str, int],
    ending: str,
) -> tuple[str, str] | None:
    """See `ReplyFormat.grammar`."""
    if choice not in ("auto", "required") and choice not in tools:
        names = ", ".join(tools.parameters) or "none"
        raise PromptError(f"there is no function {choice!r} to call; the functions are: {names}")
    if choice == "required" and not tools.parameters:
        raise PromptError("there is no function to call: give tools, or let the model choose")
    block = next(block for block in family.blocks if not isinstance(block.form, Code))
    rules = _Rules(family, block, tools, special)
    if choice == "auto":
        if not (strict or any(tools.strict.values())):
            return None
        free = {name for name, is_strict in tools.strict.items() if not (strict or is_strict)}
        return rules.within_text(parallel, free, ending)
    names = list(tools.parameters) if choice == "required" else [choice]
    parallel = parallel and choice == "required"
    return rules.grammar(_joined(rules.thought(ending), rules.calls(names, parallel)))


class _Rules:
    """The rules of one grammar."""

    def __init__(self, family: Family, block: Block, tools: Tools, special: Mapping[str, int]):
        self._family, self._block, self._tools = family, block, tools
        self._special = special
        names = sorted(filter(None, special), key=len, reverse=True)
        self._marks = re.compile("|".join(map(re.escape, names)) or r"(?!)")
        self._rules: list[str] = []

    def within_text(self, parallel: bool, free: set[str], ending: str) -> tuple[str, str] | None:
        """Any text, with calls in it that obey their schemas, but for those of `free`."""
        trigger = self._block.open
        for name in free:
            self._tools.parameters[name] = {}
        names = list(self._tools.parameters)
        if self._family.channels:
            return self._messages(names, ending)
        if not trigger:
            return self._calls_or_text(names, parallel)
        call = self.calls(names, parallel=False, opened=True)
        # A lazy lexeme ends with the trigger, at its first: no text goes on beyond it.
        before = f"{_ANY} {self._text(trigger)}"
        if trigger not in self._special:
            self._rules.append(f"before[lazy]: /(.|\\n)*{_escaped(trigger)}/")
            before = "before"
        self._rules.append(f"rest: {_ANY}")
        return self.grammar(f"({before} {call}){'*' if parallel else '?'} rest")

    def _messages(self, names: list[str], ending: str) -> tuple[str, str] | None:
        """Messages of harmony: thoughts and words before a call, or the last words."""
        opened = _of_assistant(ending).rpartition("<|channel|>")[2]
        if any(mark not in self._special for mark in _HARMONY) or opened.startswith("final"):
            return None
        again = f"{self._until('<|end|>')} {self._text('<|start|>assistant')}"
        heads = [self._text(f"<|channel|>{name}<|message|>") for name in ("analysis", "commentary")]
        before = self._rule(f"({' | '.join(heads)}) {again}")
        last = self._rule(f"{self._text('<|channel|>final<|message|>')} {_ANY}")
        call = self.calls(names, parallel=False)
        rest = f"{before}* ({last} {self._text('<|return|>')}? | {call} {self._text('<|call|>')}?)"
        is_open = "<|message|>" in opened and "<|end|>" not in opened
        return self.grammar(f"{again} {rest}" if is_open else rest)

    def _calls_or_text(self, names: list[str], parallel: bool) -> tuple[str, str] | None:
        """Calls, or text that begins as none of them can."""
        blocks = self._family.blocks
        marks = [block.open for block in blocks if block.open]
        if self._block is BARE or any(mark not in self._special for mark in marks):
            return None  # nothing tells where a call begins
        begins = "".join(begin[0] for block in blocks for begin in block.begins)
        text = f"/\\s*([^\\s{re.escape(begins)}](.|\\n)*)?/"
        return self.grammar(f"{self.calls(names, parallel)} | {text}")

    def grammar(self, start: str) -> tuple[str, str]:
        return "lark", "\n".join(["%llguidance {}", f"start: {start}", *self._rules])

    def _text(self, text: str) -> str:
        """A text whose special tokens are such."""
        parts, at = [], 0
        for mark in self._marks.finditer(text):
            parts += [_quoted(text[at : mark.start()]), f"<[{self._special[mark[0]]}]>"]
            at = mark.end()
        return _joined(*parts, _quoted(text[at:]))

    def _until(self, mark: str) -> str:
        """Any text that ends with a mark."""
        if mark in self._special:
            return f"{_ANY} {self._text(mark)}"
        name = f"until_{len(self._rules)}"
        self._rules.append(f"{name}[lazy]: /(.|\\n)*{_escaped(mark)}/")
        return name

    def _json(self, schema: Mapping[str, Any], name: str) -> str:
        """JSON of a schema, in which references into the function's parameters hold."""
        whole = self._tools.parameters.get(name, {})
        kept = {key: whole[key] for key in ("$defs", "definitions") if key in whole}
        compact = {**closed({**kept, **schema}), "x-guidance": COMPACT}
        return f"%json {json.dumps(compact, ensure_ascii=False)}"

    def _rule(self, body: str) -> str:
        name = f"rule_{len(self._rules)}"
        self._rules.append(f"{name}: {body}")
        return name

    def thought(self, ending: str) -> str:
        """The thought that comes first: one that is open already, or that may come."""
        turn = max((ending.rfind(mark) for mark in TURNS), default=-1)
        begun, channels = ending[max(turn, 0) :], self._family.channels
        if channels:
            begun = _of_assistant(ending)
            thought = Thought("<|channel|>analysis<|message|>", "<|end|>")
            close = self._until(thought.close) + " " + self._text("<|start|>assistant")
        elif self._family.thoughts:
            thought = self._family.thoughts[0]
            close = self._until(thought.close)
        else:
            return ""
        if thought.open in begun:
            return "" if thought.close in begun else f"{close} /\\n{{0,2}}/"
        return f"({self._text(thought.open)} {close} /\\n{{0,2}}/)?"

    def calls(self, names: list[str], parallel: bool, opened: bool = False) -> str:
        """One call or more of the functions; `opened` if the block's mark has come."""
        block, (begin, end) = self._block, self._family.section
        if self._family.channels:
            return self._rule(" | ".join(map(self._message, names)))
        call = self._rule(" | ".join(self._call(name) for name in names))
        listed = isinstance(block.form, Python) or (
            isinstance(block.form, Json) and block.form.listed
        )
        if listed:
            more = f' (", " {call})*' if parallel else ""
            call = self._rule(f'"[" {call}{more} "]"')
        first = self._rule(_joined(call, self._text(block.close)))
        if opened:
            return first
        whole = self._rule(_joined(self._text(block.open), first))
        if parallel and not listed and block.open:
            whole = self._rule(f"{whole} (/\\n?/ {whole})*")
        return f"{self._text(begin)} {whole} {self._text(end)}" if begin else whole

    def _message(self, name: str) -> str:
        """A message of harmony to a function."""
        head = f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
        return f"{self._text(head)} {self._arguments(name)}"

    def _arguments(self, name: str) -> str:
        return self._json({"type": "object", **self._tools.parameters[name]}, name)

    def _call(self, name: str) -> str:
        block, form = self._block, self._block.form
        if isinstance(form, Json):
            key, arguments = json.dumps(form.name), json.dumps(form.arguments)
            head = f"{block.before}{{{key}: {json.dumps(name)}, {arguments}: "
            return f"{self._text(head)} {self._arguments(name)} {self._text('}' + block.after)}"
        if isinstance(form, Named):
            number = "/:[0-9]{1,3}/" if form.numbered else ""
            head = block.before.replace("{name}", name) or form.before + name
            between = "" if block.before else form.between
            before = self._text(head), number, self._text(between)
            return _joined(*before, self._arguments(name), self._text(block.after))
        if isinstance(form, Tagged):
            return self._tagged(form, name)
        if isinstance(form, Quoted):
            fields = self._fields(form, self._tools.parameters[name], name)
            return f"{self._text(form.before + name)} {fields}"
        return self._python(name)

    def _each(self, name: str) -> list[tuple[str, Any, bool]]:
        """Name, schema and need of each parameter."""
        required = self._tools.parameters[name].get("required")
        needed = required if isinstance(required, list) else []
        return [(key, s, key in needed) for key, s in self._tools.properties(name).items()]

    def _tagged(self, form: Tagged, name: str) -> str:
        line = "" if form.value and not form.lines else "\n"
        head = form.function[0] + name + form.function[1] + "\n"
        begin = "\n" if form.lines and not self._block.whole else ""
        if self._block.whole:
            head = head.removeprefix(self._block.open)
        parts = [self._text(begin + head)]
        for key, schema, needed in self._each(name):
            kinds = types(schema)
            is_text = not set(kinds) - {"string"}
            more = '"' if form.parameter[0].endswith('"') else ""
            if "DSML" in form.parameter[0]:
                more = f'" string="{"true" if is_text else "false"}"'
            opens = form.parameter[0] + key + more + form.parameter[1]
            opens += ("\n" if form.value else "") + form.value + ("\n" if form.lines else "")
            shut = ("\n" if form.lines else "") + form.shut
            if is_text:
                value = self._word(schema, shut)
            else:
                value = f"{self._json(schema, name)} {self._text(shut)}"
            rule = self._rule(f'{self._text(opens)} {value} "\\n"')
            parts.append(rule if needed else f"{rule}?")
        end = "" if self._block.whole else form.end + (line if form.end else "")
        return _joined(*parts, self._text(end))

    def _word(self, schema: Any, shut: str) -> str:
        """A text without quotes, up to a mark."""
        if isinstance(schema, Mapping) and isinstance(lark := schema.get("lark"), str):
            nested = self._rule("%lark {\n" + lark + "\n}")
            return f"{nested} {self._text(shut)}"
        options = schema.get("enum") if isinstance(schema, Mapping) else None
        if isinstance(options, list) and options:
            words = " | ".join(_quoted(str(option)) for option in options)
            return f"({words}) {self._text(shut)}"
        return self._until(shut)

    def _fields(self, form: Quoted, schema: Mapping[str, Any], name: str) -> str:
        """An object with bare keys, in the order of its schema."""
        properties = schema.get("properties")
        fields = properties if isinstance(properties, Mapping) else {}
        required = schema.get("required")
        needed = [k for k in fields if isinstance(required, list) and k in required]
        made = {
            k: self._rule(f"{_quoted(k + ':')} {self._value(form, fields[k], name)}")
            for k in fields
        }
        others = [rule for key, rule in made.items() if key not in needed]
        return _joined('"{"', _listed([made[key] for key in needed], others, '","'), '"}"')

    def _value(self, form: Quoted, schema: Any, name: str) -> str:
        kinds = types(schema) or ["string"]
        choices = []
        for kind in kinds:
            if kind == "string":
                choices.append(f"{self._text(form.quote)} {self._word(schema, form.quote)}")
            elif kind == "array":
                item = self._rule(self._value(form, schema.get("items", {}), name))
                choices.append(f'"[" ({item} ("," {item})*)? "]"')
            elif kind == "object":
                choices.append(self._fields(form, schema, name))
            else:
                choices.append(self._json({**schema, "type": kind}, name))
        return "(" + " | ".join(choices) + ")"

    def _python(self, name: str) -> str:
        """`name(key=value, …)`; its values are JSON, which readers of Python's take, too."""
        each = sorted(self._each(name), key=lambda parameter: not parameter[2])
        made = [
            (self._rule(f"{_quoted(key + '=')} {self._json(schema, name)}"), needed)
            for key, schema, needed in each
        ]
        needed = [rule for rule, is_needed in made if is_needed]
        others = [rule for rule, is_needed in made if not is_needed]
        return _joined(_quoted(name + "("), _listed(needed, others, '", "'), '")"')


def _joined(*rules: str) -> str:
    return " ".join(filter(None, rules))


def _listed(needed: list[str], others: list[str], comma: str) -> str:
    """Rules in their order, of which `others` may be left out, with commas between them."""

    def after(rules: list[str]) -> str:
        return " ".join(f"({comma} {rule})?" for rule in rules)

    if needed or not others:
        return _joined(f" {comma} ".join(needed), after(others))
    # The first that is there has no comma.
    starts = [_joined(rule, after(others[i + 1 :])) for i, rule in enumerate(others)]
    return f"({' | '.join(starts)})?"


def _of_assistant(ending: str) -> str:
    """The messages of harmony, at the end of a prompt, that nobody has answered."""
    begun = ""
    for message in reversed(ending.split("<|start|>")[1:]):
        if not message.startswith("assistant"):
            break
        begun = message + begun
    return begun


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def _escaped(text: str) -> str:
    """The text within a pattern between slashes."""
    return re.escape(text).replace("/", "\\/").replace("\\\n", "\\n").replace("\\ ", " ")
