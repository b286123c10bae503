"""The small vocabularies of data/, as metadata and built."""

import json
from pathlib import Path

import pytest

from ggmodel.tokenizer import Tokenizer

DATA = {
    path.stem: json.loads(path.read_text("utf-8"))
    for path in Path(__file__).parent.glob("data/*.json")
}
BUILT = {name: Tokenizer.from_metadata(data["metadata"]) for name, data in DATA.items()}


@pytest.fixture(scope="session")
def vocabularies() -> dict:
    return DATA


@pytest.fixture(scope="session")
def tokenizers() -> dict[str, Tokenizer]:
    return BUILT


@pytest.fixture
def metadata(request) -> dict:
    """A copy of the metadata of the vocabulary named by the parameter, free to be damaged."""
    return dict(DATA[getattr(request, "param", "gpt-2")]["metadata"])
