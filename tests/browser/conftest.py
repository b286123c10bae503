"""The browser that all tests here use."""

from __future__ import annotations

import os
import shutil

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-screenshot", action="store_true", help="draw docs/page.png anew")


@pytest.fixture(scope="session")
def chromium() -> str:
    found = os.environ.get("CHROMIUM") or shutil.which("chromium")
    assert found, "there is no chromium: apt-get install chromium, or name one with CHROMIUM"
    return found
