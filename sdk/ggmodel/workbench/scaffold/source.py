"""Model files as text: derived from another one, with fields added to their classes."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence

from ...errors import ConfigError


def camel(name: str) -> str:
    """ "my-model" → "MyModel"."""
    return "".join(part[:1].upper() + part[1:] for part in re.split(r"\W|_", name) if part)


def quoted(text: str) -> str:
    """Untrusted text as a string literal."""
    return json.dumps(text) if text.isascii() else ascii(text)


def bound(source: str) -> set[str]:
    """The names that a file defines or imports."""
    tree = ast.parse(source)
    imports = (n for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom)))
    defined = (n.name for n in tree.body if isinstance(n, (ast.ClassDef, ast.FunctionDef)))
    return {*(alias.asname or alias.name for node in imports for alias in node.names), *defined}


def renamed(source: str, template: str, cls: str, config: str | None, name: str, hf: str) -> str:
    """The file of one architecture, renamed as the beginning of another. Further registrations in
    the file are dropped.

    Args:
        template: the registered name. cls: the class of its model. config: the class of its
            hyperparameters, if it is to be renamed.
        name: the new architecture. hf: the class that its checkpoints name.
    """
    source = re.sub(rf"\b{cls}\b", camel(name), source)
    if config is not None:
        source = re.sub(rf"\b{config}\b", f"{camel(name)}Config", source)
    register = re.compile(r'@register\(\s*"([^"]*)"\s*,?\s*([^()]*(?:\([^()]*\))?[^()]*)\)\n')
    pooled = "pooled=True"

    def entered(found: re.Match[str]) -> str:
        if found[1] != template:
            return ""
        more = f", {pooled}" if pooled in found[2] else f", hf={quoted(hf)}"
        return f'@register("{name}"{more})\n'

    source = register.sub(entered, source)
    end = ast.parse(source).body
    if end and isinstance(end[0], ast.Expr) and isinstance(end[0].value, ast.Constant):
        lines = source.splitlines(keepends=True)
        del lines[: end[0].end_lineno]
        source = f'"""{camel(name)}: begun from {template}."""\n' + "".join(lines)
    return source


def with_fields(source: str, fields: Mapping[str, Sequence[str]], comment: str) -> str:
    """The file with lines added behind the last field of classes.

    Args:
        fields: class → lines.
        comment: a line above them.

    Raises:
        ConfigError: the file has no such class.
    """
    classes = {n.name: n for n in ast.parse(source).body if isinstance(n, ast.ClassDef)}
    lines = source.splitlines()
    unknown = [name for name in fields if name not in classes]
    if unknown:
        raise ConfigError(f"the file has no class {unknown[0]}")
    for name in sorted(fields, key=lambda name: -classes[name].lineno):
        own = [n for n in classes[name].body if isinstance(n, ast.AnnAssign)]
        first = classes[name].body[0]
        at = (own[-1].end_lineno if own else first.lineno - 1) or first.lineno
        lines[at:at] = [f"    # {comment}", *(f"    {line}" for line in fields[name])]
    return "\n".join(lines) + "\n"


def with_imports(source: str, names: Mapping[str, str]) -> str:
    """The file with imports added for names that it lacks.

    Args:
        names: name → module.
    """
    there = bound(source)
    for name, module in names.items():
        if name in there:
            continue
        statement = re.compile(rf"^from {re.escape(module)} import (.+)$", re.M)
        found = statement.search(source)
        if found and "(" not in found[1]:
            all_names = sorted({*map(str.strip, found[1].split(",")), name}, key=str.swapcase)
            line = f"from {module} import {', '.join(all_names)}"
            source = source[: found.start()] + line + source[found.end() :]
        else:
            anchor = re.search(r"^from ggmodel", source, re.M)
            at = anchor.start() if anchor else 0
            source = f"{source[:at]}from {module} import {name}\n{source[at:]}"
    return source
