"""State that all programs of a child share: backends with weights, and closed objects."""

from __future__ import annotations

import contextlib
from random import Random

from ggmodel.errors import Error
from ggmodel.gguf_file import MemorySource
from ggmodel.ml import Backend, BackendParams, Context, DType, FlashAttention, Tensor, new_backend
from tests.fuzz.ops import values
from tests.fuzz.ops.templates import Template, harvest
from tests.ml.harness import METADATA

Key = tuple[tuple[int, ...], DType]


class World:
    """Backends, the weights they have by shape and dtype, templates of all ops.

    Attributes:
        stale: contexts and tensors that were closed, or whose backend was.
    """

    def __init__(self):
        self.templates: dict[str, list[Template]] = harvest()
        self.keys = _weight_keys(self.templates)
        self.open()

    def open(self) -> None:
        """Makes the backends; the same ones each time."""
        rng = Random("world")
        self.backends = [
            self._backend(rng, FlashAttention.OFF, threads=1),
            self._backend(rng, FlashAttention.ON, threads=1),
            self._backend(rng, FlashAttention.ON, threads=2, products=True),
        ]
        with self._backend(rng, FlashAttention.OFF, threads=1) as closed:
            context = closed.new_context()
            left = closed.new_context()
            tensors = [c.input().zeros(DType.F32, 4, 3) for c in (context, left)]
            tensors += [c.layer(0).zeros(DType.F32, 4, 3) for c in (context, left)]
            tensors.append(tensors[0].neg())
            context.close()
        self.stale: tuple[list[Context], list[Tensor]] = [context, left], tensors

    def close(self) -> None:
        for backend in self.backends:
            backend.close()

    def weight(self, backend: Backend, key: Key) -> Tensor | None:
        found = self.keys.get(key)
        return None if found is None else backend.get(found)

    def _backend(
        self, rng: Random, flash: FlashAttention, threads: int, products: bool = False
    ) -> Backend:
        tensors = {}
        for (ne, dtype), name in self.keys.items():
            count = ne[0] * ne[1] * ne[2] * ne[3]
            nbytes = count // dtype.block_size * dtype.type_size
            tensors[name] = (dtype, ne, values.content(rng, dtype, count, nbytes))
        backend = new_backend(
            MemorySource(METADATA, tensors),
            BackendParams(num_threads=threads, flash_attention=flash),
        )
        if products:  # tracing them makes the backend rearrange these weights
            with backend.new_context() as ctx, ctx.trace():
                for (ne, _), name in self.keys.items():
                    weight = backend.get(name)
                    with contextlib.suppress(Error):
                        assert weight is not None
                        x = ctx.input().zeros(DType.F32, ne[0], 2)
                        ctx.forward(weight.mulmat(x))
                backend.allocate(ctx.graph)
        backend.load()
        return backend


def _weight_keys(templates: dict[str, list[Template]]) -> dict[Key, str]:
    """Weights of the shapes of valid operands, and a few of every dtype."""
    keys: dict[Key, str] = {}
    for operands in (t.operands for found in templates.values() for t in found):
        for x in operands:
            if x is not None and len(keys) < 400:
                keys.setdefault(x, f"blk.{len(keys) % 2}.w{len(keys)}")
    for dtype in DType:
        for ne in ((dtype.block_size, 8, 1, 1), (2 * max(dtype.block_size, 32), 16, 2, 1)):
            keys.setdefault((ne, dtype), f"blk.{len(keys) % 2}.w{len(keys)}")
    return keys
