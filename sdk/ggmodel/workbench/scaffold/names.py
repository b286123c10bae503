"""What the tensors of a checkpoint may be called in GGUF, learned from known architectures."""

from __future__ import annotations

import keyword
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...ml import Tensor
from ...model import Model
from ...model.walk import class_fields
from .source import quoted


@dataclass(frozen=True)
class Known:
    """How a declaration calls something that a checkpoint calls `hf`.

    Attributes:
        field: of the module. gguf: the name in files. kind: of the field, "RMSNorm".
    """

    field: str
    gguf: str
    kind: str


def learn(architectures: Iterable[type[Model]]) -> dict[str, Known]:
    """Last part of a name in checkpoints ("q_norm") → what most architectures make of it."""
    votes: dict[str, Counter[Known]] = {}
    for architecture in architectures:
        for _, field, tag, kind in class_fields(architecture):
            for hf in tag.hf or ():
                if isinstance(hf, str) and hf and tag.names and kind.choices and not kind.many:
                    known = Known(field, tag.names[0], kind.choices[0].__name__)
                    votes.setdefault(hf.rpartition(".")[2], Counter())[known] += 1
    return {name: count.most_common(1)[0][0] for name, count in votes.items()}


@dataclass(frozen=True)
class Unread:
    """Tensors of a checkpoint that no field reads, of one name in all layers.

    Attributes:
        parent: of the module in the checkpoint that holds them, "model.layers.0.self_attn".
        name: its part within that, "q_norm".
        leaves: "weight", "bias"; empty for a tensor without.
        shape: of the weight, in ggml's order.
        n: how many layers have them.
    """

    parent: str
    name: str
    leaves: tuple[str, ...]
    shape: tuple[int, ...]
    n: int


def unread(shapes: Mapping[str, tuple[int, ...]], read: Iterable[str]) -> list[Unread]:
    """What no field reads, layers folded.

    Args:
        shapes: name in the checkpoint → shape in numpy's order.
        read: names that fields read.
    """
    rest = [name for name in shapes if name not in set(read)]
    groups: dict[tuple[str, str], dict[str, list[str]]] = {}
    for tensor in rest:
        base, _, leaf = tensor.rpartition(".")
        if leaf not in ("weight", "bias"):
            base, leaf = tensor, ""
        parent, _, name = base.rpartition(".")
        folded = re.sub(r"\.\d+(?=\.|$)", ".*", parent)
        groups.setdefault((folded, name), {}).setdefault(leaf, []).append(tensor)
    found = []
    for (_, name), leaves in groups.items():
        leaf = "weight" if "weight" in leaves else next(iter(leaves))
        first = leaves[leaf][0]
        end = len(name) + (len(leaf) + 1 if leaf else 0)
        parent = first[: len(first) - end].rstrip(".")
        shape = tuple(reversed(shapes[first]))
        found.append(Unread(parent, name, tuple(x for x in leaves if x), shape, len(leaves[leaf])))
    return found


@dataclass(frozen=True)
class Proposal:
    """A field that could hold tensors nobody reads.

    Attributes:
        owner: the class of the module it belongs into; None if there is no such module.
        line: its declaration.
        kind: the type that it names.
        of: what it is for.
    """

    owner: str | None
    line: str
    kind: str
    of: Unread


def propose(
    found: Unread, owner: str | None, known: Mapping[str, Known], config: Any, taken: set[str]
) -> Proposal:
    """A field for tensors that nobody reads.

    Args:
        owner: the class that stands where they are.
        config: hyperparameters; widths are named after them where one fits.
        taken: fields that the class has.
    """
    like = known.get(found.name)
    field = usable(re.sub(r"\W", "_", like.field if like else found.name), taken)
    gguf = like.gguf if like else found.name
    kind = like.kind if like else _kind(found)
    # A module adds ".weight" itself.
    leaf = found.leaves[:1] if kind == Tensor.__name__ else ()
    name, source = ".".join((gguf, *leaf)), ".".join((found.name, *leaf))
    dims = [_dim(n, config) for n in found.shape]
    shape = f"({dims[0]},)" if len(dims) == 1 else f"({', '.join(dims)})"
    line = f"{field}: {kind} = gguf({quoted(name)}, hf={quoted(source)}, shape={shape})"
    return Proposal(owner, line, kind, found)


def usable(name: str, taken: Collection[str]) -> str:
    """A name for a field, like this one; not one that Python or the class uses otherwise."""
    while name in taken or keyword.iskeyword(name) or not name.isidentifier():
        name = f"{name}_" if name.isidentifier() else f"x_{name}"
    return name


def _kind(found: Unread) -> str:
    if "weight" in found.leaves and len(found.shape) == 1 and "norm" in found.name.lower():
        return "LayerNorm" if "bias" in found.leaves else "RMSNorm"
    if "weight" in found.leaves and len(found.shape) == 2:
        return "Embedding" if "embed" in found.name.lower() else "Linear"
    return Tensor.__name__


# Numbers that may be as large as a width.
_NO_WIDTHS = ("layers", "context", "window", "experts", "rope")


def _dim(n: int, config: Any) -> str:
    """The name of a width, or the number where none or several fit equally."""
    names = [k for k in (*vars(config), *_properties(type(config))) if _value(config, k) == n]
    widths = [k for k in names if not k.startswith(_NO_WIDTHS)]
    return f'"{widths[0]}"' if widths else str(n)


def _properties(cls: type) -> list[str]:
    return [k for base in cls.__mro__ for k, v in vars(base).items() if isinstance(v, property)]


def _value(config: Any, name: str) -> int | None:
    try:
        value = getattr(config, name)
    except Exception:  # a property that this model's file does not give
        return None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
