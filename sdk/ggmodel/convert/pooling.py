"""The pooling of a sentence-transformers checkpoint."""

from __future__ import annotations

from pathlib import Path

from ..errors import Unsupported
from ..reading import read_json

# Key that is true in 1_Pooling/config.json → number in GGUF.
_MODES = {
    "pooling_mode_mean_tokens": 1,
    "pooling_mode_cls_token": 2,
    "pooling_mode_lasttoken": 3,
}
_NAMES = {"mean": 1, "cls": 2, "lasttoken": 3}  # values of `pooling_mode`, in newer files


def pooling_type(folder: Path) -> int | None:
    """`pooling_type` of a checkpoint; None without a pooling module.

    Raises:
        FormatError: its config is no JSON object.
        Unsupported: another pooling than mean, cls and last token.
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
            f"{files[0]}: pooling by {chosen or 'nothing'} is unsupported; supported are "
            f"{', '.join(_MODES)}"
        )
    return number
