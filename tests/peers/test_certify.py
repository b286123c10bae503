"""llama.cpp's server on our files, certified: a good one, and one with another template."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.certify_files import write_folder

from ggmodel.convert import convert
from ggmodel.workbench.certify.server import certify_server
from tests.peers.servers import peer


@pytest.mark.parametrize("template", ["", "chatml"])
def test_a_server(tmp_path: Path, template: str):
    folder = write_folder(tmp_path / "llama", "llama")
    convert(folder, tmp_path / "model.gguf", "q8_0")
    with peer(tmp_path / "model.gguf", "text", template) as address:
        certificate = certify_server(address, folder)
    assert set(certificate.checked) == {"tokenizer", "template", "behaviour"}
    assert [f.part for f in certificate.faults] == (["template"] if template else [])
