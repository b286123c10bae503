"""The base class of architectures."""

from __future__ import annotations

import typing
from typing import Any, ClassVar

from ..errors import ConfigError
from ..ml import Context, Tensor
from .batch import Batch
from .config import Config
from .module import Module

if typing.TYPE_CHECKING:
    from ..kvcache import Causal


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

    def caches(self) -> list[Causal]:
        """What each layer remembers, one entry a layer."""
        raise NotImplementedError(f"{type(self).__name__} declares no caches")

    def forward(self, ctx: Context, batch: Batch) -> Tensor:
        """Logits F32 [vocabulary, outputs] of the rows `batch.outputs`."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def validate(self) -> None:
        """Called when all fields are filled, before weights are read; raises to refuse a file."""

    def post_load(self) -> None:
        """Called when the weights are in place."""


def config_class(model: type[Model]) -> type[Config]:
    """The class that a model's `config` is annotated with.

    Raises:
        ConfigError: there is none.
    """
    hint = typing.get_type_hints(model).get("config")
    if isinstance(hint, type) and issubclass(hint, Config):
        return hint
    raise ConfigError(f"{model.__name__} must annotate its hyperparameters: `config: SomeConfig`")
