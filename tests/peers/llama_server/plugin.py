"""A plugin of pytest for llama.cpp's tests: no downloads, chosen tests, and the outcomes as a file.

GGMODEL_CHOSEN lists the tests to run, null for all; GGMODEL_OUTCOMES is where the outcomes go.
"""

from __future__ import annotations

import json
import os
import sys
import types
from pathlib import Path
from typing import Any

_outcomes: dict[str, str] = {}


def _refuse(*_: Any, **__: Any) -> None:
    raise OSError("downloads are left out")


# Their folder's own conftest imports it, so it must be there before.
_stub = types.ModuleType("wget")
_stub.download = _refuse  # type: ignore[attr-defined]
sys.modules["wget"] = _stub


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    utils: Any = sys.modules["utils"]
    utils.ServerPreset.load_all = staticmethod(lambda: None)
    chosen = json.loads(os.environ["GGMODEL_CHOSEN"])
    if chosen is not None:
        left_out = [one for one in items if one.nodeid not in chosen]
        config.hook.pytest_deselected(items=left_out)
        _outcomes.update((one.nodeid, "left out") for one in left_out if _is_run(one))
        items[:] = [one for one in items if one.nodeid in chosen]


def _is_run(item: Any) -> bool:
    return not any(item.get_closest_marker(mark) for mark in ("slow", "skip"))


def pytest_runtest_logreport(report: Any) -> None:
    # A failing setup or teardown counts, a passing one does not.
    if report.when == "call" or report.outcome != "passed":
        _outcomes[report.nodeid] = report.outcome


def pytest_sessionfinish() -> None:
    Path(os.environ["GGMODEL_OUTCOMES"]).write_text(json.dumps(_outcomes), encoding="utf-8")
