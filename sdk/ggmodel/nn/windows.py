"""The pattern of local layers, which see a window of the last positions only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError

_KINDS = {"full_attention": False, "sliding_attention": True}


def sliding_window(hf: Mapping[str, Any]) -> int | None:
    """The length of a config's window; None for none, also if `use_sliding_window` is false."""
    window = hf.get("sliding_window")
    return window if hf.get("use_sliding_window", True) else None


def sliding_layers(hf: Mapping[str, Any]) -> list[bool] | None:
    """Layer → whether it is local, as a config says it: a list of `layer_types`;
    `max_window_layers`, the first layers that see all; or a `sliding_window_pattern`, of which
    every n-th layer sees all, or letters of which "L" is local. None for a config without, and if
    `use_sliding_window` is false.

    Raises:
        ConfigError: another kind of layer or pattern.
    """
    kinds, first = hf.get("layer_types"), hf.get("max_window_layers")
    patterns = [hf.get(key) for key in ("sliding_window_pattern", "_sliding_window_pattern")]
    pattern = next((p for p in patterns if p is not None), None)
    if not hf.get("use_sliding_window", True):
        return None
    if kinds is not None:
        unknown = [kind for kind in kinds if kind not in _KINDS]
        if unknown:
            raise ConfigError(f"layer_types has {unknown[0]!r:.40}; supported: {', '.join(_KINDS)}")
        return [_KINDS[kind] for kind in kinds]
    if pattern is None and first is None:
        return None
    layers = range(hf["num_hidden_layers"])
    if first is not None:
        return [i >= first for i in layers]
    if isinstance(pattern, str) and {*pattern} and {*pattern} <= {*"LG"}:
        return [pattern[i % len(pattern)] == "L" for i in layers]
    if isinstance(pattern, bool) or not isinstance(pattern, int) or pattern < 0:
        raise ConfigError(
            f"sliding_window_pattern is {pattern!r:.40}; supported: a number from 0 on, letters L "
            "and G"
        )
    return local_layers([pattern], len(layers), 1)


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
