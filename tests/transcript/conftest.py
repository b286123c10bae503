"""The tiny Whisper, loaded once."""

from pathlib import Path

import pytest

import ggmodel


@pytest.fixture(scope="module")
def whisper(whisper_file: Path):
    with ggmodel.load(whisper_file, kv_type="f32", flash_attention="off", parallel=4) as model:
        yield model
