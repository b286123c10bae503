"""Models of the hub's cache and of LM Studio, whole and broken."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

import ggmodel
from ggmodel import names
from ggmodel.errors import FormatError, ModelNotFound, Unsupported
from ggmodel.names import hub_cache
from ggmodel.names.hub_cache import roots

from .conftest import Homes
from .stores import COMMIT, put_hub

Q4, Q8, VISION = b"GGUF four bits", b"GGUF eight bits", b"GGUF that sees"
REPO = {"m-Q8_0.gguf": Q8, "m-Q4_K_M.gguf": Q4, "mmproj-m-F16.gguf": VISION, "README.md": b"#"}


def test_a_repository_in_the_cache(homes: Homes):
    snapshot = put_hub(homes.hub, "org/repo", REPO)
    found = names.find("org/repo")
    assert (
        found.path == snapshot / "m-Q4_K_M.gguf" and found.mmproj == snapshot / "mmproj-m-F16.gguf"
    )
    assert found.store == "Hugging Face's cache" and os.fspath(found) == str(found.path)
    assert names.find("hf.co/org/repo:q8_0").path.read_bytes() == Q8
    assert names.find(f"org/repo@{COMMIT}:Q8_0").path.read_bytes() == Q8
    assert names.find("org/repo/m-Q8_0.gguf").path.read_bytes() == Q8
    found.verify()
    with pytest.raises(ModelNotFound, match="HF_HUB_OFFLINE"):
        names.find("org/repo:Q2_K")
    with pytest.raises(ModelNotFound):
        names.find("org/repo@other")


def test_names_of_stores_are_no_paths(homes: Homes, monkeypatch: pytest.MonkeyPatch):
    snapshot = put_hub(homes.hub, "org/repo", REPO)
    found = names.find_stored("org/repo")
    assert found is not None and found.path == snapshot / "m-Q4_K_M.gguf"
    monkeypatch.chdir(snapshot)
    for path in ("m-Q8_0.gguf", "./m-Q8_0.gguf", str(snapshot / "m-Q8_0.gguf"), "README.md"):
        assert names.find(path).path.exists() and names.find_stored(path) is None
    assert names.find_stored("org/other") is None


@pytest.mark.parametrize(
    ("name", "below"),
    [
        ("HF_HUB_CACHE", ""),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
        ("LLAMA_CACHE", ""),
    ],
)
def test_the_cache_is_where_the_environment_says(homes, tmp_path, monkeypatch, name, below):
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv(name, str(tmp_path / "there"))
    put_hub(tmp_path / "there" / below, "org/repo", REPO)
    assert names.find("org/repo").path.read_bytes() == Q4
    assert tmp_path / "there" / below in roots()


def test_a_checkpoint_and_a_file_of_the_same_repository(homes: Homes):
    checkpoint = {"config.json": b"{}", "model.safetensors": b"weights", "tokenizer.json": b"{}"}
    snapshot = put_hub(homes.hub, "org/plain", checkpoint)
    assert names.find("org/plain").path == snapshot
    put_hub(homes.hub, "org/both", {**checkpoint, "m-Q8_0.gguf": Q8})
    assert names.find("org/both").path.name == "m-Q8_0.gguf"
    assert names.find("org/both", checkpoint=True).path.is_dir()


def test_half_a_download_is_none(homes: Homes):
    part = "m-Q8_0-0000{}-of-00002.gguf"
    snapshot = put_hub(homes.hub, "org/repo", {part.format(1): Q8, part.format(2): Q4})
    assert names.find("org/repo").path.name == part.format(1)
    (snapshot / part.format(2)).resolve().unlink()  # the link stays
    with pytest.raises(ModelNotFound):
        names.find("org/repo")
    shards = {
        "weight_map": {
            "a": "model-00001-of-00002.safetensors",
            "b": "model-00002-of-00002.safetensors",
        }
    }
    files = {"config.json": b"{}", "model.safetensors.index.json": json.dumps(shards).encode()}
    put_hub(homes.hub, "org/half", {**files, "model-00001-of-00002.safetensors": b"w"})
    with pytest.raises(ModelNotFound):
        names.find("org/half")
    broken = {m.name: m.problem for m in names.stored()}
    assert broken == dict.fromkeys(["org/repo:Q8_0", "org/half"], "the download is not complete")


def test_links_stay_in_the_store(homes: Homes, tmp_path: Path):
    (tmp_path / "secret").write_bytes(b"GGUF")
    snapshot = put_hub(homes.hub, "org/repo", REPO)
    link = snapshot / "m-Q4_K_M.gguf"
    link.unlink()
    link.symlink_to(tmp_path / "secret")
    with pytest.raises(FormatError, match="leads out of its store"):
        names.find("org/repo")
    link.unlink()
    link.symlink_to(snapshot / "other")
    (snapshot / "other").symlink_to(link)
    with pytest.raises(FormatError, match="circle of links"):
        names.find("org/repo")


def test_names_lead_nowhere_else(homes: Homes):
    put_hub(homes.hub, "org/repo", REPO)
    (homes.hub / "models--..--etc" / "snapshots").mkdir(parents=True)
    (homes.hub / "models--org--repo" / "refs" / "bad").write_text("../../../..")
    with pytest.raises(ModelNotFound):
        names.find("org/repo@bad")
    for name in ("org/..", "a/b/../../c/d.gguf", "org/repo@../../main", "x:../../y"):
        with pytest.raises((ModelNotFound, FormatError)):
            names.find(name)
    assert {m.name for m in names.stored()} == {"org/repo:Q4_K_M", "org/repo:Q8_0"}


def test_digests_are_held(homes: Homes):
    snapshot = put_hub(homes.hub, "org/repo", REPO)
    found = names.find("org/repo")
    shares: list[float] = []
    found.verify(shares.append)
    assert shares[-1] == 1.0 and len(found.digests) == 2
    shares.clear()
    found.verify(shares.append)
    assert not shares  # once for each content
    (snapshot / "m-Q4_K_M.gguf").resolve().write_bytes(b"GGUF five bits")
    with pytest.raises(FormatError, match="is damaged: its sha256 digest"):
        names.find("org/repo").verify()


def test_lm_studio(homes: Homes, tmp_path: Path):
    at = homes.lm_studio / "pub" / "model"
    at.mkdir(parents=True)
    for name, data in REPO.items():
        (at / name).write_bytes(data)
    found = names.find("pub/model:Q8_0")
    assert found.store == "LM Studio's folder" and found.path == at / "m-Q8_0.gguf"
    assert found.mmproj == at / "mmproj-m-F16.gguf"
    (at / "m-Q8_0.gguf").unlink()
    snapshot = put_hub(homes.hub, "org/repo", REPO)
    (at / "m-Q8_0.gguf").symlink_to(snapshot / "m-Q8_0.gguf")  # as tools do that share one copy
    assert names.find("pub/model:Q8_0").path.read_bytes() == Q8
    (tmp_path / "secret").write_bytes(b"GGUF")
    (at / "m-Q8_0.gguf").unlink()
    (at / "m-Q8_0.gguf").symlink_to(tmp_path / "secret")
    with pytest.raises(FormatError, match="leads out of its store"):
        names.find("pub/model:Q8_0")
    there = tmp_path / "elsewhere"
    (tmp_path / ".lmstudio-home-pointer").write_text(f"{there}\n")
    (there / "models" / "p" / "m").mkdir(parents=True)
    (there / "models" / "p" / "m" / "x.gguf").write_bytes(Q4)
    assert names.find("p/m").path.parent == there / "models" / "p" / "m"


def test_near_names_are_offered(homes: Homes):
    put_hub(homes.hub, "org/llama-small", REPO)
    with pytest.raises(ModelNotFound, match="near names here: org/llama-small:Q"):
        names.find("org/lama-small", download=False)
    with pytest.raises(FormatError, match="does not exist; check the path"):
        names.find("nothing.gguf")


def test_removing_takes_what_no_other_shares(homes: Homes):
    snapshot = put_hub(homes.hub, "org/repo", REPO)
    model = names.removable("org/repo:q8_0")
    assert not model.own and names.remove(model) == len(Q8)
    assert sorted(p.name for p in snapshot.iterdir()) == [
        "README.md",
        "m-Q4_K_M.gguf",
        "mmproj-m-F16.gguf",
    ]
    assert names.remove(names.removable("org/repo:Q4_K_M")) == len(Q4) + len(VISION)
    with pytest.raises(ModelNotFound, match="ggmodel list"):
        names.removable("org/repo")


def test_nothing_is_removed_outside_a_store(homes: Homes, tmp_path: Path):
    snapshot = put_hub(homes.hub, "org/repo", REPO)
    model = names.removable("org/repo:q8_0")
    elsewhere = tmp_path / "precious"
    elsewhere.mkdir()
    (elsewhere / "m-Q8_0.gguf").write_bytes(Q8)
    linked = replace(model, files=(homes.hub / "linked" / "m-Q8_0.gguf",))
    (homes.hub / "linked").symlink_to(elsewhere)
    with pytest.raises(Unsupported, match="leads out of its store"):
        names.remove(linked)
    assert (elsewhere / "m-Q8_0.gguf").exists() and (snapshot / "m-Q8_0.gguf").exists()


def test_removing_takes_what_a_newer_commit_left(homes: Homes):
    old = put_hub(homes.hub, "org/repo", REPO)
    hub_cache.remember(old, "org/repo:Q8_0")
    new = put_hub(homes.hub, "org/repo", {"m-Q8_0.gguf": b"GGUF anew"}, commit="f" * 40)
    model = names.removable("org/repo:Q8_0")
    assert not model.own and model.nbytes == len(Q8) + 9
    assert names.remove(model) == len(Q8) + 9
    assert not (new / "m-Q8_0.gguf").exists() and not hub_cache.is_own(old, "org/repo:Q8_0")
    # Another model of the old commit sees by its projector.
    assert sorted(p.name for p in old.iterdir()) == [
        "README.md",
        "m-Q4_K_M.gguf",
        "mmproj-m-F16.gguf",
    ]
    assert len([*(old.parent.parent / "blobs").iterdir()]) == 3


def test_a_checkpoint_may_hold_empty_files(homes: Homes):
    files = {"config.json": b"{}", "model.safetensors": b"weights", "vocab.txt": b""}
    snapshot = put_hub(homes.hub, "org/folder", files)
    assert names.find("org/folder", checkpoint=True).path == snapshot
    for name, data in files.items():
        if data:
            (snapshot / name).resolve().write_bytes(b"")
            with pytest.raises(FormatError, match=f"{name} is empty; remove it and pull"):
                names.find("org/folder", checkpoint=True)
            (snapshot / name).resolve().write_bytes(data)


def test_a_path_below_a_folder_is_not_asked_of_the_hub(
    homes: Homes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    for text in ("models/llamaa", "models/deep/llamaa.gguf"):
        with pytest.raises(ModelNotFound, match=f"'{text}' is nothing .* hf.co/{text} asks"):
            names.find(text)


class _Other:
    title = "another store"

    def find(self, name: str, checkpoint: bool = False):
        path = Path(os.environ["HOME"]) / "own.gguf"
        return names.ResolvedModel(name, self.title, path) if name == "special" else None

    def stored(self):
        yield names.Stored("special", self.title, None, problem="none")


def test_packages_add_stores(homes: Homes, monkeypatch: pytest.MonkeyPatch):
    class Entry:
        name, value, load = "other", "package:Other", staticmethod(lambda: _Other)

    monkeypatch.setattr(
        "importlib.metadata.entry_points", lambda group: [Entry()] * (group == "ggmodel.sources")
    )
    assert names.find("special").store == "another store"
    assert [m.name for m in names.stored()] == ["special"]


def test_stores_have_bounds(homes: Homes, monkeypatch: pytest.MonkeyPatch):
    put_hub(homes.hub, "org/repo", REPO)
    monkeypatch.setattr(ggmodel.limits, "store_files", 3)
    with pytest.raises(FormatError, match=r"limits.store_files"):
        names.find("org/repo")
    (listed,) = names.stored()
    assert (listed.name, listed.path) == ("?", None) and "store_files" in listed.problem


def test_nothing_can_be_remembered(homes: Homes, monkeypatch: pytest.MonkeyPatch):
    put_hub(homes.hub, "org/repo", REPO)
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/none")
    shares: list[float] = []
    for _ in range(2):
        names.find("org/repo").verify(shares.append)
    assert shares.count(1.0) == 1  # this process knows
