"""Ollama's store, read only: `manifests/HOST/NAMESPACE/MODEL/TAG` names layers, which are files
`blobs/sha256-DIGEST`. The store of derived models, see `derived`, looks the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .. import storage
from ..errors import ConfigError, Error, FormatError, Unsupported
from ..reading import decoded, parse_json, read_file, read_json
from ..runner.loading.resolved import Defaults, ResolvedModel
from .go_template import as_jinja
from .grammar import HubName, OllamaName, hub_name, ollama_name
from .store_files import Stored, contained, files_below

HUGGING_FACE = "hf.co"  # the host of models that Ollama pulled from the hub
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_KIND = re.compile(r"application/vnd\.ollama\.image\.([a-z0-9_.-]+)")
_TAKEN = ("model", "projector", "adapter", "template", "prompt", "system", "params", "messages")
# Nothing that a prompt or a result depends on; a draft model only makes it faster.
_IGNORED = ("license", "embed", "draft")

# Ollama's name of an option → that of `RequestOptions`.
_OPTIONS = {
    **{
        name: name
        for name in (
            "temperature top_k top_p min_p typical_p repeat_penalty repeat_last_n "
            "frequency_penalty presence_penalty seed stop num_keep"
        ).split()
    },
    "num_predict": "max_tokens",
}
# Options of the machine, and some without effect in Ollama itself.
_OF_MACHINE = (
    "num_thread num_gpu num_batch num_gqa main_gpu use_mmap use_mlock numa low_vram f16_kv "
    "vocab_only logits_all penalize_newline tfs_z mirostat_tau mirostat_eta embedding_only "
    "draft_num_predict num_ctx"
).split()


@dataclass(frozen=True)
class Layer:
    """A blob with its purpose: "model", "template" …

    Attributes:
        parent: the name of the model that a blob of this kind was taken from; "" if unknown.
    """

    kind: str
    digest: str
    size: int
    parent: str = ""


@dataclass(frozen=True)
class Layers:
    """The layers of a manifest in order, and the blob of its config."""

    name: str
    all: tuple[Layer, ...]
    config: Layer

    def of(self, *kinds: str) -> list[Layer]:
        """The layers of some kinds."""
        return [layer for layer in self.all if layer.kind in kinds]

    @property
    def models(self) -> list[Layer]:
        """The parts of the model."""
        return self.of("model")

    @property
    def projectors(self) -> list[Layer]:
        """The vision projector, if there is one."""
        return self.of("projector")

    def refuse(self, root: Path) -> None:
        """Says why such a model cannot be run.

        Raises:
            Unsupported: names what it is and what to do instead.
            FormatError: the config cannot be read.
        """
        config = _json(root, self.config)
        reason = ""
        if config.get("remote_host") or config.get("remote_model"):
            reason = "runs in Ollama's cloud, and has no weights here; pull a local tag of it"
        elif not self.models and self.of("tensor"):
            reason = "has safetensors only, no GGUF; name the original repository ORG/REPO"
        elif others := sorted({x.kind for x in self.all} - {*_TAKEN, *_IGNORED}):
            reason = f"has layers of an unknown kind ({', '.join(others)}); newer than this version"
        elif not self.models:
            reason = "has no model; pull it again"
        elif len(self.projectors) > 1:
            reason = "has several projectors, and one is supported"
        elif config.get("renderer") and not self.of("template", "prompt"):
            path = root / "blobs" / self.models[0].digest.replace(":", "-")
            own = f"give the file's own path, {path}, to use the one in it"
            reason = (
                f"names the renderer {str(config['renderer'])[:80]!r}, which is code of Ollama, in "
                "place of a chat template; "
                + (own if path.exists() else "ORG/REPO of the hub may have the model with one")
            )
        if reason:
            raise Unsupported(f"{self.name} of Ollama {reason}")


def read_manifest(path: Path, name: str) -> Layers:
    """The layers that a manifest names.

    Raises:
        FormatError: it is no manifest.
    """
    return layers_in(read_json(path), path, name)


def layers_in(manifest: Mapping[str, Any], path: Path | str, name: str) -> Layers:
    """The layers of a manifest.

    Args:
        path: where it came from, for messages.

    Raises:
        FormatError: it is no manifest.
    """
    layers = manifest.get("layers")
    if not isinstance(layers, list):
        raise FormatError(f"{path} is no manifest of Ollama: it has no layers; pull it again")
    config = _layer(manifest.get("config"), path, "config")
    return Layers(name, tuple(_layer(entry, path) for entry in layers), config)


def _layer(entry: Any, path: Path | str, kind: str = "") -> Layer:
    entry = entry if isinstance(entry, Mapping) else {}
    digest, size, media = (entry.get(key) for key in ("digest", "size", "mediaType"))
    match = _KIND.fullmatch(media) if isinstance(media, str) else None
    if not (isinstance(digest, str) and _DIGEST.fullmatch(digest)):
        raise FormatError(
            f"{path} names a layer by {str(digest)[:100]!r}, which is no digest; pull it again"
        )
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise FormatError(f"{path} has no size of {digest}; pull it again")
    parent = entry.get("from")
    kind = kind or (match[1] if match else str(media)[:100])
    return Layer(kind, digest, size, parent if isinstance(parent, str) else "")


def blob_of(root: Path, layer: Layer) -> Path:
    """The file of a layer, whole.

    Raises:
        FormatError: it is missing, shorter or longer than the manifest says, or outside the store.
    """
    blobs = root / "blobs"
    path = contained(blobs / layer.digest.replace(":", "-"), [root, blobs])
    if (size := path.stat().st_size) != layer.size:
        raise FormatError(
            f"{path} has {size:,} bytes, and {layer.size:,} by the manifest; pull the model again"
        )
    return path


def _bytes(root: Path, layer: Layer) -> bytes:
    path = blob_of(root, layer)
    data = read_file(path, "text_file_bytes")
    if layer.digest != f"sha256:{hashlib.sha256(data).hexdigest()}":
        raise FormatError(f"{path} is damaged: its digest is another one; pull the model again")
    return data


def text_of(root: Path, layer: Layer) -> str:
    """The text of a layer.

    Raises:
        FormatError: the blob is missing or damaged, or no UTF-8.
    """
    return decoded(_bytes(root, layer), layer.digest)


def _json(root: Path, layer: Layer) -> dict[str, Any]:
    return parse_json(_bytes(root, layer), str(blob_of(root, layer)))


def template_of(root: Path, layers: Layers) -> str:
    """The chat template in Jinja; "" where the model's own counts.

    Raises:
        Unsupported: it does what cannot be written in Jinja.
    """
    templates = layers.of("template", "prompt")
    return as_jinja(text_of(root, templates[-1]), layers.name) if templates else ""


def defaults_of(root: Path, layers: Layers) -> Defaults:
    """The system's message, the conversation and the options of the store.

    Raises:
        FormatError: a layer is not what it should be.
        Unsupported: an option that would change the answers is not supported.
    """
    system = "".join(text_of(root, layer) for layer in layers.of("system")[-1:])
    messages, params = conversation_of(root, layers), parameters_of(root, layers)
    length = params.get("num_ctx")
    if length is not None and (type(length) is not int or length < 1):
        raise ConfigError(f"{layers.name}: num_ctx is {length!r:.80}; it must be a number")
    return Defaults(
        system, tuple(messages), MappingProxyType(_options(params, layers.name)), length
    )


def parameters_of(root: Path, layers: Layers) -> dict[str, Any]:
    """The options as Ollama calls them.

    Raises:
        FormatError: a layer is not what it should be.
    """
    params: dict[str, Any] = {}
    for layer in layers.of("params"):
        params |= _json(root, layer)
    return params


def conversation_of(root: Path, layers: Layers) -> list[dict[str, str]]:
    """The messages, with role and content.

    Raises:
        FormatError: a layer is not what it should be.
    """
    return [m for layer in layers.of("messages") for m in _messages(root, layer)]


def _messages(root: Path, layer: Layer) -> list[dict[str, str]]:
    path = str(blob_of(root, layer))
    try:
        messages = json.loads(text_of(root, layer))
    except (ValueError, RecursionError):
        messages = None
    if not isinstance(messages, list) or not all(
        isinstance(m, dict) and all(isinstance(m.get(k), str) for k in ("role", "content"))
        for m in messages
    ):
        raise FormatError(f"{path} should hold messages with role and content; pull it again")
    return [{"role": m["role"], "content": m["content"]} for m in messages]


def _options(params: Mapping[str, Any], name: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for key, value in params.items():
        if _is_idle(key, value):
            continue
        if key not in _OPTIONS:
            raise Unsupported(
                f"{name} of Ollama sets {key[:80]!r} to {value!r:.80}, which is unsupported; "
                "remove it from a copy of its Modelfile"
            )
        if key == "num_predict" and isinstance(value, int) and value < 0:
            continue  # no bound
        if not _suits(key, value):
            raise FormatError(f"{name} of Ollama: {key} is {value!r:.80}; pull it again")
        options[_OPTIONS[key]] = (value,) if isinstance(value, str) else value
    if "stop" in options:
        options["stop"] = tuple(s for s in options["stop"] if s)
    return options


def _is_idle(key: str, value: Any) -> bool:
    """Whether an option changes no answer."""
    return key in _OF_MACHINE or (key == "mirostat" and not value)


def request_options(params: Mapping[str, Any]) -> tuple[dict[str, Any], list[str], list[str]]:
    """Options of a request as `RequestOptions` calls them, the names of those whose values are of
    a wrong type, and the names of unsupported ones, which are left out.

    Args:
        params: options as Ollama calls them.
    """
    supported = {key: value for key, value in params.items() if key in _OPTIONS}
    wrong = [key for key, value in supported.items() if not _suits(key, value)]
    others = [key for key in params if key not in _OPTIONS and not _is_idle(key, params[key])]
    return ({} if wrong else _options(supported, "the request")), wrong, others


def check_parameters(params: Mapping[str, Any]) -> None:
    """Looks at options that a model is to have.

    Args:
        params: options as Ollama calls them.

    Raises:
        ConfigError: one has a wrong value. Unsupported: one would change the answers, and is not
            supported.
    """
    for key, value in params.items():
        if key in _OPTIONS and not _suits(key, value):
            raise ConfigError(f"parameters.{key}: {value!r:.80} is of a wrong type")
    length = params.get("num_ctx")
    if length is not None and (type(length) is not int or length < 1):
        raise ConfigError(f"parameters.num_ctx: {length!r:.80} is no number of tokens")
    _options(params, "the model")


def _suits(key: str, value: Any) -> bool:
    if key != "stop":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, (list, str)) and all(isinstance(text, str) for text in value)


STORE, OWN_STORE = "Ollama's store", "ggmodel's own store"
LIBRARY = "library"  # the namespace of names without one
REGISTRY = "registry.ollama.ai"  # the host of names without one
_SYSTEM = "/usr/share/ollama/.ollama/models"  # of the service on Linux


def roots() -> list[Path]:
    """The stores: our own; then the one of OLLAMA_MODELS, or the user's and the service's."""
    own: list[Path] = []
    with suppress(ConfigError):  # a user without a home folder has made none
        own = [own_root()]
    if folder := os.environ.get("OLLAMA_MODELS"):
        return [*own, Path(os.path.expanduser(folder))]
    return [*own, Path(os.path.expanduser("~/.ollama/models")), Path(_SYSTEM)]


def own_root() -> Path:
    """The store of models that were made here.

    Raises:
        ConfigError: the user has no home folder.
    """
    return storage.data_folder() / "models"


@dataclass(frozen=True)
class Entry:
    """A manifest in a store, under its whole name."""

    root: Path
    name: OllamaName

    @property
    def path(self) -> Path:
        """The manifest."""
        n = self.name
        return self.root / "manifests" / n.host / n.namespace / n.model / n.tag

    @property
    def store(self) -> str:
        """The title of the store."""
        with suppress(ConfigError):
            return OWN_STORE if self.root == own_root() else STORE
        return STORE

    @property
    def short(self) -> str:
        """The name as users type it: without the host that all others have, too."""
        n = self.name
        if n.host == HUGGING_FACE:
            return str(n)
        namespace = "" if n.namespace == LIBRARY else f"ollama://{n.namespace}/"
        return f"{namespace}{n.model}:{n.tag}"


class Ollama:
    """The source of names of Ollama."""

    title = STORE

    def find(self, name: str, checkpoint: bool = False) -> ResolvedModel | None:
        """See `Source.find`."""
        if checkpoint:
            return None
        entry = _entry(name)
        return None if entry is None else _resolved(entry)

    def layers(self, name: str) -> tuple[Path, Layers] | None:
        """The store and the layers of a model; None where there is none of that name.

        Raises:
            ConfigError, FormatError: as for `find`.
        """
        entry = _entry(name)
        return None if entry is None else (entry.root, _layers(entry))

    def stored(self) -> Iterator[Stored]:
        """See `Source.stored`."""
        for root in roots():
            for entry in entries_of(root):
                yield _stored(entry)


def _entry(name: str) -> Entry | None:
    parsed = _parsed(name)
    for root in roots() if parsed is not None else ():
        entries = [e for e in entries_of(root) if parsed and is_name(e.name, parsed)]
        if len({e.name.host for e in entries}) > 1:
            listed = ", ".join(sorted(f"ollama://{e.name}" for e in entries))
            raise ConfigError(f"{name} is in {root} from several hosts; name one: {listed}")
        if entries:
            return entries[0]
    return None


def _parsed(name: str) -> OllamaName | None:
    hub = hub_name(name)
    if isinstance(hub, HubName):
        if hub.revision or hub.file:
            return None
        if hub.explicit:  # hf.co/ORG/REPO, which Ollama has pulled from there
            namespace, _, model = hub.repo.partition("/")
            return OllamaName(model, hub.tag or "latest", namespace, HUGGING_FACE)
    return ollama_name(name)


def is_name(own: OllamaName, sought: OllamaName) -> bool:
    """Whether a name of the store is the one sought; letters in capitals count as small ones."""
    namespace = sought.namespace or LIBRARY
    ours = own.model, own.tag, own.namespace
    theirs = sought.model, sought.tag, namespace
    same = [a.casefold() == b.casefold() for a, b in zip(ours, theirs, strict=True)]
    if sought.host:
        return all(same) and own.host.casefold() == sought.host.casefold()
    return all(same) and (own.host != HUGGING_FACE or bool(sought.namespace))


def entries_of(root: Path) -> Iterator[Entry]:
    """The manifests of a store."""
    for path in files_below(root / "manifests", depth=3):
        parts = path.split("/")
        if len(parts) != 4:
            continue
        host, namespace, model, tag = parts
        try:
            name = ollama_name(f"ollama://{host}/{namespace}/{model}:{tag}")
        except ConfigError:
            continue
        if name is not None:
            yield Entry(root, name)


def _layers(entry: Entry) -> Layers:
    contained(entry.path, [entry.root])
    return read_manifest(entry.path, entry.short)


def _resolved(entry: Entry) -> ResolvedModel:
    layers = _layers(entry)
    layers.refuse(entry.root)
    weights = layers.of("model", "projector", "adapter")
    blobs = {layer: blob_of(entry.root, layer) for layer in weights}
    models = [blobs[layer] for layer in layers.models]
    projectors = [blobs[layer] for layer in layers.projectors]
    return ResolvedModel(
        name=entry.short,
        store=entry.store,
        path=models[0],
        parts=tuple(models) if len(models) > 1 else (),
        mmproj=projectors[0] if projectors else None,
        adapters=tuple(blobs[layer] for layer in layers.of("adapter")),
        template=template_of(entry.root, layers),
        defaults=defaults_of(entry.root, layers),
        digests={path: layer.digest for layer, path in blobs.items()},
    )


def _stored(entry: Entry) -> Stored:
    try:
        layers = _layers(entry)
        nbytes = sum(layer.size for layer in layers.all)
        path = _resolved(entry).path
        return Stored(
            entry.short,
            entry.store,
            path,
            nbytes,
            own=entry.store == OWN_STORE,
            digest=hashlib.sha256(entry.path.read_bytes()).hexdigest(),
            modified=entry.path.stat().st_mtime,
        )
    except (Error, OSError) as error:
        return Stored(entry.short, entry.store, None, _promised(entry), str(error))


def _promised(entry: Entry) -> int:
    try:
        return sum(layer.size for layer in _layers(entry).all)
    except (Error, OSError):
        return 0
