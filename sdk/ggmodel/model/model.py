"""The base class of architectures."""

from __future__ import annotations

import typing
from typing import Any, ClassVar

from ..errors import ConfigError, TensorError, Unsupported
from ..ml import Context, DType, Tensor
from .batch import Batch
from .config import Config
from .module import Module
from .source import author_code, file_of, line_of, type_hints

if typing.TYPE_CHECKING:
    from collections.abc import Sequence

    from ..kvcache import Remembers


class Model(Module):
    """An architecture: annotate `config` with its `Config` class, declare its tensors, write
    `caches` and `forward`, and register it.

    Attributes:
        ignore: patterns of tensors that a file may have and the model does not need.
        architecture: the name it is registered under.
    """

    ignore: ClassVar[tuple[str, ...]] = ()
    architecture: ClassVar[str] = ""
    hf_architectures: ClassVar[tuple[str, ...]] = ()

    config: Any

    def caches(self) -> Sequence[Remembers]:
        """What each layer remembers, a list with one entry a layer."""
        raise Unsupported(f"{line_of(type(self))}: {type(self).__name__} declares no caches")

    def forward(self, ctx: Context, batch: Batch) -> Tensor:
        """Logits F32 [vocabulary, outputs] of the rows `batch.outputs`."""
        raise Unsupported(f"{line_of(type(self))}: {type(self).__name__} has no forward")

    def __call__(self, ctx: Context, batch: Batch) -> Tensor:
        name = f"{type(self).__name__}.forward"
        with author_code(name, file_of(type(self))):
            result = super().__call__(ctx, batch)
        if not isinstance(result, Tensor):
            raise TensorError(
                f"{line_of(type(self))}: {name} returned {type(result).__name__}; it must return "
                "a tensor, the logits"
            )
        if result.dtype is not DType.F32 or result.op is None:
            raise TensorError(
                f"{line_of(type(self))}: {name} returned {result.describe()}; logits are F32 and "
                "computed"
            )
        rows, wanted = result.n_elements // result.dim(0), batch.outputs.dim(0)
        if rows != wanted:
            raise TensorError(
                f"{line_of(type(self))}: {name} returned {rows} rows where {wanted} were wanted; "
                "take x.rows(batch.outputs) before the last residual is added"
            )
        return result

    def validate(self) -> None:
        """Called when all fields are filled, before weights are read; raises to refuse a file."""

    def post_load(self) -> None:
        """Called when the weights are in place."""


def config_class(model: type[Model]) -> type[Config]:
    """The class that a model's `config` is annotated with.

    Raises:
        ConfigError: there is none; names the line.
    """
    hint = type_hints(model).get("config")
    if isinstance(hint, type) and issubclass(hint, Config):
        return hint
    raise ConfigError(
        f"{line_of(model)}: {model.__name__} must annotate its hyperparameters: "
        "`config: SomeConfig`"
    )
