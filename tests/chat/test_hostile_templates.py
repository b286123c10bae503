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
AT_ONCE = {
    "text": "{{ 'a' * 10**10 }}",
    "text from the left": "{{ 10**10 * 'a' }}",
    "a list": "{{ [0] * 10**10 }}",
    "a power": "{{ 10 ** (10**9) }}",
    "a tower": "{{ 9 ** (9 ** (9 ** 9)) }}",
    "a product": "{% set ns = namespace(n=10**1000) %}{% for i in range(99) %}"
    "{% set ns.n = ns.n * ns.n %}{% endfor %}",
    "a number out of a text": LONG + "{{ s.replace('ab', '1')|int(base=2) // 3 }}",
    "center": "{{ 'a'.center(10**10) }}",
    "ljust": "{{ 'a'.ljust(10**10) }}",
    "zfill": "{{ 'a'.zfill(10**10) }}",
    "expandtabs": "{{ ('\\t' * 1000).expandtabs(99999) }}",
    "replace": LONG + "{{ s.replace('a', s) }}",
    "replace nothing": LONG + "{{ s.replace('', 'abcdef') }}",
    "join": LONG + "{{ s.join('a' * 1000) }}",
    "join a list": LONG + "{{ ''.join([s] * 1000) }}",
    "format": "{{ '{:9999999999}'.format(1) }}",
    "format with zeros": "{{ '{:0000009999999999}'.format(1) }}",
    "format with a width": "{{ '{:{}}'.format(1, 9999999999) }}",
    "format often": LONG + "{{ ('{0}' * 1000).format(s) }}",
    "format a mapping": LONG + "{{ ('{a}' * 1000).format_map({'a': s}) }}",
    "printf": "{{ '%9999999999d' % 1 }}",
    "printf with precision": "{{ '%.999999999f' % 1 }}",
    "printf with a width": "{{ '%*d' % (9999999999, 1) }}",
    "printf often": LONG + "{{ ('%(a)s' * 1000) % {'a': s} }}",
    "the filter center": "{{ 'a'|center(10**10) }}",
    "the filter center of constants": "{{ 'a'|center(10000000000) }}",
    "the filter indent": LONG + "{{ s.replace('ab', '\\n')|indent(99999) }}",
    "the filter indent by text": "{{ ('\\n' * 1000)|indent(width='ab' * 9999, blank=true) }}",
    "the filter replace": LONG + "{{ s|replace('a', s) }}",
    "the filter join": LONG + "{{ ([1] * 1000)|join(s) }}",
    "the filter join with a name": LONG + "{{ ([1] * 1000)|join(d=s) }}",
    "the filter format": "{{ '%9999999999d'|format(1) }}",
    "the filter batch": "{{ [1]|batch(10**10, 0)|list }}",
    "the filter slice": "{{ [1]|slice(10**10)|list }}",
    "the filter round": "{{ 1.5|round(10**10, 'ceil') }}",
    "the filter sum": "{{ ([[1]] * 99999)|sum(start=[]) }}",
    "the filter tojson": "{{ [1]|tojson(indent=10**10) }}",
    "tojson with a text": LONG + "{{ [1]|tojson(indent=s) }}",
    "tojson with separators": LONG + "{{ ([1] * 1000)|tojson(separators=(s, s)) }}",
    "the filter trim": LONG + "{{ s|trim(s ~ 'c') }}",
    "strip": LONG + "{{ s.strip('c' * 4000000) }}",
    "rfind": LONG + "{{ s.rfind('c' ~ s[:2000000]) }}",
    "range": "{{ range(10**10) }}",
    "a time": "{{ strftime_now('%c' * 99999) }}",
    "bytes of a number": "{{ (1).to_bytes(10**10, 'big') }}",
    "an encoding": "{{ 'a'.encode() }}",
    "a table": "{{ 'abc'.translate({97: 'a' * 100000}) }}",
    "a long refusal": "{{ raise_exception('ab' * 4000000) }}",
    "endless lorem ipsum": "{{ lipsum(10**10) }}",
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


@pytest.mark.parametrize("source", AT_ONCE.values(), ids=AT_ONCE)
def test_what_would_be_endless_is_not_begun(source: str):
    before = time.monotonic()
    refused(source)
    assert time.monotonic() - before < 2


@pytest.mark.parametrize("source", FORBIDDEN.values(), ids=FORBIDDEN)
def test_nothing_outside_can_be_reached(source: str):
    refused(source)
    assert USER == [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize("name", ["many texts", "slices", "lists printed in a macro", "text"])
def test_memory_stays_bounded(name: str):
    tracemalloc.start()
    try:
        refused((ENDLESS | AT_ONCE)[name])
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
