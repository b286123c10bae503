"""The kinds of blocks of checkpoints and declarations: attention, norms, experts, states, biases.

A kind is a name of llama.cpp's with the layers as one: "blk.*.attn_q_norm", "blk.*.ssm_conv1d",
"blk.*.attn_k.bias". Checkpoints that call a block differently have it in common all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ...model import Model, Module
from ...model.module import module_fields, of_tower
from ..nodes import folded
from .translate import base_of, gguf_name

_NUMBERED_EXPERT = re.compile(r"(\.experts)\.\d+(?=\.)")
_LISTED = 5  # kinds in a line
_HEAD = "output"  # of checkpoints with tied embeddings, too


def of_checkpoint(tensors: Iterable[str], architecture: str) -> set[str]:
    """The kinds of a checkpoint's blocks; a tensor that llama.cpp lacks is one by its own name.

    Args:
        tensors: their names.
        architecture: whose names of llama.cpp come first.
    """
    kinds = set[str]()
    for name in tensors:
        base, leaf = base_of(name)
        module = folded(_NUMBERED_EXPERT.sub(r"\1", base))
        kind = gguf_name(module, architecture) or module
        kinds |= {kind, f"{kind}.bias"} if leaf == "bias" else {kind}
    return kinds


def differences(cls: type[Model], kinds: set[str]) -> int:
    """The number of blocks to add to an architecture and to remove from it, until it has those of a
    checkpoint. Optional ones can stay; those of a tower that the checkpoint lacks cannot."""
    towers = any(map(of_tower, kinds))
    required, optional = set[str](), set[str]()
    for kind, needed in _declared(cls, "", "", True):
        if of_tower(kind) and not towers:
            required.add(".".join(kind.split(".")[:2]))  # all layers as one
        else:
            (required if needed else optional).add(kind)
    return len(kinds - required - optional) + len(required - kinds - optional - {_HEAD})


def similar(classes: Iterable[type[Module]], kinds: set[str]) -> str:
    """The smallest module class with most kinds of a module, and these; "" if none has half of
    them, and two."""
    own = {kind.rpartition("*.")[2] for kind in kinds}

    def shared(cls: type[Module]) -> tuple[int, int, list[str]]:
        there = {kind for kind, _ in _declared(cls, "", "", True)}
        return len(own & there), -len(there), sorted(own & there)

    best = max(classes, key=shared)
    names = shared(best)[2]
    if len(names) < max(2, len(own) / 2):
        return ""
    listed = ", ".join([*names[:_LISTED], *["…"] * (len(names) > _LISTED)])
    return f"{best.__module__}.{best.__qualname__} has {listed}"


def _declared(
    cls: type[Module], above: str, suffix: str, needed: bool
) -> Iterator[tuple[str, bool]]:
    """The kinds of a declaration, and whether each is required: neither optional nor of one of
    several classes that a field may hold.

    Args:
        above: the name of the module in files. suffix: behind the names of its fields.
    """
    for tag, kind in module_fields(cls).values():
        own = f"{tag.prefix}{tag.names[0]}" if tag.names else ""
        parts = ("" if tag.root else above, own, "*" if kind.many and own else "")
        name = ".".join(part for part in parts if part)
        required = needed and not kind.optional and len(kind.choices) == 1
        inner = [c for c in kind.choices if issubclass(c, Module)]
        leaf = not inner or any("weight" in module_fields(c) for c in inner)
        if leaf and own:
            yield f"{name}{suffix}".removesuffix(".weight"), required
        for choice in inner:
            if not leaf:
                yield from _declared(choice, name, tag.suffix, required)
            elif own and (bias := module_fields(choice).get("bias")):
                yield f"{name}{suffix}.bias", required and not bias[1].optional
