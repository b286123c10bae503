"""Which keys of a config.json transformers reads, found in its source without importing it.

A key counts as read if the code that a model class reaches takes it from something called config,
or if the config's class computes others from it. This finds too many keys rather than too few.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

# Modules beside a model's own whose functions take keys from the config that they are given.
_SHARED = ("masking_utils", "modeling_rope_utils", "cache_utils")
# Methods of config classes that compute keys from others.
_COMPUTING = ("__post_init__", "__init__", "convert_rope_params_to_dict")
_THETA = 10000.0  # transformers' base of rotary positions where a class has none
_UNKNOWN: Any = object()


def keys_read(
    name: str, config: Mapping[str, Any] | None = None, root: Path | None = None
) -> dict[str, Any] | None:
    """The keys that a model class reads, and their defaults.

    Args:
        name: of the class, "LlamaForCausalLM".
        config: a config.json, whose sub-configs may choose their classes by `model_type`.
        root: transformers' folder; None for the one that is installed.

    Returns:
        Key → default; None for a default that is null, computed, or missing. Keys of sub-configs
        and of `rope_parameters` have dots ("vision_config.hidden_act"). None if transformers is
        not installed or lacks the class.
    """
    root = root or transformers_root()
    home = None if root is None else source_of(root, "modeling", name)
    if root is None or home is None:
        return None
    keys: dict[str, Any] = {}
    _collect(_Reading(root).start(home, name), config_of(home, name), "", config or {}, keys)
    return dict(sorted(keys.items()))


def transformers_root() -> Path | None:
    """The folder of transformers, which is not imported; None where it is not installed."""
    try:
        spec = importlib.util.find_spec("transformers")
    except (ImportError, ValueError):
        return None
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


class SourceFile:
    """A file of transformers, parsed.

    Attributes:
        defined: name → class, function or assignment at the top.
        imported: name → the file it comes from, and its name there.
    """

    def __init__(self, path: Path):
        self.path = path
        self.defined: dict[str, ast.AST] = {}
        self.imported: dict[str, tuple[Path, str]] = {}
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                self.defined[node.name] = node
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                self.defined |= {t.id: node for t in targets if isinstance(t, ast.Name)}
            elif isinstance(node, ast.ImportFrom) and node.level:
                folder = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
                for alias in node.names:
                    self.imported[alias.asname or alias.name] = (
                        folder.with_suffix(".py"),
                        alias.name,
                    )


source = functools.cache(SourceFile)


@functools.cache
def source_of(root: Path, kind: str, name: str) -> SourceFile | None:
    """The "modeling" or "configuration" file that has a class."""
    pattern = re.compile(rf"^class {re.escape(name)}\b", re.M)
    for path in sorted(root.glob(f"models/*/{kind}_*.py")):
        if pattern.search(path.read_text("utf-8")):
            return source(path)
    return None


class _Reading:
    """Follows the names that a class uses, and notes the keys that they take from a config.

    Attributes:
        keys: key → default given where it is read, or `_UNKNOWN`.
        rope: keys within `rope_parameters`.
    """

    def __init__(self, root: Path):
        self.root = root
        self.keys: dict[str, Any] = {}
        self.rope: set[str] = set()
        self._seen: set[tuple[Path, str]] = set()

    def start(self, module: SourceFile, name: str) -> _Reading:
        pending = [(module, name)]
        while pending:
            here, current = pending.pop()
            if (here.path, current) in self._seen:
                continue
            self._seen.add((here.path, current))
            if (node := here.defined.get(current)) is not None:
                self._note(node)
                names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
                pending += [(here, n) for n in names if n in here.defined or n in here.imported]
            elif current in here.imported:
                path, original = here.imported[current]
                of_model = path.parent.parent.name == "models" and path.stem.startswith("modeling_")
                if (of_model or path.stem in _SHARED) and path.is_file():
                    pending.append((source(path), original))
        return self

    def also(self, other: _Reading) -> _Reading:
        both = _Reading(self.root)
        both.keys, both.rope = {**self.keys, **other.keys}, self.rope | other.rope
        return both

    def _note(self, tree: ast.AST) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and _is_config(node.value):
                if isinstance(node.ctx, ast.Load):
                    self.keys.setdefault(node.attr, _UNKNOWN)
            elif isinstance(node, ast.Subscript) and _is_rope(node.value):
                self.rope |= set(_strings([node.slice]))
            elif isinstance(node, ast.Call):
                self._note_call(node)

    def _note_call(self, call: ast.Call) -> None:
        is_getattr = isinstance(call.func, ast.Name) and call.func.id == "getattr"
        if is_getattr and _is_config(call.args[0]):
            for key in _strings(call.args[1:2]):
                self.keys[key] = value_of(call.args[2]) if len(call.args) > 2 else _UNKNOWN
        elif _last(call.func) == "get" and _is_rope(_owner(call.func)):
            self.rope |= set(_strings(call.args[:1]))


def _last(node: ast.AST) -> str:
    if isinstance(node, ast.Call):  # config.get_text_config()
        return _last(node.func)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _owner(node: ast.AST) -> ast.AST:
    return node.value if isinstance(node, ast.Attribute) else node


def _is_config(node: ast.AST) -> bool:
    return _last(node).endswith("config")


def _is_rope(node: ast.AST) -> bool:
    while isinstance(node, ast.Subscript):  # rope_parameters[layer_type]
        node = node.value
    return _last(node).startswith(("rope_param", "rope_scaling"))


def _strings(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def value_of(node: ast.AST | None) -> Any:
    """The value of a literal, of numbers that are multiplied or divided, or of the default of a
    checked field; None for others."""
    if isinstance(node, ast.Call):
        return next((value_of(k.value) for k in node.keywords if k.arg == "default"), None)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
        left, right = value_of(node.left), value_of(node.right)
        if left is None or right is None:
            return None
        return left * right if isinstance(node.op, ast.Mult) else left / right
    try:
        return ast.literal_eval(node) if node is not None else None
    except ValueError:
        return None


class _ConfigClass:
    """The class of a config, its bases included.

    Attributes:
        fields: key → default.
        computed_from: keys that its methods compute others from.
        aliases: key → its other name.
        parts: key of a sub-config → its class's name (None for any), its `model_type`.
    """

    def __init__(self, module: SourceFile, name: str):
        self.module = module
        self.fields: dict[str, Any] = {}
        self.computed_from: dict[str, Any] = {}
        self.aliases: dict[str, str] = {}
        self.parts: dict[str, tuple[str | None, str | None]] = {}
        self.model_type: str | None = None
        self.theta: Any = _THETA
        for _, node in reversed(list(bases(module, name))):
            for item in node.body:
                self._add(item)

    def _add(self, item: ast.stmt) -> None:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            if "ClassVar" not in ast.unparse(item.annotation):
                self.fields[item.target.id] = value_of(item.value)
        elif isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name):
            self._assign(item.targets[0].id, item.value)
        elif isinstance(item, ast.FunctionDef) and item.name in _COMPUTING:
            self._compute(item)

    def _assign(self, name: str, value: ast.expr) -> None:
        if name == "model_type":
            self.model_type = value_of(value)
        elif name == "default_theta":
            self.theta = value_of(value)
        elif name == "attribute_map":
            self.aliases |= value_of(value) or {}
        elif name in ("sub_configs", "sub_configs_defaults") and isinstance(value, ast.Dict):
            for key, part in zip(_strings(k for k in value.keys if k), value.values, strict=True):
                spec = {k.arg: k.value for k in part.keywords} if isinstance(part, ast.Call) else {}
                cls = _last(spec.get("config_class", part))
                self.parts[key] = (
                    None if cls == "AutoConfig" else cls,
                    value_of(spec.get("model_type")),
                )

    def _compute(self, method: ast.FunctionDef) -> None:
        if method.name == "__init__":  # before configs were dataclasses
            names = method.args.args[-len(method.args.defaults) :] if method.args.defaults else []
            for argument, default in zip(names, method.args.defaults, strict=True):
                self.fields[argument.arg] = value_of(default)
        for node in ast.walk(method):
            if isinstance(node, ast.Attribute) and _last(node.value) == "self":
                if isinstance(node.ctx, ast.Load):
                    self.computed_from.setdefault(node.attr, _UNKNOWN)
            elif isinstance(node, ast.Call) and _last(_owner(node.func)) == "kwargs":
                for key in _strings(node.args[:1]):  # kwargs.pop(key, default)
                    self.fields.setdefault(key, value_of(node.args[1]) if node.args[1:] else None)
                    self.computed_from[key] = _UNKNOWN


def bases(module: SourceFile, name: str) -> Iterator[tuple[SourceFile, ast.ClassDef]]:
    """The class and its bases, those of all models last, each with its file."""
    node = module.defined.get(name)
    if isinstance(node, ast.ClassDef):
        yield module, node
        for base in node.bases:
            yield from bases(module, _last(base))
    elif name in module.imported:
        path, original = module.imported[name]
        if path.is_file():
            yield from bases(source(path), original)


def config_of(module: SourceFile, name: str) -> _ConfigClass | None:
    """The config's class that a model class is annotated with."""
    for _, cls in bases(module, name):
        hints = [i.annotation for i in cls.body if isinstance(i, ast.AnnAssign)]
        hints += [i.value for i in cls.body if isinstance(i, ast.Assign)]
        for method in (i for i in cls.body if isinstance(i, ast.FunctionDef)):
            hints += [a.annotation for a in method.args.args if a.annotation is not None]
        for hint in hints:
            class_name = _last(hint)
            path, original = module.imported.get(class_name, (module.path, ""))
            of_model = path.parent.parent.name == "models"
            if of_model and path.stem.startswith("configuration_") and path.is_file():
                return _ConfigClass(source(path), original)
    return None


def _collect(
    reads: _Reading,
    cls: _ConfigClass | None,
    prefix: str,
    config: Mapping[str, Any],
    keys: dict[str, Any],
) -> None:
    """Adds the keys of a config's class and of its parts that are read."""
    if cls is None:
        return
    computed = {k for k in cls.computed_from if k in cls.fields}
    own = {k: v for k, v in cls.fields.items() if k in reads.keys or k in computed}
    own |= {k: v for k, v in reads.keys.items() if v is not _UNKNOWN and k not in own}
    both = {a: b for a, b in cls.aliases.items() if {a, b} & reads.keys.keys()}
    # The other name of a key has no default: that key says the value.
    own |= dict.fromkeys(both) | {b: cls.fields.get(b) for b in both.values()}
    if "rope_parameters" in own:
        theta = cls.theta if isinstance(cls.theta, Mapping) else {"global": cls.theta}
        own["rope_theta"] = theta.get("global", _THETA)
        if "local" in theta:
            own["rope_local_base_freq"] = theta["local"]
        own |= {f"rope_parameters.{key}": None for key in reads.rope}
    for key in cls.parts:
        own.pop(key, None)
    keys |= {f"{prefix}{k}": v for k, v in own.items() if not k.startswith("_")}
    for key, (name, model_type) in cls.parts.items():
        part_config = config.get(key)
        part_config = part_config if isinstance(part_config, Mapping) else {}
        part = _part(reads.root, cls.module, name, part_config.get("model_type") or model_type)
        if part is None:
            continue
        inner = reads
        tower = _mapped(reads.root, "modeling_auto.py", part.model_type)
        home = None if tower is None else source_of(reads.root, "modeling", tower)
        if home is not None and tower is not None:
            inner = reads.also(_Reading(reads.root).start(home, tower))
        _collect(inner, part, f"{prefix}{key}.", part_config, keys)


def _part(
    root: Path, module: SourceFile, name: str | None, model_type: str | None
) -> _ConfigClass | None:
    if name is None:
        name = _mapped(root, "auto_mappings.py", model_type) or ""
    if name in module.defined or name in module.imported:
        return _ConfigClass(module, name)
    home = source_of(root, "configuration", name) if name else None
    return None if home is None else _ConfigClass(home, name)


def _mapped(root: Path, file: str, model_type: str | None) -> str | None:
    """The class that `transformers.models.auto` has for a `model_type`."""
    path = root / "models" / "auto" / file
    if model_type is None or not path.is_file():
        return None
    entry = rf'\(\s*"{re.escape(model_type)}",\s*"(\w+)"'
    match = re.search(entry, path.read_text("utf-8"))
    return match.group(1) if match else None
