"""Hyperparameters that a file has and that no forward reads."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Iterator

from ..gguf_file.values import KeyValues
from ..model import Config, config_class
from ..model.config import key_fields
from ..model.loader import completed
from ..model.walk import class_fields, instances
from ..runner.loading.preparation import Preparation

# The runner's and other programs': the longest sequence, the vocabulary, the pooling of embeddings.
KEPT = ("context_length", "vocab_size", "pooling_type", "classifier.pooling_type")
KEPT += ("classifier.output_labels", "classifier.per_token")
_EXPERTS, _OF_EXPERTS = "_exps", "expert_"  # in names of tensors, and of keys


def watch(config: Config) -> set[str]:
    """The attributes of a config that are read from now on; a set that grows."""
    read, cls = set[str](), type(config)

    class Watched(cls):  # pyright: ignore[reportUntypedBaseClass, reportGeneralTypeIssues]
        def __getattribute__(self, name: str) -> object:
            read.add(name)
            return super().__getattribute__(name)

    Watched.__name__, Watched.__module__ = cls.__name__, cls.__module__
    config.__class__ = Watched
    return read


def unread(steps: Preparation, read: set[str]) -> Iterator[str]:
    """One line for each hyperparameter of a file that nothing read while the model was filled and
    its forward traced, and that no line of the model's files reads: a branch that this file does
    not take, or the preparation of images, may.

    Args:
        steps: taken up to the trace.
        read: by `watch`, since the config was read.
    """
    config, keys = steps.config, KeyValues(steps.source.metadata, steps.source.name)
    completed(steps.source, steps.architecture, config)  # its tensors may follow from the config
    given = {
        name: key
        for name, field, *_ in key_fields(config_class(steps.architecture))
        for key in map(keys.full, field.names)
        if key in keys.metadata and field.names[0] not in KEPT
    }
    known = read | set(config.unread) | _named(steps)
    dense = not any(_EXPERTS in name for name in steps.source.tensors)
    for name, key in given.items():
        if name not in known and not (dense and f".{_OF_EXPERTS}" in key):
            yield f"{key} = {getattr(config, name)!r:.60} ({name}): no forward reads it"


def _named(steps: Preparation) -> set[str]:
    """Attributes in the files of a model's classes, and the dims of their tensors."""
    used = {type(one.module) for one in instances(steps.model)} | {type(steps.config)}
    found = set[str]()
    for module in {base.__module__ for cls in used for base in cls.__mro__}:
        found |= _attributes(module)
    for _, _, tag, _ in class_fields(steps.architecture):
        found |= {d for d in (*(tag.shape or ()), tag.n, tag.numbers) if isinstance(d, str)}
    return found


@functools.cache
def _attributes(module: str) -> frozenset[str]:
    """The attributes that a file reads of anything."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError, KeyError):  # no source code
        return frozenset()
    nodes = (n for n in ast.walk(tree) if isinstance(n, ast.Attribute))
    return frozenset(n.attr for n in nodes if isinstance(n.ctx, ast.Load))
