"""Templates by strangers: whatever they try, rendering ends soon with a TemplateError."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from ggmodel.chat import ChatTemplate, limits
from ggmodel.errors import TemplateError

USER = [{"role": "user", "content": "Hello"}]
LONG = "{% set s = 'ab' * 2000000 %}"
DEEP = "{% set ns = namespace(x=['a']) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"

ENDLESS = {
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
    assert time.monotonic() - before < 5


@pytest.mark.parametrize("source", ENDLESS.values(), ids=ENDLESS)
def test_endless_work_is_stopped(source: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "SECONDS", 0.5)
    before = time.monotonic()
    message = refused(source)
    assert time.monotonic() - before < 2.5
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
    assert time.monotonic() - before < 2


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
    ["{{ " + "(" * 20_000 + ")" * 20_000 + " }}", "{{ 1" + " + 1" * 20_000 + " }}"],
    ids=["parentheses", "a sum"],
)
def test_a_deep_template_is_not_compiled(source: str):
    assert "nested too deeply" in refused(source)
