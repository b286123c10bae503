"""Stores, laid out as the programs that own them do."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"
HOST = "registry.example"
EMPTY = b"GGUF" + struct.pack("<IQQ", 3, 0, 0)  # a GGUF file without tensors and metadata


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put_hub(
    root: Path, repo: str, files: Mapping[str, bytes], commit: str = COMMIT, branch: str = "main"
) -> Path:
    """A repository in the hub's cache; the folder of its snapshot."""
    at = root / f"models--{repo.replace('/', '--')}"
    for name, data in files.items():
        blob = at / "blobs" / digest(data)
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
        pointer = at / "snapshots" / commit / name
        pointer.parent.mkdir(parents=True, exist_ok=True)
        pointer.symlink_to(Path(*[".."] * (2 + name.count("/")), "blobs", blob.name))
    (at / "refs").mkdir(parents=True, exist_ok=True)
    (at / "refs" / branch).write_text(commit)
    return at / "snapshots" / commit


def put_ollama(
    root: Path,
    name: str,
    *layers: tuple[str, bytes],
    config: Mapping[str, Any] | None = None,
    host: str = HOST,
) -> Path:
    """A model in Ollama's store, "namespace/model:tag"; its manifest."""
    path = root / "manifests" / host / name.replace(":", "/")

    def blob(kind: str, data: bytes) -> dict[str, Any]:
        (root / "blobs").mkdir(parents=True, exist_ok=True)
        (root / "blobs" / f"sha256-{digest(data)}").write_bytes(data)
        media = f"application/vnd.ollama.image.{kind}"
        return {"mediaType": media, "digest": f"sha256:{digest(data)}", "size": len(data)}

    path.parent.mkdir(parents=True, exist_ok=True)
    manifest = {
        "schemaVersion": 2,
        "config": blob("config", json.dumps(config or {"model_format": "gguf"}).encode()),
        "layers": [blob(kind, data) for kind, data in layers],
    }
    path.write_text(json.dumps(manifest))
    return path
