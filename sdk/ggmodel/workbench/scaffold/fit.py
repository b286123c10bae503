"""The architecture that fits a checkpoint best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import Error
from ...model import LoadReport, Model, Module, find
from ...model.module import module_fields
from ...model.names import of_tower
from .keys import Hyperparameters
from .translate import Translation, translate


@dataclass
class Fit:
    """The fit of an architecture's declaration to a checkpoint, whose tensors are called as the
    declaration expects them.

    Attributes:
        named: the config names it.
        plain: it has no towers, or they are in the checkpoint, too.
        read: names of tensors that fields read.
        owners: name of a module → its class in the declaration.
        translation: from the checkpoint's names.
        hyperparameters: how the declaration fits config.json.
    """

    cls: type[Model]
    config: Any
    named: bool
    plain: bool
    read: set[str]
    report: LoadReport
    owners: dict[str, type[Module]]
    translation: Translation
    hyperparameters: Hyperparameters

    @property
    def score(self) -> tuple[bool, bool, int, bool, int, int, bool]:
        # An embedding variant that fits equally well is a worse template. llama is the default.
        usual = bool(self.read) or self.cls.architecture == "llama"
        more = len(self.read) - len(self.report.missing)
        corrected = len(self.translation.corrections)
        keys = self.hyperparameters
        unread = sum("_config." not in path for path in keys.unread)  # towers show in tensors
        misfits = unread + len(keys.missing) + len(keys.failed)
        suited = self.named or self.plain
        head = "head" in module_fields(self.cls)
        return usual, suited, more, self.named, -corrected, -misfits, head


def best_fit(
    name: str,
    given: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    names: list[str],
    models: str | Path | None,
) -> Fit:
    """The best of some architectures for a new one.

    Raises:
        Error: none can be tried; the last one's.
    """
    fits, errors = [], []
    for known in names:
        try:
            fits.append(_fit(name, find(known, models), given, shapes))
        except Error as error:
            errors.append(error)
    if not fits:
        raise errors[-1]
    return max(fits, key=lambda fit: fit.score)


def _fit(
    name: str,
    cls: type[Model],
    given: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
) -> Fit:
    from ...convert.declaration import plan

    keys = Hyperparameters.of(cls, given)
    translation = translate(cls, name, shapes)
    found = plan(cls, keys.config, translation.given)
    read = {source for entry in found.entries for source in entry.sources}
    owners = {pair.name: pair.module for pair in found.pairs}
    named = listed_class(given) in cls.hf_architectures
    towers = any(entry.sources and of_tower(entry.name) for entry in found.entries)
    plain = towers or not cls.takes_items()
    return Fit(cls, keys.config, named, plain, read, found.report, owners, translation, keys)


def listed_class(given: Mapping[str, Any]) -> str | None:
    """The class that a config names, if it names one."""
    listed = given.get("architectures")
    first = listed[0] if isinstance(listed, list) and listed else None
    return first if isinstance(first, str) and first.isidentifier() else None
