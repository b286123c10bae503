"""GGUF names for a checkpoint's tensors, learned from known architectures."""

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
from ..modules import folded
from .source import quoted


@dataclass(frozen=True)
class Known:
    """The field of a declaration for some name in checkpoints.

    Attributes:
        field: its name in the module.
        gguf: its name in files.
        kind: its type, "RMSNorm".
    """

    field: str
    gguf: str
    kind: str


def learn(architectures: Iterable[type[Model]]) -> dict[str, Known]:
    """Last part of a name in checkpoints ("q_norm") → its field in most architectures."""
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
        parent: the module in the checkpoint that holds them, "model.layers.0.self_attn".
        name: the part below that, "q_norm".
        leaves: "weight", "bias"; empty for a tensor without.
        shape: of the weight, in ggml's order.
        n: the number of layers that have them.
    """

    parent: str
    name: str
    leaves: tuple[str, ...]
    shape: tuple[int, ...]
    n: int


def unread(shapes: Mapping[str, tuple[int, ...]], unused: Iterable[str]) -> list[Unread]:
    """The tensors that no field reads, layers folded.

    Args:
        shapes: name in the checkpoint → shape in numpy's order.
        unused: their names.
    """
    groups: dict[tuple[str, str], dict[str, list[str]]] = {}
    for tensor in unused:
        base, _, leaf = tensor.rpartition(".")
        if leaf not in ("weight", "bias"):
            base, leaf = tensor, ""
        parent, _, name = base.rpartition(".")
        groups.setdefault((folded(parent), name), {}).setdefault(leaf, []).append(tensor)
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
    """A field for tensors that no field reads.

    Attributes:
        owner: the class of its module; None if there is no such module.
        line: its declaration.
        kind: its type.
        of: the tensors.
    """

    owner: str | None
    line: str
    kind: str
    of: Unread


def propose(
    found: Unread, owner: str | None, known: Mapping[str, Known], config: Any, taken: set[str]
) -> Proposal:
    """A field for tensors that no field reads.

    Args:
        owner: the class of the module that holds them.
        config: hyperparameters that name widths.
        taken: names that the class already has.
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
    """The name, changed if Python or the class uses it otherwise."""
    while name in taken or keyword.iskeyword(name) or not name.isidentifier():
        name = f"{name}_" if name.isidentifier() else f"x_{name}"
    return name


def _kind(found: Unread) -> str:
    if "weight" in found.leaves and len(found.shape) == 1 and "norm" in found.name.lower():
        return "LayerNorm" if "bias" in found.leaves else "RMSNorm"
    if "weight" in found.leaves and len(found.shape) == 2:
        return "Embedding" if "embed" in found.name.lower() else "Linear"
    return Tensor.__name__


# Hyperparameters that may equal a width by chance.
_NO_WIDTHS = ("layers", "context", "window", "experts", "rope")


def _dim(n: int, config: Any) -> str:
    """The hyperparameter of that width, or the number if there is none."""
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
