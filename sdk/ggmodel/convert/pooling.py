"""How sentence-transformers makes one vector of a text's tokens."""

from __future__ import annotations

from pathlib import Path

from ..errors import Unsupported
from .checkpoint import read_json

# What is set in 1_Pooling/config.json, and the number of that in GGUF.
_MODES = {
    "pooling_mode_mean_tokens": 1,
    "pooling_mode_cls_token": 2,
    "pooling_mode_lasttoken": 3,
}
_NAMES = {"mean": 1, "cls": 2, "lasttoken": 3}  # of `pooling_mode`, which newer ones have


def pooling_type(folder: Path) -> int | None:
    """`pooling_type` of a checkpoint; None where there is no such module.

    Raises:
        FormatError: its config is no JSON object.
        Unsupported: another way of pooling than these.
    """
    files = sorted(folder.glob("*_Pooling/config.json"))
    if not files or not (folder / "modules.json").is_file():
        return None
    config = read_json(files[0])
    for mode, number in _MODES.items():
        if config.get(mode):
            return number
    number = _NAMES.get(str(config.get("pooling_mode")))
    if number is None:
        chosen = ", ".join(k for k, v in config.items() if v and k.startswith("pooling_mode"))
        raise Unsupported(
            f"{files[0]}: pooling by {chosen or 'nothing'} is not there; there is "
            f"{', '.join(_MODES)}"
        )
    return number
