"""Guards against hostile grammars: an estimate of patterns, and a trial in a bounded process.

llguidance follows all patterns that a text must match together, one combination of their branches
at a time. Its limits do not hold within such a step, and steps come while a model answers, too. So
the number of combinations is estimated beforehand, and grammars are compiled on trial, in a process
whose time and memory are bounded.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import re
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain, pairwise
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from ... import concurrency
from ...bounds import Deadline, limits
from ...errors import GrammarError
from ...json_schema import References
from ...platforms import processes

_MOST = 1 << 20  # combinations of branches; as many take a second
_MOST_STEPS = 500_000  # schemas looked at, each once for each combination with others
_MOST_VARIANTS = 256  # alternatives of one value, of those that multiply
_CLASS = 8  # first bytes of a character class in UTF-8
_FORMAT, _LENGTH = 40, 9  # branches of "format", and of "minLength" and "maxLength"
_JOINING = (  # schemas without any of these join nothing
    *("pattern", "format", "minLength", "maxLength"),
    *("properties", "patternProperties", "additionalProperties"),
    *("prefixItems", "items", "additionalItems", "contains"),
)
_TOO_MANY = "this JSON schema cannot be used: it combines too many schemas with one another"
_Parts = tuple[dict[str, Any], ...]

# Literals, special tokens and comments of a Lark grammar, for only what lies outside joins
# patterns; a JSON schema; and a literal that does not end, behind which nothing is read.
_ESCAPE = re.compile(r"\\.")
_TOKEN = re.compile(r'"[^"\n]*"|/[^/]+/|<[^<>\s]+>|(?://|#)[^\n]*|(%json\s*)(?=[{\[])|(["/])')
_TERMINAL = re.compile(r"^[ \t]*([A-Z_][A-Z0-9_]*)(?![A-Z0-9_])[^:\n]*:", re.MULTILINE)
_RULE = re.compile(r"^[ \t]*[?!]?[A-Za-z_][^:\n]*:", re.MULTILINE)


def check_schema(schema: Any) -> None:
    """Checks a JSON schema, within `limits.grammar_seconds`.

    Raises:
        GrammarError: too many patterns apply to one value, references are nested too deeply, or
            looking takes too long.
    """
    _check_schema(schema, _Time())


def check_lark(text: str) -> None:
    """Checks a grammar in Lark's syntax, within `limits.grammar_seconds`.

    Raises:
        GrammarError: a terminal or a schema joins too many patterns, a schema is broken, or looking
            takes too long.
    """
    time = _Time()
    plain, schemas = _separated(text, time)
    for schema in schemas:
        _check_schema(schema, time)
    starts = [rule.start() for rule in _RULE.finditer(plain)] + [len(plain)]
    bodies = dict[str, str]()
    for start, end in pairwise(starts):
        if terminal := _TERMINAL.match(plain, start):
            bodies[terminal[1]] = plain[terminal.end() : end]
    width = min(len(set(text)), 256)
    joins = dict[str, int]()
    for name in bodies:
        time.check()
        _check([width] * (1 + _joins(name, bodies, joins)))


class _Time:
    """Ends a check that takes too long."""

    def __init__(self) -> None:
        self._seconds = limits.grammar_seconds
        self._deadline = Deadline(self._seconds)

    def check(self) -> None:
        if self._deadline.over():
            raise GrammarError(
                "this grammar cannot be used: checking it takes more than "
                f"{self._seconds:g} seconds (limits.grammar_seconds)"
            )


def _separated(text: str, time: _Time) -> tuple[str, list[Any]]:
    """A grammar without literals and comments, and the JSON schemas in it."""
    lexed = _ESCAPE.sub("  ", text)  # of the same length
    plain, schemas, end = list[str](), list[Any](), 0
    while match := _TOKEN.search(lexed, end):
        time.check()
        plain += [lexed[end : match.start()], " "]
        end = match.end()
        if match[1]:
            try:
                schema, end = json.JSONDecoder().raw_decode(text, end)
            except (ValueError, RecursionError) as error:
                raise GrammarError(
                    f"this grammar cannot be used: a schema in it is no JSON: {error}"
                ) from None
            schemas.append(schema)
        elif match[2]:
            end = len(lexed)
    return "".join([*plain, lexed[end:]]), schemas


def _check_schema(schema: Any, time: _Time) -> None:
    try:
        visited = set[frozenset[int]]()
        todo: list[Iterator[tuple[Any, ...]]] = [iter([(schema,)])]
        definitions = _Definitions(schema, time)
        while todo:
            together = next(todo[-1], None)
            if together is None:
                todo.pop()
                continue
            time.check()
            key = frozenset(map(id, together))
            if key in visited:
                continue
            visited.add(key)
            if len(visited) > _MOST_STEPS:
                raise GrammarError(_TOO_MANY)
            for parts in definitions.together(together):
                _check(definitions.branches(parts))
                todo.append(_children(parts))
    except RecursionError:
        raise GrammarError("this JSON schema is nested too deeply, or its references are") from None


def _joins(name: str, bodies: dict[str, str], counts: dict[str, int]) -> int:
    """How often a terminal, with those it names, joins patterns."""
    if name not in counts:
        counts[name] = 0  # a terminal that names itself is refused by llguidance
        try:
            inner = sum(
                _joins(word, bodies, counts)
                for word in re.findall(r"[A-Z_][A-Z0-9_]*", bodies[name])
                if word in bodies
            )
        except RecursionError:
            raise GrammarError("the terminals of this grammar are nested too deeply") from None
        counts[name] = min(inner + bodies[name].count("&"), 1000)
    return counts[name]


def _check(branches: Iterable[int]) -> None:
    combinations = 1
    for count in branches:
        combinations *= max(count, 1)
        if combinations > _MOST:
            raise GrammarError(
                "this grammar cannot be used: it asks for too many patterns at once, whose "
                "combinations would take too long to follow; write one pattern"
            )


class _Definitions:
    """The schemas that apply together: it follows references and choices."""

    def __init__(self, root: Any, time: _Time):
        self._references, self._time, self._steps = References(root), time, 0
        self._widths = dict[str, int]()

    def together(self, schemas: Iterable[Any]) -> list[_Parts]:
        """The ways to satisfy several schemas at once."""
        return self._crossed(self._variants(schema) for schema in schemas)

    def branches(self, parts: _Parts) -> Iterator[int]:
        """The number of branches of each pattern that applies to a text."""
        yield from map(self._width, {p["pattern"] for p in parts if _is_text(p, "pattern")})
        yield from (_FORMAT for _ in {p["format"] for p in parts if _is_text(p, "format")})
        if any("minLength" in part or "maxLength" in part for part in parts):
            yield _LENGTH

    def _width(self, pattern: str) -> int:
        if pattern not in self._widths:
            classes = "\\" in pattern or "." in pattern or "[^" in pattern
            self._widths[pattern] = min(len(set(pattern)) + _CLASS * classes, 256)
        return self._widths[pattern]

    def _variants(self, schema: Any, followed: frozenset[int] = frozenset()) -> list[_Parts]:
        """The ways to satisfy a schema, each as the schemas that then apply together."""
        if not isinstance(schema, dict):
            return [()]
        joins = any(name in schema for name in _JOINING)
        combined: list[list[_Parts]] = [[(schema,) if joins else ()]]
        all_of = schema.get("allOf")
        for part in all_of if isinstance(all_of, list) else ():
            combined.append(self._variants(part, followed))
        if _is_text(schema, "$ref"):
            target = self._references.target(schema)
            if target is None:  # it may lead to any
                combined.append([self._references.patterns])
            elif id(target) not in followed:
                combined.append(self._variants(target, followed | {id(target)}))
        for name in ("anyOf", "oneOf"):
            choices = schema.get(name)
            if isinstance(choices, list) and choices:
                ways = chain.from_iterable(self._variants(way, followed) for way in choices)
                combined.append(list({tuple(map(id, way)): way for way in ways}.values()))
        variants = self._crossed(combined)
        self._steps += 2 + sum(map(len, variants))
        if self._steps > _MOST_STEPS:
            raise GrammarError(_TOO_MANY)
        return variants

    def _crossed(self, groups: Iterable[list[_Parts]]) -> list[_Parts]:
        """Each way to satisfy one of the first group, one of the second, and so on; one way with
        everything in it if they are many."""
        always = list[dict[str, Any]]()
        crossed: list[_Parts] = [()]
        for group in groups:
            self._time.check()
            if len(group) == 1:
                always += group[0]
            elif len(crossed) > 1 and len(crossed) * len(group) > _MOST_VARIANTS:
                parts = {id(part): part for part in chain(*crossed, *group)}
                crossed = [tuple(parts.values())]
            else:
                crossed = [first + second for first in crossed for second in group]
        return [(*always, *parts) for parts in crossed]


def _is_text(part: dict[str, Any], name: str) -> bool:
    return isinstance(part.get(name), str)


def _children(parts: _Parts) -> Iterator[tuple[Any, ...]]:
    """The schemas that apply together to each property and to each item."""
    for named, unnamed in (("properties", _other_properties), ("prefixItems", _other_items)):
        others = [unnamed(part) for part in parts]
        # Children of one schema apply to different values, those of several to the same one.
        if sum(map(bool, others)) > 1:
            yield tuple(chain(*others))
        else:
            yield from ((child,) for child in chain(*others))
        by_name = dict[Any, list[Any]]()
        for part in parts:
            for name, child in _items(part.get(named)):
                by_name.setdefault(name, []).append(child)
        more = tuple(chain(*others)) if len(parts) > 1 else ()
        yield from (tuple(children) + more for children in by_name.values())


def _other_properties(part: dict[str, Any]) -> list[Any]:
    by_pattern = [child for _, child in _items(part.get("patternProperties"))]
    return _schemas([*by_pattern, part.get("additionalProperties")])


def _other_items(part: dict[str, Any]) -> list[Any]:
    items = part.get("items")
    listed = items if isinstance(items, list) else [items]
    return _schemas([*listed, part.get("additionalItems"), part.get("contains")])


def _schemas(children: Iterable[Any]) -> list[Any]:
    return [child for child in children if isinstance(child, dict)]


def _items(children: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(children, dict):
        yield from children.items()
    elif isinstance(children, list):
        yield from enumerate(children)


_REMEMBERED = 1000
_START = 60.0  # seconds for the process to begin, on a busy machine
_BUSY_FACTOR = 10  # times as long as it may work, on a busy machine
_AGAIN = 600.0  # seconds from a failed start to the next


class _Trials:
    """The process, started when it is first needed, and its verdicts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._verdicts: dict[tuple[bytes, float, int], str] = {}
        self._next_start = 0.0

    def verdict(self, definition: str) -> str:
        """The reason against a grammar, or "". It is remembered, unless the machine was busy.

        Raises:
            OSError: no process can be started here.
        """
        seconds, memory = limits.grammar_seconds, limits.grammar_memory
        key = hashlib.sha256(definition.encode(errors="surrogatepass")).digest(), seconds, memory
        verdict = self._verdicts.get(key)
        if verdict is not None:  # without waiting for the trial of another
            return verdict
        with self._lock:
            if key not in self._verdicts:
                reason, lasting = self._try("definition", definition, seconds, memory)
                if not lasting:
                    return reason
                if len(self._verdicts) >= _REMEMBERED:
                    del self._verdicts[next(iter(self._verdicts))]
                self._verdicts[key] = reason
            return self._verdicts[key]

    def as_lark(self, gbnf: str) -> str:
        """A grammar in llama.cpp's form as one in Lark's.

        Raises:
            OSError: no process can be started here.
            GrammarError: it is broken, or has what only llama.cpp knows.
        """
        with self._lock:
            result, _ = self._try("gbnf", gbnf, limits.grammar_seconds, limits.grammar_memory)
        if isinstance(result, str):
            raise GrammarError(f"this GBNF cannot be used: {result}")
        return result[0]

    def _try(self, kind: str, text: str, seconds: float, memory: int) -> tuple[Any, bool]:
        """The process's answer, or the reason why it has none, and whether it would be the same
        another time."""
        process = self._running()
        line = json.dumps([kind, text, seconds, memory]).encode() + b"\n"
        answer = self._answer(process, line, seconds * _BUSY_FACTOR)
        if answer is None:
            return (
                f"compiling it took more than {seconds * _BUSY_FACTOR:g} seconds on a busy machine "
                f"({_BUSY_FACTOR} times limits.grammar_seconds); try again"
            ), False
        if answer:
            return json.loads(answer), True
        if process.returncode in processes.OUT_OF_TIME:
            return (
                f"compiling it takes more than {seconds:g} seconds (limits.grammar_seconds)",
                True,
            )
        return (
            "it is nested too deeply, or compiling it takes more than "
            f"{memory >> 20} MiB (limits.grammar_memory)"
        ), True

    def _answer(
        self, process: subprocess.Popen[bytes], line: bytes, seconds: float
    ) -> bytes | None:
        """The process's next line, None if it takes too long, or nothing if the process ends."""
        answers: SimpleQueue[bytes] = SimpleQueue()

        def exchange() -> None:
            assert process.stdin is not None and process.stdout is not None
            answer = b""
            with suppress(OSError, ValueError):
                process.stdin.write(line)
                process.stdin.flush()
                answer = process.stdout.readline()
            answers.put(answer)

        try:
            threading.Thread(target=exchange, name="ggmodel-grammar-trial", daemon=True).start()
            answer = answers.get(timeout=min(seconds, threading.TIMEOUT_MAX))
        except Empty:
            answer = None
        except BaseException:  # Ctrl-C
            self._end()
            raise
        if answer == b"":
            with suppress(subprocess.TimeoutExpired):
                process.wait(1)  # for the reason why it ended
        if not answer:
            self._end()
        return answer

    def _running(self) -> subprocess.Popen[bytes]:
        """The process, ready to answer.

        Raises:
            OSError: it cannot be started.
        """
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        if time.monotonic() < self._next_start:
            raise OSError("the process did not begin some minutes ago")
        self._process = process = concurrency.start_python(
            [str(Path(__file__).with_name("grammar_process.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        if self._answer(process, b"", _START) not in (b"ready\n", b"ready\r\n"):
            self._end()
            self._next_start = time.monotonic() + _AGAIN
            raise OSError("the process ended, or does not begin")
        return process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                assert pipe is not None
                pipe.close()

    def close(self) -> None:
        """Ends the process."""
        self._end()

    def forget(self) -> None:
        """Leaves the process to the one that this one was forked from."""
        self._lock, self._process = threading.Lock(), None


_trials = _Trials()
verdict, as_lark = _trials.verdict, _trials.as_lark
atexit.register(_trials.close)
processes.after_fork(_trials.forget)
