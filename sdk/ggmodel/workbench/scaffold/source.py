"""Model files as text: derived from another one, with fields added to their classes."""

from __future__ import annotations

import ast
import json
import keyword
import re
from collections.abc import Collection, Mapping, Sequence

from ...errors import ConfigError


def camel(name: str) -> str:
    """ "my-model" → "MyModel"."""
    return "".join(part[:1].upper() + part[1:] for part in re.split(r"\W|_", name) if part)


def quoted(text: str) -> str:
    """Untrusted text as a string literal."""
    return json.dumps(text) if text.isascii() else ascii(text)


def shown(text: str) -> str:
    """Untrusted text as a part of a docstring or comment."""
    return re.sub(r"[^\w.*\[\] -]", "_", text)


def usable(name: str, taken: Collection[str]) -> str:
    """The name, changed if Python or the class uses it otherwise."""
    while name in taken or keyword.iskeyword(name) or not name.isidentifier():
        name = f"{name}_" if name.isidentifier() else f"x_{name}"
    return name


def bound(source: str) -> set[str]:
    """The names that a file defines or imports."""
    tree = ast.parse(source)
    imports = (n for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom)))
    defined = (n.name for n in tree.body if isinstance(n, (ast.ClassDef, ast.FunctionDef)))
    return {*(alias.asname or alias.name for node in imports for alias in node.names), *defined}


def renamed(
    source: str,
    template: str,
    cls: str,
    config: str | None,
    name: str,
    registered: str,
    hf: str,
) -> str:
    """The file of one architecture, renamed as the beginning of another. Further registrations in
    the file are dropped, their classes where nothing uses them, and the names that the model has in
    files for other programs.

    Args:
        template: the registered name. cls: the class of its model. config: the class of its
            hyperparameters, if it is to be renamed.
        name: the new architecture, registered: its name in files. hf: the class that its
            checkpoints name.
    """
    source = _without_method(_without_others(source, template), "stored_as")
    # A base may have the same name in another module: nn.MambaConfig.
    source = re.sub(rf"(?<!\.)\b{cls}\b", camel(name), source)
    if config is not None:
        source = re.sub(rf"(?<!\.)\b{config}\b", f"{camel(name)}Config", source)
    register = re.compile(r'@register\(\s*"([^"]*)"\s*,?\s*([^()]*(?:\([^()]*\))?[^()]*)\)\n')
    pooled = "pooled=True"

    def entered(match: re.Match[str]) -> str:
        if match[1] != template:
            return ""
        more = f", {pooled}" if pooled in match[2] else f", hf={quoted(hf)}"
        return f'@register("{registered}"{more})\n'

    source = register.sub(entered, source)
    end = ast.parse(source).body
    if end and isinstance(end[0], ast.Expr) and isinstance(end[0].value, ast.Constant):
        lines = source.splitlines(keepends=True)
        del lines[: end[0].end_lineno]
        source = f'"""{camel(name)}: begun from {template}."""\n' + "".join(lines)
    return source


def with_whole_imports(source: str, package: str, copied: Collection[str]) -> str:
    """The file with the whole names of modules that it imports from around it.

    Args:
        package: that of the file.
        copied: modules of the package that stay beside the file.
    """

    def whole(match: re.Match[str]) -> str:
        dots, module = match[1], match[2]
        if len(dots) == 1 and module.partition(".")[0] in copied:
            return match[0]
        around = package.split(".")[: 1 - len(dots) or None]
        return f"from {'.'.join([*around, *filter(None, [module])])} import"

    return re.sub(r"^from (\.+)([\w.]*) import", whole, source, flags=re.M)


def with_field(source: str, cls: str, field: str, line: str, comment: str) -> str:
    """The file with a field of a class declared by this line, in place of the class's own line or,
    below a comment, behind its fields."""
    node = fields_in(source, cls).get(field)
    if node is None:
        return with_fields(source, {cls: [line]}, comment)
    lines = source.splitlines()
    lines[node.lineno - 1 : node.end_lineno] = [f"    {line}"]
    return "\n".join(lines) + "\n"


def _without_others(source: str, template: str) -> str:
    """The file without the classes of other architectures that nothing in it uses."""
    lines = source.splitlines(keepends=True)
    for node in reversed(ast.parse(source).body):
        if not isinstance(node, ast.ClassDef) or not node.decorator_list:
            continue
        first, last = node.decorator_list[0].lineno - 1, node.end_lineno
        head = "".join(lines[first : node.lineno - 1])
        uses = len(re.findall(rf"\b{node.name}\b", "".join(lines)))
        if "@register(" in head and f'"{template}"' not in head and uses == 1:
            del lines[first:last]
    return "".join(lines).rstrip() + "\n"


def _without_method(source: str, name: str) -> str:
    """The file without a method of its classes, and without what was imported for that alone."""
    lines = source.splitlines(keepends=True)
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    methods = [n for c in classes for n in c.body if isinstance(n, ast.FunctionDef)]
    for node in reversed([n for n in methods if n.name == name]):
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1
        del lines[first - (not lines[first - 1].strip()) : node.end_lineno]
    for node in reversed(ast.parse(source).body if len(lines) < source.count("\n") else []):
        if isinstance(node, ast.ImportFrom) and node.module != "__future__":
            there, text = [alias.name for alias in node.names], "".join(lines)
            used = [n for n in there if len(re.findall(rf"\b{n}\b", text)) > 1]
            if used != there:
                own = f"from {node.module} import {', '.join(used)}\n"
                lines[node.lineno - 1 : node.end_lineno] = [own] if used else []
    return "".join(lines)


def field_text(source: str, cls: str, field: str) -> tuple[str | None, str | None]:
    """The annotation of a field that a class of the file declares itself, and its declaration on
    one line if that calls a function (`gguf`, `kv`)."""
    node = fields_in(source, cls).get(field)
    if node is None:
        return None, None
    tagged = isinstance(node.value, ast.Call)
    text = ast.get_source_segment(source, node) if tagged else None
    return ast.unparse(node.annotation), text and re.sub(r"\n\s*", " ", text)


def fields_in(source: str, cls: str) -> dict[str, ast.AnnAssign]:
    """The fields that a class of the file declares itself."""
    classes = (n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == cls)
    fields = (n for node in classes for n in node.body if isinstance(n, ast.AnnAssign))
    return {n.target.id: n for n in fields if isinstance(n.target, ast.Name)}


def with_name(line: str, before: str, after: str) -> str:
    """The declaration of a field, `name: type = call(…)`, with another `hf=`."""
    (node,) = ast.parse(line).body
    assert isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call)
    hf_value = next((k.value for k in node.value.keywords if k.arg == "hf"), None)
    there = quoted(before)
    if hf_value is not None and there not in (ast.get_source_segment(line, hf_value) or ""):
        return f"{line[: hf_value.col_offset]}{quoted(after)}{line[hf_value.end_col_offset :]}"
    head, separator, tail = line.rpartition(there)
    if before and separator:
        return f"{head}{quoted(after)}{tail}"
    return f"{line.rstrip()[:-1]}, hf={quoted(after)})"


def with_class(source: str, text: str, before: str) -> str:
    """The file with a class above another one."""
    at = next(n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == before)
    first = min([at.lineno, *(d.lineno for d in at.decorator_list)]) - 1
    lines = source.splitlines()
    return "\n".join([*lines[:first], *text.splitlines(), "", "", *lines[first:]]) + "\n"


def with_fields(source: str, fields: Mapping[str, Sequence[str]], comment: str) -> str:
    """The file with lines added behind the last field of classes.

    Args:
        fields: class → lines.
        comment: a line above them, unless it stands there; "" for none.

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
        at = (own[-1].end_lineno if own else first.end_lineno) or first.lineno
        above = next((x.strip() for x in reversed(lines[:at]) if "#" in x or "class " in x), "")
        comments = [f"    # {comment}"] if comment and above != f"# {comment}" else []
        apart = [] if own else [""]
        lines[at:at] = [*apart, *comments, *(f"    {line}" for line in fields[name])]
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
        match = statement.search(source)
        if match and "(" not in match[1]:
            all_names = sorted({*map(str.strip, match[1].split(",")), name}, key=str.swapcase)
            line = f"from {module} import {', '.join(all_names)}"
            source = source[: match.start()] + line + source[match.end() :]
        else:
            source = _with_line(source, module, f"from {module} import {name}")
    return source


def _with_line(source: str, module: str, line: str) -> str:
    """The file with an import in its place among those of ggmodel, or behind them all."""
    lines = source.splitlines()
    there = [n for n in ast.parse(source).body if isinstance(n, ast.ImportFrom)]
    ours = [n for n in there if (n.module or "").startswith("ggmodel") or n.level]
    if module.startswith("."):
        last = (ours or there)[-1]
        apart = [] if last.level else [""]
        at = last.end_lineno or 0
        return "\n".join([*lines[:at], *apart, line, *lines[at:]]) + "\n"
    before = [n for n in ours if not n.level and (n.module or "") < module]
    at = (before[-1].end_lineno or 0) if before else (ours or there)[0].lineno - 1
    return "\n".join([*lines[:at], line, *lines[at:]]) + "\n"
