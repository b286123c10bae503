"""The process that compiles grammars on trial; a script that needs llguidance alone.

llguidance's own limits do not hold while it joins patterns, resolves references, or runs out of
stack: such a grammar ends this process, and not the one that was asked to use it.

It says when it is ready. Then it reads lines of JSON, `[kind, text, seconds, bytes of memory]`. It
answers a "definition" with a reason against the grammar as JSON text, "" for none; a grammar in
llama.cpp's form, "gbnf", with a list of the same in Lark's form, or with a reason against it.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

# Texts, classes, comments, counts, names and "any character" in llama.cpp's form, and escapes
# within.
_GBNF = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*|\{[^}]*\}|[\w-]+|\.', re.DOTALL)
_ESCAPED = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|.)", re.DOTALL)
_CHARACTERS = re.compile(r"\\x..|\\.|.", re.DOTALL)
_ANY = "[\\x00-\U0010ffff]"
# Special tokens in a grammar, by name and by number.
_NAMES, _IDS = re.compile(r"<[^<>\s]+>"), re.compile(r"<\[[^\]]*\]>")
_STACK = 1 << 20  # bytes, a quarter and less of what threads have elsewhere


class _Bytes:
    """A vocabulary of the 256 bytes, an end, and the special tokens that a grammar names."""

    is_tokenizer_wrapper = True
    eos_token_id = bos_token_id = 256

    def __init__(self, named: Iterable[str] = ()):
        self.tokens = [*(bytes([value]) for value in range(256)), b"<end>"]
        self.tokens += [name.encode() for name in named]
        self.special_token_ids = list(range(256, len(self.tokens)))

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())


def _bound(seconds: float, memory: int) -> None:
    """Limits what this process may use from now on; SIGPROF ends it when its time has passed, on
    Windows the system does."""
    if sys.platform == "win32":
        from ggmodel.platforms import machine, processes

        processes.enter_job(machine.private_memory() + memory, seconds)
        return
    with suppress(OverflowError, ValueError):  # as good as endless
        signal.setitimer(signal.ITIMER_PROF, max(seconds, 1e-3))
    import resource

    try:
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        most = used + memory
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    except (OSError, ValueError):
        pass  # a system without such limits


def _as_lark(gbnf: str) -> list[str] | str:
    """The grammar in Lark's form, or the reason against it."""
    from llguidance import gbnf_to_lark

    # Rules that become tokens of a lexer, which takes the longest, would have fewer texts.
    kind: Any
    for kind in (gbnf_to_lark.ASTNode, gbnf_to_lark.RuleRefNode):
        kind.is_terminal = lambda node: False
    names = _Names()
    try:
        return [gbnf_to_lark.gbnf_to_lark(_GBNF.sub(lambda match: _plain(match, names), gbnf))]
    except RecursionError:
        return "it is nested too deeply"
    except Exception as error:  # it raises many kinds
        return str(error) or type(error).__name__


class _Names:
    """Names that stay apart in Lark's form, where case and hyphens are lost."""

    def __init__(self) -> None:
        self._renamed, self._taken = {"root": "root"}, {"start"}

    def of(self, name: str) -> str:
        if name not in self._renamed:
            own = name if name[0].isalpha() else f"rule-{name}"
            while (key := re.sub("([a-z])([A-Z])", r"\1_\2", own.replace("-", "_")).lower()) in (
                self._taken
            ):
                own += "-other"
            self._taken.add(key)
            self._renamed[name] = own
        return self._renamed[name]


def _plain(match: re.Match[str], names: _Names) -> str:
    """A part of a grammar in which characters stand for themselves, as far as they can, and each
    is on its own: a lexer that has begun with a longer text would not turn back."""
    text = match[0]
    if text == ".":
        return _ANY
    if text[0] == '"':
        inner = _ESCAPED.sub(_character, text[1:-1]).replace("\n", "\\n").replace("\r", "\\r")
        apart = " ".join(f'"{one}"' for one in _CHARACTERS.findall(inner) or [""])
        return f"({apart})"
    if text[0] == "[":  # in a class of Lark's form && and ~~ have a meaning
        return re.sub("[&~]", lambda one: f"\\x{ord(one[0]):02x}", _ESCAPED.sub(_character, text))
    return text if text[0] in "#{" else names.of(text)


def _character(match: re.Match[str]) -> str:
    digits = match[1] or match[2] or match[3]
    if digits is None:
        return match[0]
    code = int(digits, 16)
    if code > sys.maxunicode or 0xD800 <= code < 0xE000:
        raise ValueError(f"{match[0]} is no character")
    character = chr(code)
    if code < 0x80 and not character.isalnum():
        return f"\\x{code:02x}"
    return character


def _serve() -> None:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

    usual: Any = LLTokenizer(_Bytes())  # type: ignore[arg-type]
    limits = LLParserLimits(verbose_errors=False)
    print("ready", flush=True)
    for line in sys.stdin:
        kind, definition, seconds, memory = json.loads(line)
        _bound(seconds, memory)
        if kind == "gbnf":
            print(json.dumps(_as_lark(definition)), flush=True)
            continue
        definition = _IDS.sub("<[1]>", definition)
        reason = LLMatcher.validate_grammar(definition, limits=limits)
        if not reason:
            named = set(_NAMES.findall(definition)) - {"<end>"}
            vocabulary = LLTokenizer(_Bytes(named)) if named else usual  # type: ignore[arg-type]
            matcher = LLMatcher(vocabulary, definition, log_level=0, limits=limits)
            reason = matcher.get_error()
            if not reason:
                matcher.compute_bitmask()  # an error here depends on the vocabulary
        print(json.dumps(reason), flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its parent decides
    if sys.platform != "win32":
        signal.signal(signal.SIGPROF, signal.SIG_DFL)  # whatever the parent did with it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGPROF])
    threading.stack_size(_STACK)
    server = threading.Thread(target=_serve)
    server.start()
    server.join()
