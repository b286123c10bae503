"""The architecture that fits a checkpoint best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import Error
from ...model import LoadReport, Model, Module, find
from ...model.module import module_fields


@dataclass
class Fit:
    """The fit of an architecture's declaration to a checkpoint.

    Attributes:
        named: the config names it.
        read: names in the checkpoint that fields read.
        owners: name of a module in the checkpoint → its class in the declaration.
    """

    cls: type[Model]
    config: Any
    named: bool
    read: set[str]
    report: LoadReport
    owners: dict[str, type[Module]]

    @property
    def score(self) -> tuple[bool, int, bool, bool]:
        # An embedding variant that fits equally well is a worse template. llama is the default.
        usual = bool(self.read) or self.cls.architecture == "llama"
        more = len(self.read) - len(self.report.missing)
        return usual, more, self.named, "head" in module_fields(self.cls)


def best_fit(
    given: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    names: list[str],
    models: str | Path | None,
) -> Fit:
    """The best of some architectures; raises the last one's error if none can be tried."""
    fits, errors = [], []
    for name in names:
        try:
            fits.append(_fit(find(name, models), given, shapes))
        except Error as error:
            errors.append(error)
    if not fits:
        raise errors[-1]
    return max(fits, key=lambda fit: fit.score)


def _fit(cls: type[Model], given: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Fit:
    from ...convert.declaration import plan
    from ...convert.from_hf import normalize, read_config

    _, config = read_config(cls, normalize(given))
    found = plan(cls, config, shapes)
    read = {source for entry in found.entries for source in entry.sources}
    owners = {pair.name: pair.module for pair in found.pairs}
    named = listed_class(given) in cls.hf_architectures
    return Fit(cls, config, named, read, found.report, owners)


def listed_class(given: Mapping[str, Any]) -> str | None:
    """The class that a config names, if it names one."""
    listed = given.get("architectures")
    first = listed[0] if isinstance(listed, list) and listed else None
    return first if isinstance(first, str) and first.isidentifier() else None
