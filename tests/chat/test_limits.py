"""Templates by strangers: whatever they try, rendering ends soon with a TemplateError."""

from __future__ import annotations

import time
import tracemalloc
from itertools import count
from typing import Any

import pytest
from jinja2 import TemplateSyntaxError

import ggmodel
from ggmodel.chat import ChatTemplate, sandbox
from ggmodel.errors import TemplateError

USER = [{"role": "user", "content": "Hello"}]
LONG = "{% set s = 'ab' * 2000000 %}"
DEEP = "{% set ns = namespace(x=['a']) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"

COLLIDING = "(2**61 - 1)"  # hashes of its multiples are equal

ENDLESS = {
    "colliding keys": "{{ dict.fromkeys(range(0, 99999 * M, M)) }}".replace("M", COLLIDING),
    "colliding keys of pairs": "{{ dict(range(0, 99999 * M, M)|batch(2)) }}".replace(
        "M", COLLIDING
    ),
    "colliding values": "{{ range(0, 99999 * M, M)|unique|list }}".replace("M", COLLIDING),
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "loops without calls": "{% set r = range(99999) %}{% for a in r %}{% for b in r if b < 0 %}"
    "{% endfor %}{% endfor %}",
    "loops that print": "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}"
    "{% endfor %}",
    "a loop that calls itself": "{% set r = range(99) %}{% for a in r recursive %}{{ loop(r) }}"
    "{% endfor %}",
    "a macro that calls itself": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}"
    "{% endif %}{% endmacro %}{{ m(60) }}",
    "a filter in a loop": "{% set r = range(99999)|list %}{% for a in r %}"
    "{% if r|select('in', r)|list %}{% endif %}{% endfor %}",
    "growing text": "{% set ns = namespace(s='a') %}{% for i in range(99) %}"
    "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "growing text, added": "{% set ns = namespace(s='a') %}{% for i in range(99) %}"
    "{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "growing lists": "{% set ns = namespace(s=[1]) %}{% for i in range(99) %}"
    "{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "lists of lists": DEEP + "{% endfor %}{{ ns.x }}",
    "lists of lists as JSON": DEEP + "{% endfor %}{{ ns.x|tojson }}",
    "dicts of dicts": DEEP.replace("[ns.x, ns.x]", "dict(a=ns.x, b=ns.x)") + "{% endfor %}",
    "literal dicts": DEEP.replace("[ns.x, ns.x]", "{'a': ns.x, 'b': ns.x}") + "{% endfor %}",
    "arguments": "{% macro m(n) %}{% if n %}{{ m(n - 1, varargs, varargs, varargs) }}{% endif %}"
    "{% endmacro %}{{ m(50, 1, 2) }}",
    "text in a macro": LONG + "{% macro m() %}{% for i in range(9999) %}{{ s }}{% endfor %}"
    "{% endmacro %}{{ m() }}",
    "text in a block": LONG
    + "{% set x %}{% for i in range(9999) %}{{ s }}{% endfor %}{% endset %}",
    "lists printed in a macro": "{% set l = range(99999)|list %}{% macro m() %}"
    "{% for i in range(9999) %}{{ l }}{% endfor %}{% endmacro %}{{ m() }}",
    "slices": LONG + "".join(f"{{% set s{i} = s[1:] %}}" for i in range(500)),
    "many texts": LONG + "".join(f"{{% set s{i} = s ~ {i} %}}" for i in range(500)),
    "many lists": "{% for i in range(99999) %}{% set x = range(99999)|list %}{% endfor %}",
}
VALUE = "was stopped: it makes a value of more than 8,388,608 characters"
TOTAL = "was stopped: it makes more than 268,435,456 characters in all"
NUMBER = "was stopped: it makes a number of more than 4096 bits"
WIDTH = "was stopped: it asks for a width of "
STEPS = "was stopped: it searches or copies long texts over and over"
CALL = "cannot be called"
# By the reason of the refusal. Without a check the result takes 100 MB or more, or a minute.
AT_ONCE = {
    VALUE: {
        "text": "{{ 'a' * 10**10 }}",
        "text from the left": "{{ 10**10 * 'a' }}",
        "a list": "{{ [0] * 10**10 }}",
        "expandtabs": "{{ ('\\t' * 1000).expandtabs(99999) }}",
        "expandtabs by 8": "{{ ('\\t' * 8000000).expandtabs() }}",
        "expandtabs with a name": "{{ ('\\t' * 1000).expandtabs(tabsize=99999) }}",
        "replace": LONG + "{{ s.replace('a', s) }}",
        "replace some": LONG + "{{ s.replace('a', 'c' * 50) }}",
        "replace so many": LONG + "{{ s.replace('a', 'c' * 50, 2000000) }}",
        "replace nothing": LONG + "{{ s.replace('', 'c' * 50) }}",
        "join": LONG + "{{ s.join('a' * 50) }}",
        "join a list": LONG + "{{ s.join(['a'] * 50) }}",
        "join an iterator": LONG + "{{ s.join([1, 2, 3, 4]|map('string')) }}",
        "printf often": LONG + "{{ ('%(a)s' * 50) % {'a': s} }}",
        "printf of a tuple": LONG + "{{ '%s%s%s' % (s, s[:9], s) }}",
        "printf with a legal width": "{{ ('%99999d' * 1000) % ((1,) * 1000) }}",
        "printf with a legal precision": "{{ ('%.99999f' * 1000) % ((1,) * 1000) }}",
        "the filter indent": "{{ ('\\n' * 2000)|indent(99999) }}",
        "the filter indent by 4": "{{ ('\\n' * 8000000)|indent }}",
        "the filter indent by text": "{{ ('\\n' * 1000)|indent(width='ab' * 99999, blank=true) }}",
        "the filter replace": LONG + "{{ s|replace('a', 'c' * 50) }}",
        "the filter join": LONG + "{{ ([1] * 50)|join(s) }}",
        "the filter join with a name": LONG + "{{ ([1] * 50)|join(d=s) }}",
        "the filter format": LONG + "{{ ('%(a)s' * 50)|format(a=s) }}",
        "the filter format by place": LONG + "{{ '%s%s%s'|format(s, s, s) }}",
        "tojson with separators": LONG + "{{ ([1] * 50)|tojson(separators=(s, s)) }}",
    },
    TOTAL: {
        "format often": LONG + "{{ ('{0}' * 1000).format(s) }}",
        "format a mapping": LONG + "{{ ('{a}' * 1000).format_map({'a': s}) }}",
    },
    NUMBER: {
        "a power": "{{ 10 ** (10**9) }}",
        "a tower": "{{ 9 ** (9 ** (9 ** 9)) }}",
        "a product": "{% set ns = namespace(n=10**1000) %}{% for i in range(99) %}"
        "{% set ns.n = ns.n * ns.n %}{% endfor %}",
        "a number out of a text": LONG + "{{ s.replace('ab', '1')|int(base=2) // 3 }}",
    },
    WIDTH: {
        "center": "{{ 'a'.center(10**10) }}",
        "ljust": "{{ 'a'.ljust(10**10) }}",
        "rjust": "{{ 'a'.rjust(10**10) }}",
        "zfill": "{{ 'a'.zfill(10**10) }}",
        "expandtabs by far": "{{ '\\t'.expandtabs(10**10) }}",
        "format": "{{ '{:9999999999}'.format(1) }}",
        "format with zeros": "{{ '{:0000009999999999}'.format(1) }}",
        "format with a width": "{{ '{:{}}'.format(1, 9999999999) }}",
        "printf": "{{ '%9999999999d' % 1 }}",
        "printf with precision": "{{ '%.999999999f' % 1 }}",
        "the filter center": "{{ 'a'|center(10**10) }}",
        "the filter center of constants": "{{ 'a'|center(10000000000) }}",
        "the filter indent by far": "{{ '\\n'|indent(10**10) }}",
        "the filter format by far": "{{ '%9999999999d'|format(1) }}",
        "the filter batch": "{{ [1]|batch(10**10, 0)|list }}",
        "the filter slice": "{{ [1]|slice(10**10)|list }}",
        "the filter round": "{{ 1.5|round(10**10, 'ceil') }}",
        "the filter round with a name": "{{ 1.5|round(precision=10**10, method='ceil') }}",
    },
    STEPS: {
        "the filter sum": "{{ ([[1]] * 99999)|sum(start=[]) }}",
        "the filter sum by attribute": "{{ ([{'a': [1]}] * 30000)|sum('a', []) }}",
        "the filter trim": LONG + "{{ s|trim(s ~ 'c') }}",
        "the filter trim with a name": LONG + "{{ s|trim(chars=s ~ 'c') }}",
        "strip": LONG + "{{ s.strip('c' * 4000000) }}",
        "lstrip": LONG + "{{ s.lstrip('c' * 4000000) }}",
        "rstrip": LONG + "{{ s.rstrip('c' * 4000000) }}",
        "rfind": LONG + "{{ s.rfind('c' ~ s[:2000000]) }}",
        "rindex": LONG + "{{ s.rindex('c' ~ s[:2000000]) }}",
        "rpartition": LONG + "{{ s.rpartition('c' ~ s[:2000000]) }}",
        "rsplit": LONG + "{{ s.rsplit('c' ~ s[:2000000]) }}",
        "rsplit with a name": LONG + "{{ s.rsplit(sep='c' ~ s[:2000000]) }}",
    },
    CALL: {
        "bytes of a number": "{{ (1).to_bytes(10**10, 'big') }}",
        "an encoding": "{{ 'a'.encode() }}",
        "a table": "{{ 'abc'.translate({97: 'a' * 100000}) }}",
    },
    "formats with a width of *; write the number": {
        "printf with a width": "{{ '%*d' % (9999999999, 1) }}",
        "printf with a precision": "{{ '%.*f' % (9999999999, 1) }}",
    },
    "tojson indents by at most 100": {
        "the filter tojson": "{{ [1]|tojson(indent=10**10) }}",
        "tojson with a text": LONG + "{{ [1]|tojson(indent=s) }}",
    },
    "a time format has at most 1000 characters": {"a time": "{{ strftime_now('%c' * 99999) }}"},
    "Range too big": {"range": "{{ range(10**10) }}"},
    "refuses these messages: abab": {"a long refusal": "{{ raise_exception('ab' * 4000000) }}"},
    "'lipsum' is undefined": {"endless lorem ipsum": "{{ lipsum(10**10) }}"},
}
FORBIDDEN = {
    "classes": "{{ ''.__class__.__mro__ }}",
    "classes by filter": "{{ (''|attr('__class__')).x }}",
    "classes by map": "{{ ['']|map(attribute='__class__.__mro__')|list|first|first }}",
    "classes by format": "{{ '{0.__class__.__mro__}'.format('')[0].x }}",
    "globals": "{{ raise_exception.__globals__['os'].system('true') }}",
    "a cycler's globals": "{{ cycler.__init__.__globals__ }}",
    "a macro's function": "{% macro m() %}{% endmacro %}{{ m._func.x }}",
    "a generator's frame": "{{ ([1]|map('string')).gi_frame.f_back }}",
    "private names": "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
    "private names at once": "{{ namespace(__class__=1) }}",
    "changing the messages": "{{ messages.append(1) }}",
    "changing a message": "{{ messages[0].update(role='system') }}",
    "a class method": "{{ {}.fromkeys('abc') }}",
    "sending into a generator": "{{ ([1]|map('string')).send(none) }}",
    "other files": "{% include '/etc/passwd' %}",
    "imports": "{% import '/etc/passwd' as p %}",
    "parents": "{% extends '/etc/passwd' %}",
}


def refused(source: str) -> str:
    with pytest.raises(TemplateError) as caught:
        ChatTemplate(source).render(USER)
    assert len(str(caught.value)) < 3000
    return str(caught.value)


def test_endless_work_is_stopped_in_time():
    before = time.monotonic()
    assert "more than 2.01 seconds" in refused(ENDLESS["loops"])
    assert time.monotonic() - before < 20


@pytest.mark.parametrize("source", ENDLESS.values(), ids=ENDLESS)
def test_endless_work_is_stopped(source: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ggmodel.limits, "template_seconds", 0.5)
    before = time.monotonic()
    message = refused(source)
    assert time.monotonic() - before < 15
    assert "was stopped: it " in message or "nested too deeply" in message


@pytest.mark.parametrize(
    ("reason", "source"),
    [
        pytest.param(reason, source, id=name)
        for reason, sources in AT_ONCE.items()
        for name, source in sources.items()
    ],
)
def test_costly_work_is_not_begun(reason: str, source: str):
    before = time.monotonic()
    tracemalloc.start()
    try:
        assert reason in refused(source)
        assert tracemalloc.get_traced_memory()[1] < 60e6
    finally:
        tracemalloc.stop()
    assert time.monotonic() - before < 20


def rendered(source: str) -> str:
    return ChatTemplate(source).render(USER)


def test_the_long_text_is_legal_by_itself():
    assert rendered(LONG + "{{ s|length }}") == "4000000"


@pytest.mark.parametrize(
    ("source", "most"),
    [("{{ ('a' * %d)|length }}", 8_388_592), ("{{ ([0] * %d)|length }}", 524_287)],
    ids=["text", "list"],
)
def test_a_repetition_is_weighed_by_its_result(source: str, most: int):
    assert rendered(source % most) == str(most)
    assert VALUE in refused(source % (most + 1))


@pytest.mark.parametrize("name", ["slices", "many texts"])
def test_the_sum_of_all_values_is_bounded(name: str):
    assert TOTAL in refused(ENDLESS[name])


@pytest.mark.parametrize("source", FORBIDDEN.values(), ids=FORBIDDEN)
def test_nothing_outside_can_be_reached(source: str):
    refused(source)
    assert USER == [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize("name", ["many texts", "slices", "lists printed in a macro"])
def test_memory_stays_bounded(name: str):
    tracemalloc.start()
    try:
        refused(ENDLESS[name])
        assert tracemalloc.get_traced_memory()[1] < 500e6
    finally:
        tracemalloc.stop()


def test_a_long_template_is_not_compiled():
    assert "262,144 characters" in refused("{{ 1 }}" * 40_000)


@pytest.mark.parametrize(
    "source",
    ["{{ " + "(" * 9_000 + ")" * 9_000 + " }}", "{{ 1" + " + 1" * 9_000 + " }}"],
    ids=["parentheses", "a sum"],
)
def test_a_deep_template_is_not_compiled(source: str):
    assert "nested too deeply" in refused(source)


# By the reason of the refusal; each took 5 seconds and more, and so did each repetition.
SLOW_TO_COMPILE = {
    "more than 20 deep": {
        "loops": "{% for a in [1] %}" * 200 + "{% endfor %}" * 200,
        "macros": "{% macro m() %}" * 90 + "{% endmacro %}" * 90,
    },
    "more than 32,768 symbols": {
        "branches": "{% if a %}" + "{% elif a %}" * 15_000 + "{% endif %}",
        "branches with text": "{% if a %}x" + "{% elif a %}y" * 8_000 + "{% endif %}",
        "many loops": ("{% for a in [1] %}" * 18 + "{% endfor %}" * 18) * 300,
        "a long list": "{{ [" + "a," * 50_000 + "] }}",
        "statements": "{% set x = 1 %}" * 17_000,
    },
    "": {
        "a chain": "{{ a" + " and a" * 300 + " }}",
        "many values in many calls": "{{ " + "f(" * 40 + "1," * 14_000 + ")" * 40 + " }}",
        "many branches": "{% if a %}x" + "{% elif a %}y" * 5_000 + "{% endif %}",
    },
}


@pytest.mark.parametrize(
    ("reason", "source"),
    [
        pytest.param(reason, source, id=name)
        for reason, sources in SLOW_TO_COMPILE.items()
        for name, source in sources.items()
    ],
)
def test_compiling_is_bounded(reason: str, source: str, monkeypatch: pytest.MonkeyPatch):
    # Time is not the bound here, except that of the test.
    monkeypatch.setattr(ggmodel.limits, "template_seconds", 60.0)
    before = time.monotonic()
    assert reason in refused(source)
    assert time.monotonic() - before < 30


def test_compiling_ends_in_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ggmodel.limits, "template_seconds", 0.05)
    assert "takes more than 0.05 seconds" in refused("{{ a }}" * 5_000)


def test_a_failure_to_compile_is_remembered(monkeypatch: pytest.MonkeyPatch):
    parsed = list[str]()
    parse = sandbox.Environment.parse

    def noted(self: sandbox.Environment, source: str, *args: Any, **kwargs: Any) -> Any:
        parsed.append(source)
        return parse(self, source, *args, **kwargs)

    monkeypatch.setattr(sandbox.Environment, "parse", noted)
    source = "{% if it_is_never_closed %}"
    assert len({refused(source) for _ in range(3)}) == 1
    assert parsed == [source]


def test_an_error_in_compiling_is_raised_anew():
    raised = list[BaseException]()
    for _ in range(2):
        with pytest.raises(TemplateSyntaxError) as caught:
            sandbox.run("{% if it_is_not_closed %}", {"messages": USER})
        raised.append(caught.value)
    assert raised[0] is not raised[1]
    assert str(raised[0]) == str(raised[1])
    kept = sandbox._compiled(
        "{% if it_is_not_closed %}",
        ggmodel.limits.template_symbols,
        ggmodel.limits.template_seconds,
    )
    assert isinstance(kept, Exception) and kept.__traceback__ is None


@pytest.mark.parametrize("source", ["{% for a in range(9) %}x{% endfor %}", "{{ 'xxx' * 3 }}"])
def test_a_stalled_machine_stops_no_template(source: str, monkeypatch: pytest.MonkeyPatch):
    now = time.monotonic()
    stalls = count(step=1000)
    monkeypatch.setattr(time, "monotonic", lambda: now + next(stalls))
    assert rendered(source + "{# compiled anew #}") == "xxxxxxxxx"


def test_limits_can_be_raised(monkeypatch: pytest.MonkeyPatch):
    source = "{% set x = 1 %}" * 300
    monkeypatch.setattr(ggmodel.limits, "template_symbols", 1_500)
    assert "limits.template_symbols" in refused(source)
    monkeypatch.setattr(ggmodel.limits, "template_symbols", 2_200)
    assert rendered(source) == ""


@pytest.mark.parametrize(
    "expression",
    [
        *("strftime_now", "[strftime_now]|sort", "strftime_now ~ 'a'", "strftime_now|upper"),
        *("'%s'|format(range)", "'%r' % [range]", "'%s' % range", "'{}'.format(range)"),
        *("{'a': range}|dictsort", "[range]|join", "dict(a=range)", "range|string", "range|trim"),
        *("'a'.upper", "['a'.upper]", "messages[0].get|indent", "'' + range", "range|replace(1,2)"),
        *("messages|map('upper')", "[messages|batch(2)]", "messages[0]|items|string"),
        *("dict", "[dict]", "cycler(1)", "joiner()", "namespace()", "namespace", "self", "loop"),
    ],
)
def test_no_address_is_printed(expression: str):
    try:
        text = rendered(f"{{{{ {expression} }}}}")
    except TemplateError as error:
        text = str(error)
    assert " at 0x" not in text


def test_objects_for_loops_may_be_kept():
    source = "{% set ns = namespace(j=joiner('-'), c=cycler(1, 2)) %}{% set j = [ns.j][0] %}"
    assert rendered(
        source + "{% for a in 'xy' %}{{ j() }}{{ a }}{{ ns.c.next() }}{% endfor %}"
    ) == ("x1-y2")


def test_messages_of_eight_million_characters_are_legal():
    source = "{% for m in messages %}<{{ m.role }}>{{ m.content|trim }}{% endfor %}"
    content = "word " * 1_600_000
    text = ChatTemplate(source).render([{"role": "user", "content": content}])
    assert text == "<user>" + content.strip()
