"""Classes for modules of a checkpoint that a template lacks: of a layer, or a whole tower."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ...model import Stack
from ...nn import ExpertLinear
from ..modules import folded
from .llama_names import gguf_name
from .names import dims_of, field_line, kind_of
from .source import camel, quoted, shown, usable
from .translate import base_of

_DIMS = 4  # of a tensor in ggml
_OPERATION = "too many dims for ggml; needs an op=, see Operations on weights in docs/models.md"


@dataclass
class Tree:
    """A module of a checkpoint.

    Attributes:
        name: its full name.
        shapes: of its own tensors by leaf ("weight", "bias", ""), in ggml's order.
    """

    name: str
    inner: dict[str, Tree] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, root: str, tensors: Mapping[str, tuple[int, ...]]) -> Tree:
        """The tree of the tensors below a module; shapes are numpy's."""
        tree = cls(root)
        for name, shape in tensors.items():
            base, leaf = base_of(name)
            at = tree
            for part in base.removeprefix(root).strip(".").split("."):
                at = at.inner.setdefault(part, cls(f"{at.name}.{part}")) if part else at
            at.shapes[leaf] = tuple(reversed(shape))
        return tree

    def parts(self) -> Iterator[tuple[str, Tree]]:
        """The modules below this one by their names there; those of one that has tensors itself,
        as "gate.bias_of_choice", beside it."""
        for name, tree in self.inner.items():
            yield name, tree
            if tree.shapes:
                yield from ((f"{name}.{part}", inner) for part, inner in tree.parts())

    @property
    def experts(self) -> Tree | None:
        """The first of numbered experts that are linear maps of the same shapes, which one field
        a map stacks."""
        if "expert" not in self.name.rpartition(".")[2] or not (items := self.items):
            return None
        maps = [list(item.inner.values()) for item in items]
        linear = all(not m.inner and len(m.shapes.get("weight", ())) == 2 for m in maps[0])
        alike = all([m.shapes for m in other] == [m.shapes for m in maps[0]] for other in maps)
        return items[0] if linear and alike and not items[0].shapes else None

    @property
    def items(self) -> list[Tree]:
        """The items, if it is a list of modules of one structure."""
        numbers = [str(i) for i in range(len(self.inner))]
        if self.shapes or list(self.inner) != numbers or not numbers:
            return []
        items = [self.inner[n] for n in numbers]
        return items if len({item._structure() for item in items}) == 1 else []

    def _structure(self) -> tuple[object, ...]:
        inner = tuple((name, tree._structure()) for name, tree in sorted(self.inner.items()))
        return inner, tuple(sorted((n, len(s)) for n, s in self.shapes.items()))


@dataclass
class NewModules:
    """Writes classes for a tree.

    Attributes:
        architecture: the new one, for llama.cpp's names.
        prefix: of the names of classes.
        below: the names in files that enclose those of the tree, "blk.*" in a layer.
        fallback: begins the names in files that llama.cpp lacks.
        widths: hyperparameters that name dims, with their values.
        classes: that were written, inner ones first.
        kinds: of the fields.
        left: tensors that no field can take, with the reason.
    """

    architecture: str
    prefix: str
    below: str
    fallback: str
    widths: Mapping[str, int]
    classes: list[str] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)
    left: list[str] = field(default_factory=list)
    _used: set[tuple[str, str]] = field(default_factory=set)

    def write(self, tree: Tree, name: str = "") -> str:
        """The class of a module, whose name is returned."""
        return self._class(tree, name or self.prefix, self.below, self.fallback)

    def _class(self, tree: Tree, name: str, below: str, path: str) -> str:
        """Writes the class of a module; "" if it has no fields."""
        taken: set[str] = {"config", "forward", "dims", "scope"}
        lines: list[str] = []
        experts = tree.experts
        for part, inner in (experts or tree).parts():
            at = f"{path}.{part}" if path else part
            field = usable(_word(part, tree.name), taken)
            if experts:
                line = self._stacked(field, part, tree, inner, below, at)
            else:
                line = self._field(field, part, inner, name, below, at)
            taken.add(line.partition(":")[0])
            lines.append(f"    {line}")
        if all(line.startswith("    #") for line in lines):
            return ""
        doc = f'    """{shown(folded(tree.name))}: nothing computes with it yet."""'
        self.classes.append("\n".join([f"class {name}(Module):", doc, "", *lines]))
        return name

    def _field(self, field: str, part: str, tree: Tree, cls: str, below: str, path: str) -> str:
        if tree.shapes:
            return self._leaf(field, part, tree, below, path)
        own = f"{cls}{camel(field)}"
        if (items := tree.items) and not tree.experts:
            inside = self._prefix(items[0]) or path
            item = self._class(items[0], f"{own.removesuffix('s')}", inside, "")
            at = inside.removesuffix(".*")
            names = quoted(at[len(below) + 1 :] if below and at.startswith(f"{below}.") else at)
            n = next(
                (quoted(k) for k, v in self.widths.items() if v == len(items) and _counts(k)), ""
            )
            return f"{field}: list[{item}] = gguf({names}, hf={quoted(part)}, n={n or len(items)})"
        inner = self._class(tree, own, below, path)
        return (
            f"{field}: {inner} = gguf(hf={quoted(part)})" if inner else f"# {field}: {_OPERATION}"
        )

    def _leaf(self, field: str, part: str, tree: Tree, below: str, path: str) -> str:
        leaves = sorted(tree.shapes, reverse=True)  # the weight first
        shape = tree.shapes[leaves[0]]
        if len(shape) > _DIMS:
            self.left.append(f"{tree.name} {list(shape)}: {_OPERATION}")
            return f"# {field}: {_OPERATION}"
        kind = kind_of(part, leaves, shape)
        self.kinds.add(kind)
        theirs, more = self._in_files(tree.name, part, below, path)
        return field_line(field, kind, theirs, part, leaves, shape, self.widths, more)

    def _stacked(
        self, field: str, part: str, tree: Tree, first: Tree, below: str, path: str
    ) -> str:
        """The field of one linear map of all experts.

        Args:
            tree: of all experts. first: the map of the first of them.
        """
        n = len(tree.inner)
        counts = [name for name, v in self.widths.items() if v == n and name.endswith("experts")]
        number = quoted(counts[0]) if counts else str(n)
        self.kinds |= {ExpertLinear.__name__, Stack.__name__}
        theirs, more = self._in_files(f"{tree.name}.{part}", part, below, path)
        template = quoted("{}." + part.replace("{", "{{").replace("}", "}}"))
        dims = ", ".join([*dims_of(first.shapes["weight"], self.widths), number])
        return (
            f"{field}: {ExpertLinear.__name__} = gguf({quoted(theirs)}, "
            f"hf=Stack({template}, {number}){more}, shape=({dims}))"
        )

    def _in_files(self, module: str, part: str, below: str, path: str) -> tuple[str, str]:
        """The name of a module's tensors in files, below those that enclose it, and further
        arguments of its field."""
        theirs, more = gguf_name(folded(module), self.architecture) or "", ""
        if theirs and below and theirs.startswith(f"{below}."):
            theirs = theirs[len(below) + 1 :]
        elif theirs and below and "*" not in theirs:
            more = ", root=True"
        elif below and theirs:
            theirs = ""
        number = re.search(r"\d+$", part)
        theirs = theirs.replace("*", number[0]) if number else theirs
        if not theirs or "*" in theirs or (below, theirs) in self._used:
            theirs, more = path, ""
        self._used.add((below, theirs))
        return theirs, more

    def _prefix(self, item: Tree) -> str:
        """llama.cpp's name of the items of a list, "v.blk.*", by the first tensor that has one."""
        for base in _bases(item):
            name = gguf_name(folded(base), self.architecture)
            if name and "*" in name:
                return name[: name.index("*") + 1]
        return ""


def _bases(tree: Tree) -> Iterator[str]:
    if tree.shapes:
        yield tree.name
    for inner in tree.inner.values():
        yield from _bases(inner)


def _counts(name: str) -> bool:
    return any(word in name for word in ("depth", "layers", "block"))


def _word(part: str, parent: str) -> str:
    """A name for a field: that of the module, for a number with that of the module around it."""
    above = f"{parent.rpartition('.')[2]}_" if part.isdigit() else ""
    return re.sub(r"\W", "_", f"{above}{part}")
