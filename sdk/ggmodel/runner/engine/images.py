"""Images and other items of prompts: each is encoded once, in a graph of its own, for any number of
batches."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np

from ...errors import PromptError, TensorError, Unsupported
from ...ml import Backend, Context, DType, Tensor
from ...model import Input, Modality, Model, Multimodal, MultimodalEmbedding, Prepared
from ...model.multimodal import IMAGE_BATCH
from ...model.source_code import author_code, file_of, line_of
from .encoders import Encoders, Layout, Recorded, content_key, shape_key
from .probes import ItemTap, Probe

_KEPT = 256 << 20  # bytes of encoded items that are kept without a prompt that has them

_LARGEST = b"largest"  # whose graph is always recorded

_MOST_SHAPES = 256  # of parts, whose modules are known

# Calls something in the engine's thread.
InThread = Callable[[Callable[[], None]], None]


def _here(work: Callable[[], None]) -> None:
    work()


class Encoded:
    """One item. Its graph is recorded when the item is first seen, unless that of its shape is
    known, and computed when a row of its embeddings is first needed. An item whose parts are
    encoded apart has the graphs of parts of different shapes or data, each run for all alike.

    Args:
        probe: the request's captures and patches; the item's graphs are run once.

    Attributes:
        called: ids of the modules that its graphs call; None until a probe asks for them.
        prepared: the item, until it has been computed.
        embeddings: one for each `Multimodal` that the encoder made.
        ctx: the first graph that was recorded for this item, until it has been computed; None if
            those of others serve.
    """

    def __init__(
        self,
        store: MultimodalStore,
        kind: str,
        prepared: Prepared,
        digest: bytes,
        probe: Probe | None = None,
    ):
        self._store, self._kind, self._probe = store, kind, probe
        self.called: frozenset[int] | None = None
        self.prepared: Prepared | None = prepared
        pieces = store.modality(kind).pieces(prepared)
        self._pieces = [(shape_key(kind, piece), piece) for piece in pieces]
        self._in_thread = store.in_thread
        self._recorded: dict[bytes, Recorded] = {}
        known: dict[bytes, Sequence[Layout]] = {}
        for key, piece in self._pieces:
            if key not in known:
                anew = digest == _LARGEST or probe is not None
                known[key] = self._layouts(key, piece, anew)
        self._arrays: list[list[np.ndarray]] = []
        layouts = [layout for key, _ in self._pieces for layout in known[key]]
        self.embeddings = [self._embedding(i, x, digest) for i, x in enumerate(layouts)]

    @property
    def ctx(self) -> Context | None:
        recorded = self._recorded  # the engine's thread may close the item meanwhile
        return next((one.ctx for one in recorded.values()), None)

    def _layouts(self, key: bytes, piece: Prepared, anew: bool) -> Sequence[Layout]:
        """The results for a part, whose graph is recorded where none of its shape is known."""
        layouts = None if anew else self._store.encoders.layout(key)
        if layouts is not None:
            return layouts
        self._recorded[key] = self._record(piece)
        return self._store.encoders.add_layouts(key, self._recorded[key])

    def _record(self, prepared: Prepared) -> Recorded:
        ctx = self._store.backend.new_context().set_batch_size(IMAGE_BATCH)
        tap = ctx.graph.tap = None if self._probe is None else ItemTap(ctx, self._probe)
        with ctx.trace():
            recorded = Recorded(ctx, record(self._store.model, self._kind, ctx, prepared), tap)
        ctx.forward(*(t for tensors in recorded.tensors for t in tensors))
        return recorded

    def _embedding(self, i: int, made: Layout, digest: bytes) -> MultimodalEmbedding:
        if made.shape is None:
            return MultimodalEmbedding(None, made.data, kind=self._kind)
        return MultimodalEmbedding(
            lambda: self._row(i),
            made.data,
            made.used,
            kind=self._kind,
            shape=made.shape,
            key=hashlib.blake2b(digest + b"%d" % i, digest_size=16).digest(),
            parts=lambda: self._computed(i)[1:],
            widths=made.widths,
        )

    def _row(self, i: int) -> np.ndarray:
        return self._computed(i)[0]

    def _computed(self, i: int) -> list[np.ndarray]:
        """Rows and parts of embedding i."""
        if not self._arrays:
            self._in_thread(self._compute)
        return self._arrays[i]

    def _compute(self) -> None:
        if self.prepared is not None:
            with self._store.backend.turn.lock:
                self._arrays = [rows for one in self._pieces for rows in self._run(*one)]
            self.close()
            self._in_thread = _here  # computed rows need no engine

    def _run(self, key: bytes, piece: Prepared) -> list[list[np.ndarray]]:
        def recorded() -> Recorded:
            return self._recorded.pop(key, None) or self._record(piece)

        return self._store.encoders.run(key if self._probe is None else b"", piece, recorded)

    @property
    def calls(self) -> dict[str, int]:
        """How often the probe's modules are called."""
        calls: dict[str, int] = {}
        for one in self._recorded.values():
            calls |= {} if one.tap is None else one.tap.calls
        return calls

    def close(self) -> None:
        """Frees the item and its graph; idempotent."""
        recorded, self.prepared, self._recorded = self._recorded, None, {}
        self._pieces = []
        for one in recorded.values():
            one.ctx.close()

    @property
    def size(self) -> int:
        """Bytes of its rows once they are computed."""
        return sum(4 * len(one) * (one.width + sum(one.widths)) for one in self.embeddings)

    @property
    def held(self) -> int:
        """Bytes that it takes at most: its rows, and until they are computed the prepared item,
        which a recorded graph holds once more."""
        prepared = self.prepared  # the engine's thread may close the item meanwhile
        if prepared is None:
            return self.size
        return self.size + (1 + bool(self._recorded)) * prepared.values.nbytes

    @property
    def nbytes(self) -> int:
        """Bytes of system memory that its rows take now."""
        return sum(array.nbytes for arrays in self._arrays for array in arrays)


def record(model: Model, kind: str, ctx: Context, prepared: Prepared) -> list[Multimodal]:
    """Records the graph that encodes an item, in a context that is traced.

    Raises:
        TensorError: the encoder returned something else than it is to.
    """
    encode = model.modalities()[kind].encode
    with _code_of(model, encode) as name:
        return _need_parts(model, name, encode(ctx, prepared))


@contextmanager
def _code_of(model: Model, method: Callable[..., Any]) -> Iterator[str]:
    """Runs a method of a model's author; gives its name."""
    cls = type(model)
    name = f"{cls.__name__}.{getattr(method, '__name__', type(method).__name__)}"
    with author_code(name, file_of(cls)):
        yield name


def _need_parts(model: Model, name: str, made: Any) -> list[Multimodal]:
    """Raises `TensorError` unless this is what an encoder is to return."""
    if not isinstance(made, list):
        shown = type(made).__name__
    elif not made:
        shown = "an empty list"
    elif wrong := [m for m in made if not _is_part(m)]:
        tensor = wrong[0].tensor if isinstance(wrong[0], Multimodal) else None
        shown = tensor.describe() if isinstance(tensor, Tensor) else f"{wrong[0]!r:.200}"
    else:
        return made
    raise TensorError(
        f"{line_of(type(model))}: {name} must return a list of Multimodal(tensor, …), each "
        "computed, F32 [width, rows], with parts of as many rows, or Multimodal(data=…); "
        f"not {shown}"
    )


def _is_part(part: object) -> bool:
    if not isinstance(part, Multimodal):
        return False
    if part.tensor is None:
        return not part.parts
    tensors = (part.tensor, *part.parts)
    if not all(
        isinstance(t, Tensor) and t.dtype is DType.F32 and t.op is not None for t in tensors
    ):
        return False
    return len({t.n_elements // t.dim(0) for t in tensors}) == 1


class MultimodalStore:
    """The images and other items of a model's prompts, by content.

    Args:
        in_thread: calls a function in the engine's thread, and waits for it.

    Attributes:
        encoders: the graphs of the model's encoders.
    """

    def __init__(self, model: Model, backend: Backend, in_thread: InThread):
        self.model, self.backend, self.in_thread = model, backend, in_thread
        self.encoders = Encoders(backend)
        self._lock = threading.Lock()
        self._items: WeakValueDictionary[bytes, Encoded] = WeakValueDictionary()
        self._making: WeakValueDictionary[bytes, threading.Lock] = WeakValueDictionary()
        self._kept: OrderedDict[bytes, Encoded] = OrderedDict()
        self._modules: OrderedDict[bytes, frozenset[int]] = OrderedDict()
        self._probed = WeakKeyDictionary[MultimodalEmbedding, tuple[Probe, dict[str, int]]]()

    def modality(self, kind: str) -> Modality:
        """How the model takes items of a kind.

        Raises:
            Unsupported: it takes none.
        """
        modalities = self.model.modalities()
        if kind not in modalities:
            raise _unsupported(self.model, kind, modalities)
        return modalities[kind]

    def encode_media(
        self,
        kind: str,
        item: Any,
        data: Mapping[str, Any] | None = None,
        probe: Probe | None = None,
    ) -> list[MultimodalEmbedding]:
        """The embeddings of an item, not computed yet; the same ones for the same content.

        Args:
            kind: such as "image"; see `Model.modalities`.
            item: an argument of the modality's `open`, or prepared already: `Prepared`, or an array
                of floats.
            data: the data that belongs to such an array.
            probe: the request's captures and patches; where it looks at modules of the encoder,
                the embeddings are this request's alone.

        Raises:
            Unsupported: this model takes no such items.
            PromptError: a prepared array of another shape than the encoder takes, or without
                numbers; data that the model does not declare, or beside another item.
            Error: the item cannot be opened; see the modality's `open`.
        """
        modality = self.modality(kind)
        prepared = _ready(modality, kind, item, data or {})
        opened = modality.open(item) if prepared is None else prepared
        digest, called = content_key(kind, opened), None
        if probe is not None:
            with self._lock:
                encoded = self._items.get(digest)
            called = None if encoded is None else encoded.called
            if called is None:
                prepared = prepared or self._prepared(modality, opened)
                called = self._called(kind, prepared)
            if not probe.modules.keys().isdisjoint(called):
                prepared = prepared or self._prepared(modality, opened)
                return self._alone(kind, prepared, digest, probe)
        with self._lock:
            making = self._making.setdefault(digest, threading.Lock())
        with making:  # who gives the same item waits for it, others do not
            with self._lock:
                encoded = self._items.get(digest)
            if encoded is None:
                prepared = prepared or self._prepared(modality, opened)
                encoded = Encoded(self, kind, prepared, digest)
            encoded.called = called or encoded.called
            with self._lock:
                self._items[digest] = encoded
                self._keep(digest, encoded)
        return encoded.embeddings

    def _called(self, kind: str, prepared: Prepared) -> frozenset[int]:
        """Ids of the modules that the encoder calls for the parts of an item."""
        pieces = {shape_key(kind, one): one for one in self.modality(kind).pieces(prepared)}
        return frozenset[int]().union(*(self._of_piece(kind, *one) for one in pieces.items()))

    def _of_piece(self, kind: str, key: bytes, piece: Prepared) -> frozenset[int]:
        """Ids of the modules that the encoder calls for a part of that shape."""
        called = self._modules.get(key)
        if called is None:
            with self.backend.new_context().set_batch_size(IMAGE_BATCH) as ctx:
                ctx.graph.calls = []
                with ctx.trace():
                    record(self.model, kind, ctx, piece)
                owners = (getattr(call, "__self__", None) for call, *_ in ctx.graph.calls)
                called = frozenset(map(id, owners))
            with self._lock:
                self._modules[key] = called
                while len(self._modules) > _MOST_SHAPES:
                    self._modules.popitem(last=False)
        return called

    def _alone(
        self, kind: str, prepared: Prepared, digest: bytes, probe: Probe
    ) -> list[MultimodalEmbedding]:
        """The embeddings of an item for one request, whose rows have no content's key where they
        may be patched."""
        key = digest if probe.variant is None else os.urandom(32)
        encoded = Encoded(self, kind, prepared, key, probe)
        for one in encoded.embeddings:
            one.alone, self._probed[one] = True, (probe, encoded.calls)
        return encoded.embeddings

    def calls(self, embeddings: Sequence[MultimodalEmbedding], probe: Probe) -> dict[str, int]:
        """How often modules that a probe looks at are called for these, as far as they are encoded
        for it, or were by another request of the same blocks; see `Probe.elsewhere`."""
        probed = [self._probed[one] for one in embeddings if one in self._probed]
        return {
            name: n
            for own, calls in probed
            for name, n in calls.items()
            if probe.has_been(own, name)
        }

    def _keep(self, digest: bytes, encoded: Encoded) -> None:
        """Keeps an item without a prompt that has it, as long as there is room."""
        self._kept[digest] = encoded
        self._kept.move_to_end(digest)
        while len(self._kept) > 1 and sum(e.held for e in self._kept.values()) > _KEPT:
            self._kept.popitem(last=False)

    def prepare(self, kind: str, item: Any) -> Prepared:
        """An item as its encoder takes it; see `encode`."""
        modality = self.modality(kind)
        prepared = _ready(modality, kind, item, {})
        return prepared or self._prepared(modality, modality.open(item))

    def _prepared(self, modality: Modality, opened: Any) -> Prepared:
        with _code_of(self.model, modality.prepare) as name:
            prepared = modality.prepare(opened)
        if isinstance(prepared, Prepared) and isinstance(prepared.values, np.ndarray):
            return prepared
        raise TensorError(
            f"{line_of(type(self.model))}: {name} must return Prepared(values, data), values an "
            f"array; not {prepared!r:.200}"
        )

    def expand(self, items: Sequence[Input | list[MultimodalEmbedding]]) -> list[Input | str]:
        """The inputs of a prompt, with the inputs that items become, and texts among these.

        Args:
            items: inputs, and each image or other item as its embeddings.

        Raises:
            TensorError: `post_tokenize` returned something else.
        """
        cls = type(self.model)
        with author_code(f"{cls.__name__}.post_tokenize", file_of(cls)):
            inputs = self.model.post_tokenize(list(items))
        if not isinstance(inputs, list) or not all(isinstance(i, (Input, str)) for i in inputs):
            raise TensorError(
                f"{line_of(cls)}: {cls.__name__}.post_tokenize must return a list of Input, and of "
                "texts"
            )
        return inputs

    def largest(self, kind: str) -> Encoded:
        """An item of a kind that needs the most memory, not computed; for reserving.

        Raises:
            ConfigError: it would exceed the limits of such items.
        """
        modality = self.modality(kind)
        with _code_of(self.model, modality.largest):
            opened = modality.largest()
        prepared = opened if isinstance(opened, Prepared) else self._prepared(modality, opened)
        return Encoded(self, kind, prepared, _LARGEST)

    @property
    def nbytes(self) -> int:
        """Bytes of system memory that encoded items take."""
        with self._lock:
            return sum(encoded.nbytes for encoded in self._items.values())


def _ready(modality: Modality, kind: str, item: Any, data: Mapping[str, Any]) -> Prepared | None:
    """An item that is prepared already; None of one that is to be opened."""
    floats = isinstance(item, np.ndarray) and item.dtype.kind == "f"
    if floats and (kind != "audio" or item.ndim > 1):  # samples have a rate and are opened
        item = Prepared(np.ascontiguousarray(item, np.float32), data)
    elif data:
        raise PromptError(
            f"{' and '.join(data)} beside {kind} that is opened; give data beside a prepared array "
            "alone"
        )
    if not isinstance(item, Prepared):
        return None
    modality.check(kind, item.values)
    return Prepared(item.values, modality.read_data(kind, item.data))


_PLURALS = {"image": "images", "audio": "audio", "video": "videos"}


def _unsupported(model: Model, kind: str, modalities: Mapping[str, Modality]) -> Unsupported:
    message = f"this {type(model).architecture} model takes no {_PLURALS.get(kind, repr(kind))}"
    named = [_PLURALS.get(kind, kind) for kind in modalities if kind != model.prompt_item]
    if model.prompt_item and not named:
        return Unsupported(f"{message}; it reads text alone")
    if modalities:
        others = " and ".join(named)
        return Unsupported(f"{message}; besides text it takes {others}")
    return Unsupported(
        f"{message}: the file holds no {'audio' if kind == 'audio' else 'vision'} tensors; where "
        "they lie in a file of their own, give it with mmproj= (--mmproj)"
    )
