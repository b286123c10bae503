"""Modules: fields for tensors and hyperparameters, their names in files, and a `forward`."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ..errors import ConfigError, Unsupported
from ..ml import Tensor
from ..ml.graph import in_scope
from .operations import Operation, Sources
from .source_code import check_tags, declared, line_of, type_hints, union_members

Dim = int | str | None
HFName = str | Sources
MISSING: Any = object()


@dataclass(frozen=True)
class TensorField:
    """The names of a module's field in files; made by `gguf`."""

    names: tuple[str, ...] = ()
    hf: tuple[HFName, ...] | None = None
    op: Operation | None = None
    shape: tuple[Dim, ...] | None = None
    n: str | int | None = None
    root: bool = False
    prefix: str = ""
    suffix: str = ""
    default: Callable[[Any], np.ndarray | None] | None = None
    numbers: str | None = None

    def apart(self) -> TensorField:
        """The same with the second name first, if there is one."""
        return replace(self, names=(*self.names[1:], self.names[0])) if self.names else self


@dataclass(frozen=True)
class KeyField:
    """The names of a hyperparameter in files; made by `kv`."""

    names: tuple[str, ...]
    hf: tuple[str | Callable[[Mapping[str, Any]], Any], ...]
    default: Any
    least: float | None = None
    most: float | str | None = None
    divides: str | None = None

    def __get__(self, config: Any, owner: type) -> Any:
        # Reached only while no value is set: defaults may refer to each other in any order.
        return self if config is None else config._settle(self)


def gguf(
    *names: str,
    hf: HFName | Sequence[HFName] | None = None,
    op: Operation | None = None,
    shape: Sequence[Dim] | None = None,
    n: str | int | None = None,
    root: bool = False,
    prefix: str = "",
    suffix: str = "",
    default: Callable[[Any], np.ndarray | None] | None = None,
    numbers: str | None = None,
) -> Any:
    """Names the tensor of a field, or the part that a field adds to the names within it.

    Args:
        names: primary name, then alternates; none makes the field transparent. Names of nested
            fields are joined by "."; the first that exists in the file wins, once per module.
            Tensors of towers ("v.", "a.", "mm."): the second name is that in an mmproj file.
        hf: the name in a Hugging Face checkpoint, alternates in order of preference, or `Sources`
            where the tensor is made of several or is part of one. Defaults to the primary name for
            tensors.
        op: the operation from the Hugging Face tensor to the GGUF tensor.
        shape: expected dims in ggml order: numbers, names of config attributes, or None for any.
            For a module its in and out widths (see the module).
        n: length of a list: a number or the name of a config attribute.
        root: the name is absolute, not joined to those of the enclosing fields.
        prefix, suffix: put around the names one level down ("_shexp").
        default: a function of the hyperparameters that computes the tensor for files without it, a
            float32 array of the reversed shape, or None for nothing. The name must be absolute.
            Such a tensor is a weight like any other, and never written.
        numbers: the config attribute with the numbers of a list's items in files, where they are
            not 0, 1, …; in checkpoints items count from 0. It says the length, too. A field that
            is no list takes the only number, and stays None where there is none.

    Raises:
        ConfigError: a default for a name that is not absolute.
    """
    if default is not None and not (root and names):
        raise ConfigError(f"gguf{names}: a default needs an absolute name, root=True")
    if isinstance(hf, (str, Sources)):
        hf = (hf,)
    sources = None if hf is None else tuple(hf)
    dims = None if shape is None else tuple(shape)
    return TensorField(names, sources, op, dims, n, root, prefix, suffix, default, numbers)


def kv(
    *names: str,
    hf: str | Callable[[Mapping[str, Any]], Any] | Sequence[Any] = (),
    default: Any = MISSING,
    least: float | None = None,
    most: float | str | None = None,
    divides: str | None = None,
) -> Any:
    """Names the metadata key of a hyperparameter.

    Args:
        names: primary key, then alternates; each is looked up as "<architecture>.<key>" unless it
            begins with "general.", "tokenizer." or "xielu.", then as it stands.
            A key of an encoder alone, "vision.…" or "audio.…", has "clip." before it in an mmproj
            file.
        hf: key in a Hugging Face config ("rope_scaling.factor" descends,
            "preprocessor:size.height" is in preprocessor_config.json), or a function of the
            config; alternates in order of preference.
        default: a value, the name of another field (unless the field is a str), or a function of
            the config. Without one the key is required, unless the type allows None.
        least: the smallest number that a file may have.
        most: the largest number, or the name of another hyperparameter or property that it does not
            exceed: `most="max_pixels"`.
        divides: the name of one that it divides: `divides="width"`. It may be anything if that one
            is 0, as the width of an encoder that a file does not have.

    Raises:
        ConfigError: no name is given.
    """
    if not names:
        raise ConfigError("kv(...) takes the metadata key of the hyperparameter")
    if isinstance(hf, str) or callable(hf):
        hf = (hf,)
    if len(names) == 1 and names[0].startswith(("vision.", "audio.")):
        names += (f"clip.{names[0]}",)
    return KeyField(names, tuple(hf), default, least, most, divides)


def encoder_kv(
    encoder: str, key: str, hf: Any, default: Any = 0, *, usual: Any = MISSING, **limits: Any
) -> Any:
    """A hyperparameter of an encoder, "<encoder>.<key>" in files; see `kv`.

    Args:
        encoder: "vision" or "audio".
        hf: its key in `vision_config` or `audio_config`, or in another file
            ("preprocessor:size.height"), or a function of the config; alternates in order of
            preference.
        default: as for `kv`; 0 suits models that may come without an encoder.
        usual: the value where a config says none; then files must have the key. (With a default,
            that of one alternate would come before another one.)
        limits: `least`, by default 0, `most` and `divides`.
    """
    sources = tuple(
        f"{encoder}_config.{source}" if isinstance(source, str) and ":" not in source else source
        for source in ((hf,) if isinstance(hf, str) or callable(hf) else hf)
    )
    if usual is not MISSING:
        sources, default = (*sources, lambda _: usual), MISSING
    return kv(f"{encoder}.{key}", hf=sources, default=default, **{"least": 0, **limits})


# The towers of images and sounds, and the projector to the width of the text.
_TOWERS = ("v.", "a.", "mm.")


def of_tower(tensor: str) -> bool:
    """Whether the tensor of that name belongs to a tower or its projector."""
    return tensor.startswith(_TOWERS)


@dataclass(frozen=True)
class Names:
    """The candidate names of a module or tensor, the preferred one first, and what goes around
    the names one level down."""

    candidates: tuple[str, ...] = ("",)
    prefix: str = ""
    suffix: str = ""

    def alternates(self, plain: bool) -> tuple[Names, ...]:
        """One for each candidate."""
        if len(self.candidates) == 1:
            return (self,)
        return tuple(Names((name,), self.prefix, self.suffix) for name in self.candidates)

    def field(self, tag: TensorField) -> Names:
        """The names of a field of this module: candidates of the module vary slowest."""
        if not tag.names:
            return Names(self.candidates, self.prefix + tag.prefix, tag.suffix + self.suffix)
        if tag.root:
            return Names(tag.names, tag.prefix, tag.suffix)
        names = [self.prefix + name + self.suffix for name in tag.names]
        joined = tuple(join(c, n) for c in self.candidates for n in names)
        return Names(joined, tag.prefix, tag.suffix)

    def item(self, i: int | None, number: int) -> Names:
        """The names of item i of this list, which has that number in files. None: of this module,
        which has that number in files alone."""
        names = tuple(join(c, str(number)) for c in self.candidates)
        return Names(names, self.prefix, self.suffix)


def join(outer: str, name: str) -> str:
    """Both with a dot between; either may be empty."""
    return f"{outer}.{name}" if outer and name else outer or name


class Module:
    """A part of a model. Fields are annotated `Tensor`, a module, `list[...]`, or a union of
    these; `| None` makes one optional, a union of modules is filled with the one whose tensors
    the file has. Calling a module calls its `forward` and names the results after its path.

    A constructor takes the hyperparameters; it may put modules of its choice into the fields.

    Attributes:
        config: the model's hyperparameters.
        scope: the path below the module that holds it, for the names of results.
        dims: for modules that hold plain tensors: which of the dims given as the `shape` of a
            field each tensor has, such as {"weight": (0, 1), "bias": (1,)}.
        compared: whether `diff` compares it and what it holds with the module of the reference that
            has its tensors; False where that one is called for other things first.
    """

    dims: ClassVar[dict[str, tuple[int, ...]]] = {}
    compared: ClassVar[bool] = True

    def __init__(self, config: Any = None):
        self.config = config
        self.scope = ""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise Unsupported(f"{line_of(type(self))}: {type(self).__name__} has no forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return in_scope(self.scope, self.forward, args, kwargs)


@dataclass(frozen=True)
class FieldType:
    """The annotation of a field.

    Attributes:
        choices: the types of its value, `Tensor` or modules.
        optional: None is allowed.
        many: it is a list of these.
        items_optional: None is allowed in the list.
        interface: it allows any object with some methods, which a constructor has to put there.
    """

    choices: tuple[type, ...]
    optional: bool
    many: bool = False
    items_optional: bool = False
    interface: bool = False


@functools.cache
def module_fields(cls: type[Module]) -> dict[str, tuple[TensorField, FieldType]]:
    """The fields of a module class that hold tensors or modules, in order of declaration.

    Raises:
        ConfigError: an annotation cannot be resolved, or a field tagged with `gguf` has a type
            that cannot hold tensors; names the line.
    """
    check_tags(cls, TensorField, KeyField, "kv(...) tags hyperparameters and belongs in a Config")
    hints = type_hints(cls)
    fields: dict[str, tuple[TensorField, FieldType]] = {}
    for name, tag in declared(cls).items():
        kind = _field_type(hints[name])
        if isinstance(tag, TensorField):
            if kind is None:
                raise ConfigError(
                    f"{line_of(cls, name)}: {cls.__name__}.{name} is tagged gguf(...), but its "
                    f"type {hints[name]} is no Tensor, Module, list or union of these"
                )
            fields[name] = (tag, kind)
        elif kind is not None and tag is None:
            fields[name] = (TensorField(), kind)
    return fields


def _field_type(hint: Any) -> FieldType | None:
    optional, members = union_members(hint)
    if len(members) == 1 and typing.get_origin(members[0]) is list:
        items_optional, members = union_members((*typing.get_args(members[0]), object)[0])
        many = True
    else:
        items_optional = many = False
    if not all(isinstance(t, type) for t in members):
        return None
    concrete = tuple(t for t in members if not _is_interface(t))
    if not all(issubclass(t, (Tensor, Module)) for t in concrete):
        return None
    return FieldType(concrete, optional, many, items_optional, len(concrete) < len(members))


def _is_interface(t: type) -> bool:
    """A protocol, an abstract class, or a base of modules that declares nothing of its own."""
    if getattr(t, "_is_protocol", False) or inspect.isabstract(t):
        return True
    if not issubclass(t, Module) or declared(t).keys() != declared(Module).keys():
        return False
    return t.forward is Module.forward and t.__init__ is Module.__init__
