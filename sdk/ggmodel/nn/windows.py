"""The pattern of local layers, which see a window of the last positions only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError


def sliding_layers(hf: Mapping[str, Any]) -> list[bool] | None:
    """Layer → whether it is local, from a config's `layer_types`; None for a config without."""
    kinds = hf.get("layer_types")
    return kinds and [kind == "sliding_attention" for kind in kinds]


def local_layers(pattern: list, layers: int, window: int) -> list[bool]:
    """Layer → whether it is local: sees a window of the last positions only.

    Args:
        pattern: `attention.sliding_window_pattern`: a flag for each layer, or one number n: every
            n-th layer sees all positions; with 1 all do, with 0 none does.
        window: its length; with 0 no layer is local.

    Raises:
        ConfigError: another number of flags than of layers, or no pattern at all.
    """
    if window < 1:
        return [False] * layers
    if len(pattern) == 1 and not isinstance(pattern[0], bool):
        every = pattern[0]
        if not isinstance(every, int) or every < 0:
            raise ConfigError(f"a sliding_window_pattern of {every!r}; it must be 0 or more")
        return [every == 0 or (i + 1) % every != 0 for i in range(layers)]
    if len(pattern) != layers:
        raise ConfigError(f"a sliding_window_pattern of {len(pattern)} for {layers} layers")
    return [bool(local) for local in pattern]
