"""ggml's messages, as records of the Python logger "ggmodel.ggml"."""

from __future__ import annotations

import atexit
import logging
import threading
from types import ModuleType

logger = logging.getLogger("ggmodel.ggml")
# Without logging set up by the application, nothing is printed.
logging.getLogger("ggmodel").addHandler(logging.NullHandler())

_unfinished = threading.local()


def install(module: ModuleType) -> None:
    """Route messages and failing asserts of ggml into this binding."""
    ffi, lib = module.ffi, module.lib
    levels = {
        lib.GGML_LOG_LEVEL_DEBUG: logging.DEBUG,
        lib.GGML_LOG_LEVEL_INFO: logging.INFO,
        lib.GGML_LOG_LEVEL_WARN: logging.WARNING,
        lib.GGML_LOG_LEVEL_ERROR: logging.ERROR,
    }

    @ffi.def_extern(name="ggmodel_log_line")
    def log_line(level: int, text: object) -> None:
        # ggml may write a line in pieces.
        pending = getattr(_unfinished, "text", "") + ffi.string(text).decode(errors="replace")
        *lines, _unfinished.text = pending.split("\n")
        for line in lines:
            logger.log(levels.get(level, logging.INFO), "%s", line)

    lib.ggmodel_set_log_level(lib.GGML_LOG_LEVEL_INFO)
    lib.ggmodel_install()
    atexit.register(lib.ggmodel_detach)
