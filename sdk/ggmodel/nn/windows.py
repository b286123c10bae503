"""Which layers see a window of the last positions only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError


def sliding_layers(hf: Mapping[str, Any]) -> list[bool] | None:
    """Of a config that lists its layers by kind, `layer_types`; None for others."""
    kinds = hf.get("layer_types")
    return kinds and [kind == "sliding_attention" for kind in kinds]


def local_layers(pattern: list, layers: int, window: int) -> list[bool]:
    """By layer, whether it sees a window of the last positions only.

    Args:
        pattern: `attention.sliding_window_pattern`, a flag for each layer or one number: of so
            many layers the last one sees all positions; with 1 all do, with 0 none does.
        window: its length; without one, 0, no layer is local.

    Raises:
        ConfigError: there are not as many flags as layers, or it is no pattern.
    """
    if window < 1:
        return [False] * layers
    if len(pattern) == 1 and not isinstance(pattern[0], bool):
        every = pattern[0]
        if not isinstance(every, int) or every < 0:
            raise ConfigError(f"a sliding_window_pattern of {every!r}; it is a number from 0 on")
        return [every == 0 or (i + 1) % every != 0 for i in range(layers)]
    if len(pattern) != layers:
        raise ConfigError(f"a sliding_window_pattern of {len(pattern)} for {layers} layers")
    return [bool(local) for local in pattern]
