"""Layers of a derived model: those of its base or of uploaded files, and its own.

Files are shared by hard links where the disk allows it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import ConfigError, FormatError, ModelNotFound, Unsupported
from ..gguf_file import open_gguf
from ..gguf_file.reader import read_part
from ..gguf_file.source import quantization_of
from ..reading import read_json
from ..runner.loading.resolved import PATH, ResolvedModel
from ..storage import atomic_write, naming, private_folder, replace
from .blobs import DIGEST, Report, Step, blob_path, check_room, digest_of
from .grammar import hub_name, is_path, ollama_name, parts_of
from .ollama import OWN_STORE, STORE, Ollama, blob_of, own_root
from .ollama import Layer as StoredLayer

_MEDIA = "application/vnd.ollama.image."
_CHUNK = 1 << 20
_PLAIN = ("F32", "F16", "BF16")  # types of weights that are quantised


@dataclass(frozen=True)
class DerivedModel:
    """A model to be created.

    Attributes:
        base: the name of a model in a store, or a model of this machine; "" if there are files.
        files: name → digest of a blob: GGUF files, whose headers tell projectors and adapters.
        adapters: the same of LoRA adapters, which follow the base's.
        template: Ollama's, in Go's language; "" keeps the base's, as for the rest.
        params: options, as Ollama calls them, over those of the base.
        messages: dicts with role and content.
        licenses: texts, which follow the base's.
        quantize: the type that the weights get, such as "q4_K_M"; "" for the one that they have.
    """

    base: str | ResolvedModel = ""
    files: Mapping[str, str] = field(default_factory=dict)
    adapters: Mapping[str, str] = field(default_factory=dict)
    template: str = ""
    system: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    messages: Sequence[Mapping[str, Any]] = ()
    licenses: Sequence[str] = ()
    quantize: str = ""


Layer = dict[str, Any]


def layers_of(model: DerivedModel, report: Report) -> list[Layer]:
    """The layers of a model in order, its config the last; their blobs are in the store."""
    base, config = _base(model)
    if model.quantize:
        base = _quantized(base, model.quantize, report)
    params = _params_of(base) | dict(model.params)
    layers = [*base, *uploads(model.adapters, "adapter")]
    for kind, text in (
        ("template", model.template),
        ("system", model.system),
        ("params", json.dumps(params) if model.params else ""),
        ("messages", json.dumps([dict(m) for m in model.messages]) if model.messages else ""),
    ):
        if text:
            kept = [layer for layer in layers if layer["mediaType"] != _MEDIA + kind]
            layers = [*kept, _put(text.encode(), kind)]
    layers += [_put(text.encode(), "license") for text in model.licenses]
    known = {layer["digest"] for layer in base}
    for layer in layers:
        word = "using existing" if layer["digest"] in known else "creating new"
        report(Step(f"{word} layer {layer['digest']}"))
    return [*layers, config or _put(b'{"model_format":"gguf"}', "config")]


def _params_of(layers: Sequence[Layer]) -> dict[str, Any]:
    found = [one["digest"] for one in layers if one["mediaType"] == _MEDIA + "params"]
    return {k: v for digest in found for k, v in read_json(blob_path(digest)).items()}


def _quantized(layers: Sequence[Layer], type: str, report: Report) -> list[Layer]:
    """The layers with weights of another type."""
    from ..convert.quantize import quantize
    from ..convert.tensor_types import recipe_of

    models = [layer for layer in layers if layer["mediaType"] == _MEDIA + "model"]
    paths, recipe = [blob_path(layer["digest"]) for layer in models], recipe_of(type)
    total = sum(layer["size"] for layer in models)
    with open_gguf(paths[0], parts=paths) as source:
        present, wanted = quantization_of(source), recipe.name.upper()
        if present.upper() == wanted:
            return [*layers]
        if present not in _PLAIN:
            raise Unsupported(
                f"quantization is only supported for F16, BF16 and F32 models, and this one is "
                f"{present}; take the model in one of these types"
            )
        status = f"quantizing {present} model to {wanted}"

        def progress(share: float) -> None:
            report(Step(status, models[0]["digest"], total, int(share * total)))

        with private_folder(own_root() / "blobs" / "quantized") as work:
            quantize(source, work / "model", type, progress=progress)
            layer = _kept(work / "model", models[0])
    return [layer, *(one for one in layers if one not in models)]


def _kept(file: Path, model: Layer) -> Layer:
    """The layer of a new file of weights, which becomes a blob."""
    digest, size = digest_of(file), file.stat().st_size
    replace(file, blob_path(digest))
    return {**model, "digest": digest, "size": size}


def stored_base(model: DerivedModel) -> ResolvedModel | None:
    """The model that another one is made from; None if it is made from files."""
    if bool(model.base) == bool(model.files):
        both = "both 'from' and 'files' were" if model.base else "neither 'from' or 'files' was"
        raise ConfigError(f"{both} specified; give one of them")
    if model.files:
        return None
    from .resolver import find_stored

    base = find_stored(model.base) if isinstance(model.base, str) else model.base
    if base is None:
        raise ModelNotFound(
            f"model {str(model.base)[:200]!r} not found; `ggmodel list` shows what is here"
        )
    if base.path.is_dir():
        raise Unsupported(f"{base.name} is a folder; convert it to a GGUF file first")
    return base


def absent_base(model: DerivedModel) -> str:
    """The name of a base that is in no store, and is to be downloaded; "" where there is none.

    Raises:
        FormatError, Unsupported: it is there, but damaged or unsupported.
    """
    from .download import is_offline
    from .resolver import find_stored

    base = model.base
    if not base or model.files or not isinstance(base, str) or is_offline():
        return ""
    if is_path(base) or not (hub_name(base) or ollama_name(base)):
        return ""
    return "" if find_stored(base) else base


def _base(model: DerivedModel) -> tuple[list[Layer], Layer | None]:
    """The layers that a model is made from, and the base's config."""
    base = stored_base(model)
    if base is None:
        return uploads(model.files), None
    if base.store in (STORE, OWN_STORE) and (found := Ollama().layers(base.name)) is not None:
        root, layers = found
        linked = [_of_store(root, layer, base.name) for layer in layers.all]
        return linked, _of_store(root, layers.config)
    if base.store == PATH:
        from ..loading import open_source

        with open_source(base) as source:
            files = [(path, _kind_of(path)) for path in source.files]
    else:
        beside = [entry.name for entry in base.path.parent.iterdir()]
        parts = [base.path.parent / part for part in parts_of(beside, base.path.name)]
        files = [(path, "model") for path in parts]
        files += [(base.mmproj, "projector")] if base.mmproj else []
    return [_linked(path, kind, base.digests, base.name) for path, kind in files], None


def _of_store(root: Path, layer: StoredLayer, parent: str = "") -> Layer:
    path = blob_of(root, layer)
    return _linked(path, layer.kind, {path: layer.digest}, parent)


def uploads(files: Mapping[str, str], kind: str = "") -> list[Layer]:
    """The layers of uploaded files, in the order of their names.

    Args:
        kind: the only purpose that they may have; "" for any.

    Raises:
        ConfigError: a name leads elsewhere, or a digest is none. ModelNotFound: a blob is not here.
        FormatError: a blob is no GGUF file.
    """
    return [_uploaded(name, digest, kind) for name, digest in sorted(files.items())]


def add_file(path: Path) -> str:
    """Makes a file of this machine a blob; its digest.

    Raises:
        ModelNotFound: it does not exist. WriteError: there is no room for it.
    """
    with naming(own_root()):
        if not path.is_file():
            raise ModelNotFound(
                f"{path} is no file; check the path, relative to the Modelfile's folder"
            )
        return _linked(path, "model", {})["digest"]


def _uploaded(name: str, digest: str, wanted: str) -> Layer:
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts:
        raise ConfigError(
            f"{name[:100]!r}: file path must be relative, and lead into no folder above"
        )
    path = blob_path(digest)
    if not path.is_file():
        raise ModelNotFound(f"the blob {digest} of {name[:100]!r} is not here; send it first")
    try:
        kind = _kind_of(path)
    except FormatError as error:
        raise FormatError(
            f"{name[:100]!r}: supplied file was not in GGUF format: {error}"
        ) from None
    if wanted and kind != wanted:
        raise FormatError(f"{name[:100]!r} is a {kind} by its header, and no {wanted}")
    return _layer(kind, digest, path.stat().st_size)


def _kind_of(path: Path) -> str:
    """The purpose of a GGUF file, by its header."""
    part = read_part(path, 0)
    try:
        kind = part.metadata.get("general.type")
        is_clip = part.metadata.get("general.architecture") == "clip"
    finally:
        part.buffer.close()
    if kind == "adapter":
        return "adapter"
    return "projector" if is_clip or kind in ("mmproj", "projector") else "model"


def _layer(kind: str, digest: str, size: int) -> Layer:
    return {"mediaType": _MEDIA + kind, "digest": digest, "size": size}


def _put(data: bytes, kind: str) -> Layer:
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    path = blob_path(digest)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(data)
    return _layer(kind, digest, len(data))


def _linked(path: Path, kind: str, digests: Mapping[Path, str], parent: str = "") -> Layer:
    """A layer that shares a file of another store, or of the model called `parent`."""
    real = Path(os.path.realpath(path))
    digest = digests.get(path) or digests.get(real) or ""
    if not DIGEST.fullmatch(digest):
        digest = digest_of(real)
    target = blob_path(digest)
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(real, target)
        except FileExistsError:  # another writer was faster
            pass
        except OSError:  # another disk
            check_room(real.stat().st_size)
            with atomic_write(target) as file, open(real, "rb") as source:
                shutil.copyfileobj(source, file, _CHUNK)
    origin = {"from": parent} if parent and kind == "model" else {}
    return {**_layer(kind, digest, real.stat().st_size), **origin}
