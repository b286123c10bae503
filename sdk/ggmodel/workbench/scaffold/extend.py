"""A copy of a template, extended by what a checkpoint has and the template does not read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ... import nn
from ...errors import Error
from ...model import Model, Module, config_class, find
from ...model.config import key_fields
from ...model.module import MISSING, module_fields
from ...model.registry import supported
from ...model.walk import class_fields
from ..nodes import folded, ranges
from . import blocks
from .files import CALLED, OTHERWISE, READ, UNREAD, Files, NewModules, Tree, imports_of, slots_of
from .fit import KnownKey, learn_keys, propose_keys
from .names import Proposal, Unread, annotation, declaration, learn, propose, unread, widths_of
from .source import (
    bound,
    camel,
    field_text,
    quoted,
    shown,
    usable,
    with_class,
    with_field,
    with_fields,
    with_imports,
    with_name,
)
from .translate import VISION_KEYS, Correction, declared_fields


def correct(files: Files) -> list[str]:
    """Gives fields their names in the checkpoint, and lists them."""
    corrections, lines = files.fit.translation.corrections.values(), list[str]()
    shared: dict[type[Module], list[Correction]] = {}
    for c in corrections:
        if files.file_of(files.called(c.field.owner)) is None:
            shared.setdefault(c.field.owner, []).append(c)
        else:
            lines.append(_correct_field(files, files.called(c.field.owner), c))
    for owner, several in shared.items():
        lines += _subclass(files, owner, several)
    return lines


def _correct_field(files: Files, cls: str, c: Correction) -> str:
    path = files.file_of(cls)
    assert path is not None
    kind, line = field_text(files.sources[path], cls, c.field.name)
    if line is None:
        line = declaration(c.field, kind or annotation(files.sources[path], c.field))
    line = with_name(line, c.field.own, c.hf)
    if c.gguf is not None and c.field.tag.names:
        line = line.replace(quoted(c.field.tag.names[0]), quoted(c.gguf), 1)
    files.declare(cls, c.field.name, line, CALLED)
    before = f"{quoted(c.field.own)} → " if c.field.own else ""
    return f"{cls}.{c.field.name}: hf={before}{quoted(c.hf)}"


def _subclass(files: Files, owner: type[Module], corrections: list[Correction]) -> list[str]:
    """A subclass with other names, in place of a class that other architectures share."""
    docstring = "With other names in checkpoints."
    own = files.subclass(owner, corrections[0].field.holder, docstring)
    if own is None:
        files.left += [f"{owner.__name__}.{c.field.name} is called {c.hf}" for c in corrections]
        return []
    return [_correct_field(files, own, c) for c in corrections]


def add_keys(files: Files, known_keys: Mapping[str, KnownKey], widths: dict[str, int]) -> list[str]:
    """Adds hyperparameters for keys that the template does not read, and gives their lines.

    Args:
        widths: of the hyperparameters, to which those of the new ones are added.
    """
    from ...convert.keys import TWICE, TWICE_SAID  # slow

    config = f"{files.own}Config"
    files.left += [
        f"{config}: {key} is {value!r:.60}, and checkpoints with it are refused{TWICE_SAID}"
        for key, value in files.fit.hyperparameters.unread.items()
        if key.rpartition(".")[2] == TWICE
    ]
    lines = propose_keys(files.fit.hyperparameters, config_class(files.fit.cls), known_keys)
    added = [line for _, line in lines.values()]
    for name, (key, _) in lines.items():
        value = files.fit.hyperparameters.unread[key]
        if isinstance(value, int) and not isinstance(value, bool):
            widths[name] = value
    path = files.file_of(config)
    if path is None:
        return added
    text, new = _without_failed(files, files.sources[path], config, added), list[str]()
    for name, (_, line) in lines.items():
        if field_text(text, config, name)[0] is None:
            new.append(line)
        else:
            text = with_field(text, config, name, line, "")
    files.sources[path] = with_fields(text, {config: new}, UNREAD) if new else text
    return added


def _without_failed(files: Files, text: str, config: str, added: list[str]) -> str:
    """The file without the `hf=` of hyperparameters that this config.json cannot give."""
    for name, tag, kind, _ in key_fields(config_class(files.fit.cls)):
        reason = files.fit.hyperparameters.failed.get(name)
        if reason is None:
            continue
        files.left.append(f"{config}.{name}: {reason}")
        plain = not callable(tag.default) and tag.default is not MISSING
        if plain and not any(line.startswith(f"{name}:") for line in added):
            names = ", ".join(map(quoted, tag.names))
            line = f"{name}: {kind.__name__} = kv({names}, default={tag.default!r})"
            text = with_field(text, config, name, line, OTHERWISE)
    return text


_SEES = re.compile(r"vis|image|vit")
_OF_VISION = {name for name, _ in VISION_KEYS.values()}
_TOWER = '''"""{name}: modules of the checkpoint that {template} lacks; nothing computes yet."""

from __future__ import annotations

from ggmodel import Module, gguf


'''


@dataclass
class Scaffold:
    """A new architecture.

    Attributes:
        name: in files; llama.cpp's, if it has the architecture under another name.
        files: that were written.
        template: the architecture that was copied.
        proposals: fields added for tensors that the template does not read.
        keys: hyperparameters added for keys that it does not read.
        corrections: fields of the template that the checkpoint calls otherwise.
        added: modules that the template lacks, and where their classes are.
        left: what could not be added, with the reason.
        missing: fields of the template without a tensor in the checkpoint, layers folded.
    """

    name: str
    files: list[Path]
    template: str
    proposals: list[Proposal] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    corrections: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


@dataclass
class Extension:
    """Additions to the files of a new architecture.

    Attributes:
        begun: the architecture, of which the report is completed.
        files: of the architecture, which are changed.
        shapes: of the checkpoint's tensors, numpy order, by their names there.
        models: a folder of further architectures to learn names from.
    """

    begun: Scaffold
    files: Files
    shapes: Mapping[str, tuple[int, ...]]
    models: str | Path | None

    def __post_init__(self) -> None:
        self.fit = self.files.fit
        architectures = list(_all(self.models))
        fields = (each for cls in architectures for each in class_fields(cls))
        self._classes = list(dict.fromkeys(cls for cls, *_ in fields))
        self._known, self._known_keys = learn(architectures), learn_keys(architectures)
        self._widths = widths_of(self.fit.config)
        spellings = self.fit.translation.names
        self._there = {name: self.shapes[theirs] for name, theirs in spellings.items()}

    def extend(self) -> None:
        """Adds to the files what the template does not read, and corrects names."""
        self.begun.keys = add_keys(self.files, self._known_keys, self._widths)
        self.begun.corrections = correct(self.files)
        owned, apart = self._leftovers()
        for tensor in owned:
            self._add_field(tensor)
        for (owner, at), names in apart.items():
            self._add_module(owner, at, names)
        self._relax()

    def _leftovers(
        self,
    ) -> tuple[list[Unread], dict[tuple[type[Module] | None, str], list[str]]]:
        """Tensors that no field reads: those of a module that the template has, and by the module
        that it lacks the names of all others. (class of the module around it, name) → names."""
        owned, apart = [], {}
        unused = self.fit.report.unused
        visited: set[str] = set()
        for tensor in unread(self._there, unused):
            if tensor.parent in ("", "model"):  # fields of the model
                name = f"{tensor.parent}.{tensor.name}".strip(".")
                tensor = replace(tensor, parent="", name=name)
            tensor = self._outside_of_leaves(tensor)
            if tensor.parent in self.fit.owners or not tensor.parent:
                owned.append(tensor)
                continue
            around, at = self._around(tensor.parent)
            if folded(at) in visited and (around, at) not in apart:
                continue  # of another layer
            visited.add(folded(at))
            apart[around, at] = [n for n in unused if n.startswith(f"{at}.")]
        return owned, apart

    def _outside_of_leaves(self, tensor: Unread) -> Unread:
        """A tensor of a module that itself is a field of weights, "gate.bias_of_choice", as one of
        the module around that."""
        owner = self.fit.owners.get(tensor.parent)
        if owner is None or "weight" not in module_fields(owner):
            return tensor
        around, _, last = tensor.parent.rpartition(".")
        return replace(tensor, parent=around, name=f"{last}.{tensor.name}")

    def _around(self, module: str) -> tuple[type[Module] | None, str]:
        """The class of the nearest module around one that the template has, and the name of the
        part below that; outside of layers None."""
        parts = module.split(".")
        for i in range(len(parts) - 1, 0, -1):
            around = self.fit.owners.get(".".join(parts[:i]))
            if around is not None:
                return around, ".".join(parts[: i + 1])
        return None, ".".join(parts[: 1 + (parts[0] == "model" and len(parts) > 1)])

    def _add_field(self, tensor: Unread) -> None:
        cls = self.fit.owners[tensor.parent] if tensor.parent else self.fit.cls
        owner = self._owner(cls, tensor.parent)
        taken = self.files.taken(cls)
        tags = (tag for tag, _ in module_fields(cls).values())
        files = {name for tag in tags for name in tag.names}
        proposal = propose(tensor, owner, self._known, self._widths, taken, files, self.begun.name)
        self.begun.proposals.append(proposal)
        if owner is not None:
            name = proposal.line.partition(":")[0]
            comment = READ if name in slots_of(cls) else UNREAD
            self.files.declare(owner, name, proposal.line, comment)

    def _owner(self, cls: type[Module], module: str) -> str | None:
        """The name of a module's class in the files, where it may become a subclass; None if it
        is in none of them."""
        if self.files.file_of(self.files.called(cls)) is not None:
            return self.files.called(cls)
        fields = (f.holder for f in declared_fields(self.fit.cls) if f.owner is cls and f.holder)
        holder = next((h for h in fields if h.hf == folded(module)), None)
        return self.files.subclass(cls, holder, "With more tensors.")

    def _add_module(self, around: type[Module] | None, at: str, names: list[str]) -> None:
        """Classes for a module that the template lacks: in the file of the class that holds it, or
        in a file of its own."""
        tree = Tree.of(at, {name: self._there[name] for name in names})
        last = re.sub(r"\W", "_", at.rpartition(".")[2])
        if around is not None:
            self._add_part(around, last, tree)
            return
        package = self.files.as_package()
        model = self.files.file_of(self.files.own)
        assert model is not None
        files = {Path(path).stem for path in self.files.sources}
        sees = _SEES.search(last) is not None
        taken = files | self.files.taken(self.fit.cls)
        field = usable("vision" if sees and "vision" not in taken else last, taken)
        widths = {n: v for n, v in self._widths.items() if n in _OF_VISION} | self._widths
        cls = usable(camel(field) or "Part", {*bound(self.files.sources[model]), field, *vars(nn)})
        written = NewModules(self.begun.name, cls, "", "v" if field == "vision" else field, widths)
        if not written.write(tree):
            self.files.left += written.left
            return
        path = f"{package}/{field}.py"
        text = _TOWER.format(name=shown(folded(at)), template=self.fit.cls.architecture)
        text += "\n\n\n".join(written.classes) + "\n"
        self.files.sources[path] = with_imports(text, imports_of(written.kinds))
        line = f"{field}: {cls} | None = gguf(hf={quoted(at)})"
        self.files.declare(self.files.own, field, line, UNREAD)
        self.files.sources[model] = with_imports(self.files.sources[model], {cls: f".{field}"})
        self.begun.added.append(f"{path}: {cls}, {_count(len(names))} of {at}")
        self.files.left += written.left

    def _add_part(self, around: type[Module], last: str, tree: Tree) -> None:
        owner = self._owner(around, tree.name.rpartition(".")[0])
        path = self.files.file_of(owner) if owner else None
        if owner is None or path is None:
            shared = self.files.called(around)
            self.files.left.append(f"{folded(tree.name)}: its class {shared} is shared, write one")
            return
        name = usable(last, self.files.taken(around))
        own = usable(camel(last) or "Part", {*bound(self.files.sources[path]), name, *vars(nn)})
        written = NewModules(self.begun.name, own, "blk.*", name, self._widths)
        if not written.write(tree):
            self.files.left += written.left
            return
        for text in written.classes:
            self.files.sources[path] = with_class(self.files.sources[path], text, owner)
        names = {Module.__name__: "ggmodel", **imports_of(written.kinds)}
        self.files.sources[path] = with_imports(self.files.sources[path], names)
        layers = {n for n in self._there if folded(n).startswith(f"{folded(tree.name)}.")}
        hf = quoted(tree.name.rpartition(".")[2])
        line = f"{name}: {own} | None = gguf(hf={hf})"
        self.files.declare(owner, name, line, UNREAD)
        like = blocks.similar(self._classes, blocks.of_checkpoint(layers, self.begun.name))
        self.begun.added.append(
            f"{owner}.{name}: {own}, {_count(len(layers))} of {folded(tree.name)}"
            f"{like and '; '}{like}"
        )
        self.files.left += written.left

    def _relax(self) -> None:
        """Lets fields be None that only some of the layers have."""
        lacking: dict[str, list[int]] = {}
        for missing in self.fit.report.missing:
            if match := re.match(r"(?:\w+\.)*layers\[(\d+)\]\.(\w+) \(", missing.field):
                lacking.setdefault(match[2], []).append(int(match[1]))
        layers = getattr(self.fit.config, "layers", 0)
        fields = {f.name: f for f in declared_fields(self.fit.cls)}
        for name, numbers in lacking.items():
            like = fields.get(name)
            cls = self.files.called(like.owner) if like else ""
            path = self.files.file_of(cls) if like else None
            if like is None or path is None or len(numbers) >= layers:
                continue
            kind, line = field_text(self.files.sources[path], cls, name)
            line = line or declaration(like, kind or annotation(self.files.sources[path], like))
            head, _, tagged = line.partition(" = ")
            self.files.declare(cls, name, f"{head} | None = {tagged}", CALLED)
            some = ranges([i for i in range(layers) if i not in numbers])
            self.begun.added.append(
                f"{cls}.{name}: only in layers {some}; say so in the layer's forward"
            )


def _count(n: int) -> str:
    return f"{n} tensor{'s'[: n != 1]}"


def _all(models: str | Path | None) -> Iterator[type[Model]]:
    for name in supported(models):
        try:
            yield find(name, models)
        except Error:
            continue  # of no use as an example
