"""Fields for a checkpoint's tensors, named as llama.cpp and known architectures name them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ... import nn
from ...ml import Tensor
from ...model import Model
from ...model.walk import class_fields
from ..nodes import folded
from .source import bound, quoted, usable
from .translate import Declared, gguf_name


@dataclass(frozen=True)
class KnownField:
    """The field of a declaration for some name in checkpoints.

    Attributes:
        field: its name in the module.
        gguf: its name in files.
        kind: its type, "RMSNorm".
    """

    field: str
    gguf: str
    kind: str


def learn(architectures: Iterable[type[Model]]) -> dict[str, KnownField]:
    """Last part of a name in checkpoints ("q_norm"), and name in files ("attn_q_norm") → its field
    in most architectures."""
    votes: dict[str, Counter[KnownField]] = {}
    for architecture in architectures:
        for _, field, tag, kind in class_fields(architecture):
            if not (tag.names and tag.names[0]) or not kind.choices or kind.many:
                continue
            candidate = KnownField(field, tag.names[0], kind.choices[0].__name__)
            names = [hf.rpartition(".")[2] for hf in tag.hf or () if isinstance(hf, str) and hf]
            for name in (*names, *([] if "." in tag.names[0] else tag.names[:1])):
                votes.setdefault(name, Counter())[candidate] += 1
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
    result = []
    for (_, name), leaves in groups.items():
        leaf = "weight" if "weight" in leaves else next(iter(leaves))
        first = leaves[leaf][0]
        end = len(name) + (len(leaf) + 1 if leaf else 0)
        parent = first[: len(first) - end].rstrip(".")
        shape = tuple(reversed(shapes[first]))
        result.append(Unread(parent, name, tuple(x for x in leaves if x), shape, len(leaves[leaf])))
    return result


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
    tensor: Unread,
    owner: str | None,
    known_fields: Mapping[str, KnownField],
    widths: Mapping[str, int],
    taken: Collection[str],
    in_files: Collection[str],
    architecture: str,
) -> Proposal:
    """A field for tensors that no field reads.

    Args:
        owner: the class of the module that holds them.
        widths: hyperparameters that name dims, with their values.
        taken: names that the class already has.
        in_files: names in files of its fields.
        architecture: the new one.
    """
    base, last = f"{tensor.parent}.{tensor.name}".strip("."), tensor.name.rpartition(".")[2]
    theirs = (gguf_name(folded(base), architecture) or "").removeprefix("blk.*.")
    like = known_fields.get(theirs) or known_fields.get(last)
    field = usable(re.sub(r"\W", "_", like.field if like else last), taken)
    gguf = next((n for n in (theirs, like and like.gguf) if n and n not in in_files), last)
    kind = like.kind if like else kind_of(tensor.name, tensor.leaves, tensor.shape)
    line = field_line(field, kind, gguf, tensor.name, tensor.leaves, tensor.shape, widths)
    return Proposal(owner, line, kind, tensor)


def field_line(
    field: str,
    kind: str,
    gguf: str,
    hf: str,
    leaves: Collection[str],
    shape: tuple[int, ...],
    widths: Mapping[str, int],
    more: str = "",
) -> str:
    """The declaration of a field for a tensor, or for a module with a weight.

    Args:
        shape: in ggml's order.
        more: further arguments, ", root=True".
    """
    # A module adds ".weight" itself.
    leaf = tuple(filter(None, leaves))[:1] if kind == Tensor.__name__ else ()
    name, source = ".".join((gguf, *leaf)), ".".join((hf, *leaf))
    dims = dims_of(shape, widths)
    sizes = f"({dims[0]},)" if len(dims) == 1 else f"({', '.join(dims)})"
    return f"{field}: {kind} = gguf({quoted(name)}, hf={quoted(source)}{more}, shape={sizes})"


def declaration(like: Declared, kind: str) -> str:
    """The declaration of a template's field, with the annotation `kind`."""
    tag = like.tag
    arguments = [quoted(n) for n in tag.names]
    arguments += [f"hf={quoted(like.own)}"] * bool(like.own)
    arguments += [f"op={tag.op!r}"] if tag.op else []
    arguments += [f"n={quoted(tag.n) if isinstance(tag.n, str) else tag.n}"] if tag.n else []
    if tag.shape:
        dims = ", ".join(quoted(d) if isinstance(d, str) else str(d) for d in tag.shape)
        arguments.append(f"shape=({dims}{',' * (len(tag.shape) == 1)})")
    return f"{like.name}: {kind} = gguf({', '.join(arguments)})"


def annotation(source: str, like: Declared) -> str:
    """The annotation of a template's field, as a file spells it."""
    there = bound(source)
    names = [c.__name__ for c in like.kind.choices]
    text = " | ".join(
        n if n in there or like.leaf or n not in vars(nn) else f"nn.{n}" for n in names
    )
    return f"list[{text}]" if like.kind.many else text + " | None" * like.kind.optional


def kind_of(name: str, leaves: Collection[str], shape: tuple[int, ...]) -> str:
    """The class of a module with tensors of these shapes (ggml's order)."""
    last = name.lower()
    if "weight" in leaves and len(shape) == 1 and ("norm" in last or "ln" in last):
        return "LayerNorm" if "bias" in leaves else "RMSNorm"
    if "weight" in leaves and len(shape) == 2:
        return "Embedding" if "embed" in last and "bias" not in leaves else "Linear"
    return "Conv2D" if "weight" in leaves and len(shape) == 4 else Tensor.__name__


# Hyperparameters that are widths; others may equal one by chance.
_WIDTH = re.compile(r"width|ffn|hidden_size|rank|state|L_cache")
_OF_VECTORS = re.compile(r"heads|head_dim|value_dim")


def dims_of(shape: tuple[int, ...], widths: Mapping[str, int]) -> list[str]:
    """The dims of a tensor in its declaration.

    Args:
        shape: in ggml's order.
        widths: hyperparameters that name dims, with their values.
    """
    return [_dim(n, widths, len(shape) == 1) for n in shape]


def _dim(n: int, widths: Mapping[str, int], alone: bool) -> str:
    """The hyperparameter of that width; None if there is none, for small configurations have other
    numbers. Heads and their width are only those of vectors, and 1 is a number."""
    names = [k for k, v in widths.items() if v == n and n > 1]
    fit = [k for k in names if _WIDTH.search(k) or (alone and _OF_VECTORS.search(k))]
    return quoted(fit[0]) if fit else str(n if n == 1 else None)


def widths_of(config: Any) -> dict[str, int]:
    """The hyperparameters that are numbers, with their values."""
    attributes = (item for base in type(config).__mro__ for item in vars(base).items())
    names = (*vars(config), *(k for k, v in attributes if isinstance(v, property)))
    values = {name: _value(config, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _value(config: Any, name: str) -> int | None:
    try:
        value = getattr(config, name)
    except Exception:  # a property that this model's file does not give
        return None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
