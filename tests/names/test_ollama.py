"""Models of Ollama's store: found, refused by name, and broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ggmodel import names
from ggmodel.errors import ConfigError, Error, FormatError, ModelNotFound, Unsupported

from .conftest import Homes
from .stores import put_ollama

MODEL = ("model", b"GGUF")
TEMPLATE = ("template", b"{{ .System }}<u>{{ .Prompt }}<a>{{ .Response }}<e>")


def test_names(homes: Homes):
    put_ollama(homes.ollama, "library/Tiny:latest", MODEL)
    put_ollama(homes.ollama, "library/tiny:7b", ("model", b"GGUF 7"))
    put_ollama(homes.ollama, "me/own:v1", ("model", b"GGUF own"))
    put_ollama(homes.ollama, "org/repo:Q4_K_M", ("model", b"GGUF hub"), host="hf.co")
    wanted = {
        "tiny": b"GGUF",
        "TINY:Latest": b"GGUF",
        "ollama://tiny:7b": b"GGUF 7",
        "me/own:v1": b"GGUF own",
        "hf.co/org/repo:q4_k_m": b"GGUF hub",
        "org/repo:Q4_K_M": b"GGUF hub",
        "ollama://hf.co/org/repo:Q4_K_M": b"GGUF hub",
    }
    for name, content in wanted.items():
        found = names.find(name)
        assert found.path.read_bytes() == content and found.store == "Ollama's store"
        found.verify()
    listed = {m.name for m in names.stored()}
    assert listed == {"Tiny:latest", "tiny:7b", "ollama://me/own:v1", "hf.co/org/repo:Q4_K_M"}
    assert all(names.find(name) for name in listed)
    with pytest.raises(ModelNotFound, match=r"near names here: tiny:7b|near names here: Tiny"):
        names.find("tinny")
    with pytest.raises(Unsupported, match="only read; use `ollama rm tiny:7b`"):
        names.removable("tiny:7b")


def test_a_user_without_a_home_has_no_store_of_our_own(homes: Homes, homeless: None):
    put_ollama(homes.ollama, "library/tiny:7b", MODEL)
    found = names.find("tiny:7b")
    assert found.store == "Ollama's store"
    found.verify()  # and it is not remembered
    assert {m.name for m in names.stored()} == {"tiny:7b"}
    with pytest.raises(ModelNotFound, match="near names here: tiny:7b"):
        names.find("tinny:7b")


def test_two_hosts_have_to_be_told_apart(homes: Homes):
    put_ollama(homes.ollama, "library/m:latest", MODEL)
    put_ollama(homes.ollama, "library/m:latest", MODEL, host="mirror.example:80")
    with pytest.raises(ConfigError, match=r"name one: ollama://mirror.example:80/library/m:latest"):
        names.find("m")
    assert names.find("ollama://mirror.example:80/library/m").path.is_file()


def test_what_the_layers_say(homes: Homes):
    params = {"temperature": 0.5, "stop": ["<e>", "<u>"], "num_ctx": 2048, "num_gpu": 9}
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    put_ollama(
        homes.ollama,
        "library/m:latest",
        MODEL,
        ("projector", b"GGUF that sees"),
        TEMPLATE,
        ("system", b"Be brief."),
        ("params", json.dumps({**params, "num_predict": -1}).encode()),
        ("messages", json.dumps(messages).encode()),
        ("license", b"free"),
    )
    found = names.find("m")
    defaults = found.defaults
    assert found.mmproj is not None and found.mmproj.read_bytes() == b"GGUF that sees"
    assert defaults.options == {"temperature": 0.5, "stop": ("<e>", "<u>")}
    assert defaults.context_length == 2048 and "macro turn" in found.template
    asked = {"role": "user", "content": "q"}
    own = {"role": "system", "content": "mine"}
    brief = {"role": "system", "content": "Be brief."}
    assert defaults.begin([asked]) == [brief, *messages, asked]
    assert defaults.begin([own, asked]) == [own, *messages, asked]
    assert defaults.under({"stop": "x"}) == {"temperature": 0.5, "stop": "x"}
    assert defaults.under({"sampler": 1}) == {"sampler": 1, "stop": ("<e>", "<u>")}


def test_parts_of_a_split_model(homes: Homes):
    put_ollama(homes.ollama, "library/m:latest", MODEL, ("model", b"GGUF second"))
    assert [p.read_bytes() for p in names.find("m").parts] == [b"GGUF", b"GGUF second"]


@pytest.mark.parametrize(
    ("layers", "config", "message"),
    [
        ([MODEL], {"renderer": "qwen3.5"}, "names the renderer 'qwen3.5'.*own path"),
        ([("tensor", b"w")], {}, "has safetensors only, no GGUF"),
        ([], {"remote_host": "x"}, "runs in Ollama's cloud"),
        ([MODEL, ("hologram", b"?")], {}, r"layers of an unknown kind \(hologram\)"),
        ([MODEL, ("params", b'{"mirostat": 2}')], {}, "sets 'mirostat' to 2"),
        ([MODEL, ("template", b"{{ define `x` }}")], {}, "chat template of m:latest.*'define'"),
        ([], {}, "has no model"),
    ],
)
def test_refused_by_name(homes: Homes, layers, config, message: str):
    put_ollama(homes.ollama, "library/m:latest", *layers, config=config)
    with pytest.raises(Unsupported, match=message):
        names.find("m")
    (listed,) = names.stored()
    assert listed.problem and listed.path is None


def _missing_blob(root: Path, manifest: Path) -> None:
    next(p for p in (root / "blobs").iterdir() if p.read_bytes() == b"GGUF").unlink()


def _short_blob(root: Path, manifest: Path) -> None:
    next(p for p in (root / "blobs").iterdir() if p.read_bytes() == b"GGUF").write_bytes(b"G")


def _other_template(root: Path, manifest: Path) -> None:
    blob = next(p for p in (root / "blobs").iterdir() if p.read_bytes() == TEMPLATE[1])
    blob.write_bytes(TEMPLATE[1].replace(b"u", b"v"))


def _climbing_digest(root: Path, manifest: Path) -> None:
    manifest.write_text(manifest.read_text().replace("sha256:", "../../../etc/"))


def _linked_away(root: Path, manifest: Path) -> None:
    blob = next(p for p in (root / "blobs").iterdir() if p.read_bytes() == b"GGUF")
    (root.parent / "secret").write_bytes(b"GGUF")
    blob.unlink()
    blob.symlink_to(root.parent / "secret")


def _circle(root: Path, manifest: Path) -> None:
    blob = next(p for p in (root / "blobs").iterdir() if p.read_bytes() == b"GGUF")
    blob.unlink()
    blob.symlink_to(blob)


def _no_json(root: Path, manifest: Path) -> None:
    manifest.write_text("{")


def _no_layers(root: Path, manifest: Path) -> None:
    manifest.write_text('{"layers": 1}')


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_missing_blob, "is missing"),
        (_short_blob, "has 1 bytes, and 4 by the manifest"),
        (_other_template, "is damaged: its digest"),
        (_climbing_digest, "which is no digest"),
        (_linked_away, "leads out of its store"),
        (_circle, "circle of links"),
        (_no_json, "no valid JSON"),
        (_no_layers, "no manifest of Ollama"),
    ],
)
def test_broken_stores(homes: Homes, damage, message: str):
    damage(homes.ollama, put_ollama(homes.ollama, "library/m:latest", MODEL, TEMPLATE))
    with pytest.raises(FormatError, match=message):
        names.find("m")
    (listed,) = names.stored()
    assert listed.problem and listed.path is None


def test_a_wrong_weight_is_found_when_it_is_loaded(homes: Homes):
    put_ollama(homes.ollama, "library/m:latest", MODEL)
    next(p for p in (homes.ollama / "blobs").iterdir() if p.read_bytes() == b"GGUF").write_bytes(
        b"GGUG"
    )
    with pytest.raises(FormatError, match="sha256 digest"):
        names.find("m").verify()


def test_names_with_dots_are_left_alone(homes: Homes):
    (homes.ollama / "manifests" / "h" / "..n" / "m").mkdir(parents=True)
    (homes.ollama / "manifests" / "h" / "..n" / "m" / "latest").write_text("{}")
    assert not names.stored()
    for name in ("ollama://../../etc/passwd", "..:latest", "a/../b"):
        with pytest.raises(Error):
            names.find(name)
