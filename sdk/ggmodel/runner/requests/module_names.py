"""Names of modules: those of the declaration, and those that other programs have for the same."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ...model import Model, Module
from ...model.module import join, module_fields
from ...model.walk import Instance, instances

# TransformerLens's hooks → our modules; of several the first that a model has. Its hooks of what a
# layer adds stand behind the norm of that, where there is one.
_HOOKS = {
    r"hook_embed": ("embed",),
    r"blocks\.(\d+|\*)\.hook_resid_post": (r"layers.\1",),
    r"blocks\.(\d+|\*)\.hook_attn_out": (r"layers.\1.attn_post_norm", r"layers.\1.attn"),
    r"blocks\.(\d+|\*)\.hook_mlp_out": (r"layers.\1.ffn_post_norm", r"layers.\1.ffn"),
    r"blocks\.(\d+|\*)\.attn\.hook_v": (r"layers.\1.attn.v",),
    r"blocks\.(\d+|\*)\.mlp\.hook_pre": (r"layers.\1.ffn.gate",),
    r"blocks\.(\d+|\*)\.mlp\.hook_pre_linear": (r"layers.\1.ffn.up",),
    # BERT's modules of attention add the input, and end with the norm.
    r"(?:(?!vision)\w+\.)?encoder\.layer\.(\d+|\*)\.attention": (r"layers.\1.attn_norm",),
}


def named(model: Model) -> dict[str, Instance]:
    """Name → module, outer modules first: the fields of the declaration, such as "layers.3.attn",
    those of a field `text` without it."""
    modules: dict[str, Instance] = {}
    for instance in instances(model):
        name = plain(instance.path).removeprefix("text.")
        if name:
            modules.setdefault(name, instance)
    return modules


def plain(name: str) -> str:
    """A name with its numbers as parts: "layers.3" for "layers[3]"."""
    return name.replace("[", ".").replace("]", "")


def checkpoint_names(module: Module, ours: str = "", theirs: str = "") -> Iterator[tuple[str, str]]:
    """Each module's name in a checkpoint, as transformers and nnsight have it, and ours."""
    for field, (tag, _) in module_fields(type(module)).items():
        value = getattr(module, field, None)
        items = [("", value)] if not isinstance(value, list) else [*_numbered(value)]
        for name in (n for n in (tag.hf or tag.names or ("",)) if isinstance(n, str)):
            outer = name if tag.root else join(theirs, name)
            for number, item in items:
                if isinstance(item, Module):
                    here, there = join(join(ours, field), number), join(outer, number)
                    yield there, here.removeprefix("text.")
                    yield from checkpoint_names(item, here, there)


def _numbered(values: list) -> Iterator[tuple[str, object]]:
    return ((str(i), value) for i, value in enumerate(values))


def of_hook(pattern: str, modules: Mapping[str, object]) -> str:
    """Our name for a hook of TransformerLens; any other name as it is."""
    if (before := re.fullmatch(r"blocks\.([1-9]\d*)\.hook_resid_pre", pattern)) is not None:
        pattern = f"blocks.{int(before[1]) - 1}.hook_resid_post"
    for hook, ours in _HOOKS.items():
        if re.fullmatch(hook, pattern):
            names = [re.sub(hook, name, pattern) for name in ours]
            return next((n for n in names if n.replace("*", "0") in modules), names[-1])
    return pattern
