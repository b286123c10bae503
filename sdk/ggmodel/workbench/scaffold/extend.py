"""A copy of a template, extended by what a checkpoint has and the template does not read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ... import nn
from ...errors import Error
from ...ml import Tensor
from ...model import Model, Module, config_class, find
from ...model.config import key_fields
from ...model.fields import MISSING
from ...model.module import module_fields
from ...model.registry import supported
from ...model.source_code import declared
from ..modules import folded, ranges
from .fit import Fit
from .keys import learn_keys, propose_keys
from .llama_names import VISION_KEYS
from .names import Proposal, Unread, annotation, declaration, learn, propose, unread, widths_of
from .new_modules import NewModules, Tree
from .source import (
    bound,
    camel,
    field_text,
    fields_in,
    quoted,
    shown,
    usable,
    with_class,
    with_field,
    with_fields,
    with_imports,
    with_name,
)
from .translate import Correction, declared_fields

_UNREAD = "From the checkpoint; nothing reads it yet:"
_CALLED = "Called otherwise than in the template:"
_OTHERWISE = "The template's hf= cannot read this config.json:"
_SEES = re.compile(r"vis|image|vit")
_OF_VISION = {name for name, _ in VISION_KEYS.values()}
_TOWER = '''"""{name}: modules of the checkpoint that {template} lacks; nothing computes yet."""

from __future__ import annotations

from ggmodel import Module, gguf


'''


@dataclass
class Extension:
    """The files of a new architecture while they are extended.

    Attributes:
        name: of the architecture.
        sources: path → text.
        fit: of the template.
        shapes: of the checkpoint's tensors, numpy order, by their names there.
        models: a folder of further architectures to learn names from.
        proposals: fields for tensors that the template does not read.
        keys: hyperparameters for keys that it does not read.
        corrections: fields that the checkpoint calls otherwise.
        added: classes for modules that the template lacks, and where they are.
        left: tensors that have become no field, with the reason.
    """

    name: str
    sources: dict[str, str]
    fit: Fit
    shapes: Mapping[str, tuple[int, ...]]
    models: str | Path | None
    proposals: list[Proposal] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    corrections: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        architectures = list(_all(self.models))
        self._known, self._known_keys = learn(architectures), learn_keys(architectures)
        first = next(iter(self.sources)).split("/")[0]
        self._own = camel(first.removesuffix(".py"))
        self._widths = widths_of(self.fit.config)
        given = self.fit.translation.given
        self._there = {name: self.shapes[theirs] for name, theirs in given.items()}

    def extend(self) -> None:
        """Adds to the files what the template does not read, and corrects names."""
        self._add_keys()
        self._correct()
        owned, apart = self._leftovers()
        for found in owned:
            self._add_field(found)
        for (owner, at), names in apart.items():
            self._add_module(owner, at, names)
        self._relax()

    # classes and files

    def _file_of(self, cls: str) -> str | None:
        there = re.compile(rf"^class {cls}\b", re.M)
        return next((p for p, text in self.sources.items() if there.search(text)), None)

    def _called(self, cls: type[Module]) -> str:
        return self._own if cls is self.fit.cls else cls.__name__

    def _taken(self, cls: type[Module]) -> set[str]:
        """Names that a class has, also in the new file."""
        path = self._file_of(self._called(cls))
        own = fields_in(self.sources[path], self._called(cls)) if path else set[str]()
        return {*declared(cls), *dir(cls), *own}

    def _declare(self, cls: str, field: str, line: str, comment: str) -> None:
        """Adds or replaces a field of a class, and imports the names of its line."""
        path = self._file_of(cls)
        assert path is not None
        text = with_field(self.sources[path], cls, field, line, comment)
        words = set(re.findall(r"(?<![\w.])\w+", line.partition("=")[0].partition(":")[2]))
        kinds = words & {*vars(nn), Tensor.__name__} - bound(text)
        self.sources[path] = with_imports(text, {**_modules(kinds), "gguf": "ggmodel"})

    # hyperparameters

    def _add_keys(self) -> None:
        config = f"{self._own}Config"
        lines = propose_keys(self.fit.hyperparameters, config_class(self.fit.cls), self._known_keys)
        self.keys = [line for _, line in lines.values()]
        for name, (key, _) in lines.items():
            value = self.fit.hyperparameters.unread[key]
            if isinstance(value, int) and not isinstance(value, bool):
                self._widths[name] = value
        path = self._file_of(config)
        if path is None:
            return
        text, new = self._without_failed(self.sources[path], config), []
        for name, (_, line) in lines.items():
            if field_text(text, config, name)[0] is None:
                new.append(line)
            else:
                text = with_field(text, config, name, line, "")
        self.sources[path] = with_fields(text, {config: new}, _UNREAD) if new else text

    def _without_failed(self, text: str, config: str) -> str:
        """The file without the `hf=` of hyperparameters that this config.json cannot give."""
        for name, tag, kind, _ in key_fields(config_class(self.fit.cls)):
            reason = self.fit.hyperparameters.failed.get(name)
            if reason is None:
                continue
            self.left.append(f"{config}.{name}: {reason}")
            plain = not callable(tag.default) and tag.default is not MISSING
            if plain and not any(line.startswith(f"{name}:") for line in self.keys):
                names = ", ".join(map(quoted, tag.names))
                line = f"{name}: {kind.__name__} = kv({names}, default={tag.default!r})"
                text = with_field(text, config, name, line, _OTHERWISE)
        return text

    # names

    def _correct(self) -> None:
        corrections = self.fit.translation.corrections.values()
        shared: dict[type[Module], list[Correction]] = {}
        for c in corrections:
            if self._file_of(self._called(c.field.owner)) is None:
                shared.setdefault(c.field.owner, []).append(c)
            else:
                self._correct_field(self._called(c.field.owner), c)
        for owner, several in shared.items():
            self._subclass(owner, several)

    def _correct_field(self, cls: str, c: Correction) -> None:
        path = self._file_of(cls)
        assert path is not None
        kind, line = field_text(self.sources[path], cls, c.field.name)
        if line is None:
            line = declaration(c.field, kind or annotation(self.sources[path], c.field))
        line = with_name(line, c.field.own, c.hf)
        if c.gguf is not None and c.field.tag.names:
            line = line.replace(quoted(c.field.tag.names[0]), quoted(c.gguf), 1)
        self._declare(cls, c.field.name, line, _CALLED)
        before = f"{quoted(c.field.own)} → " if c.field.own else ""
        self.corrections.append(f"{cls}.{c.field.name}: hf={before}{quoted(c.hf)}")

    def _subclass(self, owner: type[Module], corrections: list[Correction]) -> None:
        """A subclass with other names, in place of a class that other architectures share."""
        holder = corrections[0].field.holder
        cls = self._called(holder.owner) if holder else ""
        path = self._file_of(cls)
        if holder is None or path is None or owner.__name__ not in vars(nn):
            self.left += [f"{owner.__name__}.{c.field.name} is called {c.hf}" for c in corrections]
            return
        own = usable(owner.__name__, bound(self.sources[path]))
        text = f'class {own}(nn.{owner.__name__}):\n    """With other names in checkpoints."""\n'
        self.sources[path] = with_class(self.sources[path], text, cls)
        for c in corrections:
            self._correct_field(own, c)
        kind, line = field_text(self.sources[path], cls, holder.name)
        kind = (kind or f"nn.{owner.__name__}").replace(f"nn.{owner.__name__}", own)
        if line is None:
            line = declaration(holder, kind)
        tagged = line.partition("=")[2]
        self._declare(cls, holder.name, f"{holder.name}: {kind} ={tagged}", _CALLED)

    # tensors

    def _leftovers(
        self,
    ) -> tuple[list[Unread], dict[tuple[type[Module] | None, str], list[str]]]:
        """Tensors that no field reads: those of a module that the template has, and by the module
        that it lacks the names of all others. (class of the module around it, name) → names."""
        owned, apart = [], {}
        unused = self.fit.report.unused
        seen: set[str] = set()
        for found in unread(self._there, unused):
            if found.parent in ("", "model"):  # fields of the model
                found = replace(found, parent="", name=f"{found.parent}.{found.name}".strip("."))
            if found.parent in self.fit.owners or not found.parent:
                owned.append(found)
                continue
            around, at = self._around(found.parent)
            if folded(at) in seen and (around, at) not in apart:
                continue  # of another layer
            seen.add(folded(at))
            apart[around, at] = [n for n in unused if n.startswith(f"{at}.")]
        return owned, apart

    def _around(self, module: str) -> tuple[type[Module] | None, str]:
        """The class of the nearest module around one that the template has, and the name of the
        part below that; outside of layers None."""
        parts = module.split(".")
        for i in range(len(parts) - 1, 0, -1):
            around = self.fit.owners.get(".".join(parts[:i]))
            if around is not None:
                return around, ".".join(parts[: i + 1])
        return None, ".".join(parts[: 1 + (parts[0] == "model" and len(parts) > 1)])

    def _add_field(self, found: Unread) -> None:
        cls = self.fit.owners[found.parent] if found.parent else self.fit.cls
        owner = self._called(cls) if self._file_of(self._called(cls)) else None
        taken = self._taken(cls)
        tags = (tag for tag, _ in module_fields(cls).values())
        files = {name for tag in tags for name in tag.names}
        proposal = propose(found, owner, self._known, self._widths, taken, files, self.name)
        self.proposals.append(proposal)
        if owner is not None:
            self._declare(owner, proposal.line.partition(":")[0], proposal.line, _UNREAD)

    def _add_module(self, around: type[Module] | None, at: str, names: list[str]) -> None:
        """Classes for a module that the template lacks: in the file of the class that holds it, or
        in a file of its own."""
        tree = Tree.of(at, {name: self._there[name] for name in names})
        last = re.sub(r"\W", "_", at.rpartition(".")[2])
        if around is not None:
            self._add_part(around, last, tree)
            return
        package = self._as_package()
        model = self._file_of(self._own)
        assert model is not None
        files = {Path(path).stem for path in self.sources}
        sees = _SEES.search(last) is not None
        taken = files | self._taken(self.fit.cls)
        field = usable("vision" if sees and "vision" not in taken else last, taken)
        widths = {n: v for n, v in self._widths.items() if n in _OF_VISION} | self._widths
        cls = usable(camel(field) or "Part", bound(self.sources[model]))
        written = NewModules(self.name, cls, "", "v" if field == "vision" else field, widths)
        if not written.write(tree):
            self.left += written.left
            return
        path = f"{package}/{field}.py"
        text = _TOWER.format(name=shown(folded(at)), template=self.fit.cls.architecture)
        text += "\n\n\n".join(written.classes) + "\n"
        self.sources[path] = with_imports(text, _modules(written.kinds))
        self._declare(self._own, field, f"{field}: {cls} | None = gguf(hf={quoted(at)})", _UNREAD)
        self.sources[model] = with_imports(self.sources[model], {cls: f".{field}"})
        self.added.append(f"{path}: {cls}, {_count(len(names))} of {at}")
        self.left += written.left

    def _add_part(self, around: type[Module], last: str, tree: Tree) -> None:
        owner = self._called(around)
        path = self._file_of(owner)
        if path is None:
            self.left.append(f"{folded(tree.name)}: its class {owner} is shared, write one")
            return
        own = usable(camel(last) or "Part", bound(self.sources[path]))
        name = usable(last, self._taken(around))
        written = NewModules(self.name, own, "blk.*", name, self._widths)
        if not written.write(tree):
            self.left += written.left
            return
        for text in written.classes:
            self.sources[path] = with_class(self.sources[path], text, owner)
        layers = {n for n in self._there if folded(n).startswith(f"{folded(tree.name)}.")}
        self.sources[path] = with_imports(self.sources[path], _modules(written.kinds))
        hf = quoted(tree.name.rpartition(".")[2])
        line = f"{name}: {own} | None = gguf(hf={hf})"
        self._declare(owner, name, line, _UNREAD)
        self.added.append(f"{owner}.{name}: {own}, {_count(len(layers))} of {folded(tree.name)}")
        self.left += written.left

    def _as_package(self) -> str:
        """The folder of the architecture; a single file becomes one."""
        first = next(iter(self.sources))
        package = first.split("/")[0].removesuffix(".py")
        if "/" not in first:
            text = f'"""{self._own}."""\n\nfrom .model import {self._own} as {self._own}\n'
            self.sources[f"{package}/__init__.py"] = text
            self.sources[f"{package}/model.py"] = self.sources.pop(first)
        return package

    def _relax(self) -> None:
        """Lets fields be None that only some of the layers have."""
        lacking: dict[str, list[int]] = {}
        for missing in self.fit.report.missing:
            if found := re.match(r"(?:\w+\.)*layers\[(\d+)\]\.(\w+) \(", missing.field):
                lacking.setdefault(found[2], []).append(int(found[1]))
        layers = getattr(self.fit.config, "layers", 0)
        fields = {f.name: f for f in declared_fields(self.fit.cls)}
        for name, numbers in lacking.items():
            like = fields.get(name)
            cls = self._called(like.owner) if like else ""
            path = self._file_of(cls) if like else None
            if like is None or path is None or len(numbers) >= layers:
                continue
            kind, line = field_text(self.sources[path], cls, name)
            line = line or declaration(like, kind or annotation(self.sources[path], like))
            head, _, tagged = line.partition(" = ")
            self._declare(cls, name, f"{head} | None = {tagged}", _CALLED)
            some = ranges([i for i in range(layers) if i not in numbers])
            self.added.append(f"{cls}.{name}: only in layers {some}; say so in the layer's forward")


def _count(n: int) -> str:
    return f"{n} tensor{'s'[: n != 1]}"


def _modules(kinds: Iterable[str]) -> dict[str, str]:
    """The names of modules, each with the package that it is imported from."""
    return {k: "ggmodel" if k == Tensor.__name__ else "ggmodel.nn" for k in sorted(kinds)}


def _all(models: str | Path | None) -> Iterator[type[Model]]:
    for name in supported(models):
        try:
            yield find(name, models)
        except Error:
            continue  # of no use as an example
