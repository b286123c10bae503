"""The two kinds of declared fields: `gguf` for tensors, `kv` for hyperparameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import ConfigError
from .operations import Operation, Sources

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
            not 0, 1, …; in checkpoints items count from 0. It says the length, too.

    Raises:
        ConfigError: a default for a name that is not absolute.
    """
    if default is not None and not (root and names):
        raise ConfigError(f"gguf{names}: a default needs an absolute name, root=True")
    if isinstance(hf, (str, Sources)):
        hf = (hf,)
    return TensorField(
        names,
        None if hf is None else tuple(hf),
        op,
        None if shape is None else tuple(shape),
        n,
        root,
        prefix,
        suffix,
        default,
        numbers,
    )


def kv(
    *names: str,
    hf: str | Callable[[Mapping[str, Any]], Any] | Sequence[Any] = (),
    default: Any = MISSING,
    least: float | None = None,
) -> Any:
    """Names the metadata key of a hyperparameter.

    Args:
        names: primary key, then alternates; each is looked up as "<architecture>.<key>" unless it
            begins with "general." or "tokenizer.", then as it stands ("clip.vision.block_count").
            A key of an encoder alone, "vision.…" or "audio.…", has "clip." before it in an mmproj
            file.
        hf: key in a Hugging Face config ("rope_scaling.factor" descends,
            "preprocessor:size.height" is in preprocessor_config.json), or a function of the
            config; alternates in order of preference.
        default: a value, the name of another field (unless the field is a str), or a function of
            the config. Without one the key is required, unless the type allows None.
        least: the smallest number that a file may have.

    Raises:
        ConfigError: no name is given.
    """
    if not names:
        raise ConfigError("kv(...) takes the metadata key of the hyperparameter")
    if isinstance(hf, str) or callable(hf):
        hf = (hf,)
    if len(names) == 1 and names[0].startswith(("vision.", "audio.")):
        names += (f"clip.{names[0]}",)
    return KeyField(names, tuple(hf), default, least)


def encoder_kv(
    encoder: str, key: str, hf: Any, default: Any = 0, least: float = 0, *, usual: Any = MISSING
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
    """
    sources = tuple(
        f"{encoder}_config.{source}" if isinstance(source, str) and ":" not in source else source
        for source in ((hf,) if isinstance(hf, str) or callable(hf) else hf)
    )
    if usual is not MISSING:
        sources, default = (*sources, lambda _: usual), MISSING
    return kv(f"{encoder}.{key}", hf=sources, default=default, least=least)
