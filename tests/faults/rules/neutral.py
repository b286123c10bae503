"""Faults in numbers that releases leave at a neutral value, or that nothing reads.

Cases that leave them there cannot see these; `golden` says so, or has another value.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

from ggmodel.model import config_class, find
from ggmodel.model.config import key_fields
from ggmodel.model.registry import supported
from ggmodel.workbench.unread import KEPT
from tests.faults.rules.seeds import (
    ATTENTION,
    FEED_FORWARD,
    MODEL,
    NORMS,
    Seed,
    attributes,
    calls,
    keys,
    keyword,
    rule,
    seed,
)
from tests.faults.source import Source
from tests.faults.subjects import served_by


def _numbers(source: Source) -> dict[str, tuple[object, tuple[str, ...]]]:
    """Hyperparameters with a factor, a flag or nothing by default → that, and their names here and
    in config.json."""
    architecture = served_by(source.path)[0]
    numbers = dict[str, tuple[object, tuple[str, ...]]]()
    for name, field, *_ in key_fields(config_class(find(_registered(architecture)))):
        plain = isinstance(field.default, bool | float) or field.default is None
        if plain and field.names[0] not in KEPT:
            paths = [path for path in field.hf if isinstance(path, str)]
            last = (re.split("[.:]", path)[-1] for path in paths)
            numbers[name] = field.default, (name, *last)
    return numbers


@cache
def _registered(architecture: str) -> str:
    """The name of an architecture in files, of that of its goldens."""
    names = (name for name in supported() if name.replace("-", "_") == architecture)
    return next(names, architecture)


@rule("number for a key")
def number(source: Source) -> Iterator[Seed]:
    """The usual number in place of a hyperparameter that a file may have."""
    numbers = _numbers(source)
    for node in attributes(source, "|".join(numbers) or "-"):
        default, blames = numbers[node.attr]
        if source.of(node).startswith(("h.", "self.config.", "config.", "c.")):
            call = source.within(node, ast.Call)
            named = "" if call is None else source.of(call.func).rpartition(".")[2]
            yield seed(source, node, repr(default), *_around(source, node), named, *blames)


def _around(source: Source, node: ast.AST) -> tuple[str, ...]:
    """The class around a read, and where it shows what it gives to others."""
    inside = source.class_of(node)
    if (call := source.within(node, ast.Call)) and "Attention(" in source.of(call):
        return (inside, *ATTENTION, "ConformerAttention")  # which is given what is made here
    if source.of(node).endswith("eps") and source.method_of(node) == "forward":
        return (inside, *_users("eps"), "norm1", "norm2")  # norms take it as an argument
    elsewhere = inside.endswith("Config") or source.method_of(node) != "forward"
    return (inside, *_users(source.of(node))) if elsewhere else (inside,)


def _users(name: str) -> tuple[str, ...]:
    if "eps" in name:
        return (*NORMS, "norm", "attn_norm")
    blocks = re.search("expert|activation|normalize|router", name)
    return (*MODEL, *(FEED_FORWARD if blocks else ATTENTION))


@rule("key that is not read")
def not_read(source: Source) -> Iterator[Seed]:
    """Any hyperparameter whose key in config.json is forgotten, so that the default holds."""
    numbers = _numbers(source)
    for name, call in keys(source, "|".join(numbers) or "-"):
        given = keyword(call, "hf")
        if given is not None:
            blames = (*numbers[name][1], *_users(name))
            yield seed(source, given, "hf=lambda _: None", *blames)


@rule("limit or factor")
def limit(source: Source) -> Iterator[Seed]:
    """A limit left out, or a factor that is often one."""
    numbers = _numbers(source)
    for call in calls(source, "clamp|scale"):
        inside = source.method_of(call) in ("forward", "hidden", "embedded")
        if inside and isinstance(call.func, ast.Attribute):
            read = re.findall(r"[\w.]+\.(\w+)", source.of(call))
            of_keys = [name for attr in read if attr in numbers for name in numbers[attr][1]]
            blames = (*_around(source, call), "embed", *of_keys)
            yield seed(source, call, source.of(call.func.value), *blames)
