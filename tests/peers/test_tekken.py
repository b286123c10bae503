"""Vocabularies that Mistral publishes as tekken.json, beside mistral-common, which carries them."""

from __future__ import annotations

import random
import shutil
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from ggmodel.convert.vocabulary import vocabulary
from ggmodel.tokenizer import Tokenizer
from tests.conftest import ROOT

PUBLISHED = ("tekken_240718.json", "tekken_240911.json")
# Letters, accents, scripts of several continents, marks that combine, pictures, controls.
RANGES = [
    *((0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x530), (0x530, 0x700)),
    *((0x900, 0xE00), (0xE00, 0x1200), (0x1E00, 0x2400), (0x3040, 0x3100), (0x4E00, 0x9FA5)),
    *((0xAC00, 0xD7A3), (0x10000, 0x10400), (0x1F300, 0x1F6FF), (0, 0x20)),
]
AMONG = [" ", "  ", "\n", "\r\n", "\t", "12345", "'s", "====", "<s>", "[INST]", "</s>", "👩‍🚀"]


def texts() -> list[str]:
    """Files of this repository, runs of one letter, and letters at random."""
    draw = random.Random(1)
    found = [p.read_text("utf-8") for p in sorted((ROOT / "tests/tokenizer/data").glob("*.txt"))]
    found += [p.read_text("utf-8") for p in sorted((ROOT / "sdk/ggmodel/model").glob("*.py"))]
    found += [letter * n for letter in " \n-1a" for n in range(1, 60)]
    for _ in range(2000):
        few = draw.sample(RANGES, draw.randrange(1, 4))
        letters = [chr(draw.randrange(*draw.choice(few))) for _ in range(draw.randrange(1, 40))]
        found.append("".join(x + draw.choice(AMONG) * (draw.random() < 0.2) for x in letters))
    return found


@pytest.mark.parametrize("name", PUBLISHED)
def test_ids_are_those_of_mistral_common(name: str, tmp_path: Path):
    path = tmp_path / "tekken.json"
    shutil.copy(str(files("mistral_common") / "data" / name), path)
    # By name: types need not be installed.
    package: Any = import_module("mistral_common.tokens.tokenizers.tekken")
    theirs = package.Tekkenizer.from_file(str(path))
    metadata = vocabulary(tmp_path, {"model_type": "voxtral", "vocab_size": 131072})
    ours = Tokenizer.from_metadata(metadata)
    compared = 0
    for text in texts():
        wanted = theirs.encode(text, bos=False, eos=False)
        assert ours.encode(text, add_special=False, parse_special=False) == wanted, text[:60]
        assert ours.decode(wanted, skip_special=False) == text
        compared += len(wanted)
    assert compared > 100_000
