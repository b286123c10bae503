"""One random program: a few tensors, a few ops, and their computation."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from random import Random
from typing import Any

import numpy as np

from ggmodel.errors import Error
from ggmodel.ml import OPS, Backend, Context, DType, RopeType, SamplingMode, Tensor
from ggmodel.ml.ggml.lowering import GGMLExecutable
from ggmodel.ml.graph import Graph, record
from ggmodel.ml.node import Node
from tests.fuzz.fuzzer import Note, Wrong
from tests.fuzz.ops import values
from tests.fuzz.ops.templates import Template
from tests.fuzz.ops.world import World

# Tensors between these sizes are neither quick to compute nor refused by lack of memory.
_QUICK, _IMPOSSIBLE = 1 << 16, 1 << 33


class Program:
    """Runs one program; the same number gives the same one.

    Args:
        backend: to run on, which other threads use, too; None takes one of the world's.
        counts: gets "calls", "computed programs", "computed OP" and "refused OP" added.
    """

    def __init__(
        self,
        world: World,
        number: int,
        note: Note,
        counts: Counter[str],
        backend: Backend | None = None,
    ):
        self.world, self.note, self.counts = world, note, counts
        self.number = number
        self.rng = Random(number)
        # Threads wait for each other, which is slow while others want the cores.
        chosen = self.rng.choices(world.backends, (4, 4, 1))[0]
        self.backend = backend or chosen
        self.computes, self.shared = False, backend is not None
        self.pool: list[Tensor] = []
        self.names: dict[int, str] = {}
        self.graph: Graph | None = None

    def run(self) -> None:
        rng = self.rng
        with ExitStack() as stack:
            self.ctx = stack.enter_context(self.backend.new_context())
            if rng.random() < 0.02:
                self.ctx = stack.enter_context(self.backend.new_context_size(rng.randrange(1, 9)))
            self.other = stack.enter_context(rng.choice(self.world.backends).new_context())
            if rng.random() < 0.9:
                stack.enter_context(self.ctx.trace())
            if rng.random() < 0.1:
                self.pool += self.world.stale[1]
            # Every op comes first in turn, initially on a closed context's tensor.
            ops = list(OPS)
            self.an_op(ops[self.number % len(ops)], stale=self.number // len(ops) % 8 == 0)
            for _ in range(rng.randint(0, 5)):
                kind = rng.random()
                if kind < 0.75:
                    self.an_op(rng.choice(ops))
                elif kind < 0.96:
                    self.a_method()
                else:
                    self.a_context_method()
            for _ in range(rng.choice([1, 1, 2])):
                self.compute()
        self.counts["computed programs"] += self.computes

    # calls

    def call(self, text: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Records a call, then makes it; None if it was refused."""
        self.counts["calls"] += 1
        inner = [self.show(a) for a in args] + [f"{k}={self.show(v)}" for k, v in kwargs.items()]
        self.note(f"{text}({', '.join(inner)})")
        try:
            result = function(*args, **kwargs)
        except Error as error:
            self.note(f"  # {type(error).__name__}: {str(error).splitlines()[0][:150]}")
            self.refused(text, error)
            return None
        self.keep(result)
        return result

    def refused(self, text: str, error: Error) -> None:
        op = text.partition(" ")[2] if text.startswith("record ") else str(error).partition(":")[0]
        if op in OPS:
            self.counts[f"refused {op}"] += 1

    def keep(self, result: Any) -> None:
        for x in result if isinstance(result, list) else [result]:
            if isinstance(x, Tensor):
                self.pool.append(x)
                self.note(f"  # -> {self.show(x)} {x.describe()}")

    def show(self, value: Any) -> str:
        if isinstance(value, Node):
            return self.names.setdefault(value.uid, f"t{len(self.names)}")
        if isinstance(value, bytes):
            return f"<{len(value)} bytes>"
        return repr(value)

    # tensors

    def leaf(self, ne: tuple[int, ...], dtype: DType) -> Tensor | None:
        """A tensor that no op computes."""
        rng = self.rng
        weight = self.world.weight(self.backend, (ne, dtype)) if rng.random() < 0.3 else None
        if weight is not None:
            self.note(f"{self.show(weight)} = {weight.describe()}")
            return weight
        kind = rng.random()
        ctx = self.other if kind < 0.01 else self.ctx
        count = ne[0] * ne[1] * ne[2] * ne[3]
        if not 0 <= count < _QUICK or ne[0] % dtype.block_size or kind < 0.05:
            if _QUICK <= count < _IMPOSSIBLE:
                return None
            place = self.call("ctx.input", ctx.input)
            return self.then(place, "zeros", dtype, *ne)
        data = values.content(rng, dtype, count, count // dtype.block_size * dtype.type_size)
        if kind < 0.15 and dtype.numpy is not None:
            array = np.frombuffer(data, dtype.numpy).reshape(ne[::-1])
            return self.call("ctx.feed", ctx.feed, _Fill(array), dtype, *ne)
        if kind < 0.35:
            place = self.call("ctx.layer", ctx.layer, rng.randrange(3))
        else:
            place = self.call("ctx.input", ctx.input)
        return self.then(place, "from_bytes", dtype, data, *ne)

    def operand(self, ne: tuple[int, ...], dtype: DType) -> Tensor | None:
        """A tensor of this shape in a random layout."""
        rng = self.rng
        kind, d = rng.random(), rng.randrange(4)
        if kind < 0.5 or min(ne) < 1:
            return self.leaf(ne, dtype)
        if kind < 0.6:
            order = list(range(4))
            first = 1 if dtype.is_quantized and rng.random() < 0.9 else 0
            order[first:] = rng.sample(order[first:], 4 - first)
            x = self.leaf(tuple(ne[order[i]] for i in range(4)), dtype)
            return self.then(x, "permute", *order)
        if kind < 0.75:
            unit = dtype.block_size if d == 0 else 1
            lo, step = rng.randrange(3) * unit, rng.choice([1, 1, 2])
            bigger = list(ne)
            bigger[d] = lo + ne[d] * step + rng.randrange(2) * unit
            x = self.leaf(tuple(bigger), dtype)
            return self.then(x, "slice", d, lo, lo + ne[d] * step, step)
        if kind < 0.83:
            x = self.leaf(tuple(1 if i == d and i else n for i, n in enumerate(ne)), dtype)
            if x is None:
                return None
            nb = tuple(0 if i == d and i else b for i, b in enumerate(x.nb))
            return self.call("record view", record, x, "view", offset=0, ne=ne, nb=nb)
        if kind < 0.88 and rng.random() < 0.5:
            x = self.leaf((ne[0] * 2, *ne[1:]), dtype)
            if x is None:
                return None
            nb = (x.nb[0] * 2, *x.nb[1:])
            return self.call("record view", record, x, "view", offset=0, ne=ne, nb=nb)
        x = self.leaf(ne, dtype)
        if x is None:
            return None
        dtypes = (dtype, values.dtype(rng))
        name, *args = rng.choice(
            [
                ("duplicate",),
                ("contiguous",),
                ("scale", 1.0),
                ("reshape", *ne),
                ("cast", dtypes[0]),
                ("cast", dtypes[1]),
                ("argsort",),
            ]
        )
        return self.call(str(name), getattr(x, str(name)), *args)

    def then(self, x: Tensor | None, method: str, *args: Any) -> Tensor | None:
        """Calls a method of a tensor, if there is one."""
        return None if x is None else self.call(method, getattr(x, method), *args)

    def indices(self, ne: tuple[int, ...], rows: int) -> Tensor | None:
        """Integers that an op made, most of them below `rows`."""
        rng = self.rng
        floats = self.leaf(ne, DType.F32)
        if floats is None:
            return None
        kind = rng.randrange(5)
        top = rows - 1 if rng.random() < 0.8 else values.integer(rng)
        if kind == 0:
            return self.call("cast", floats.cast, DType.I32)
        if kind == 1:
            limited = self.call("clamp", floats.clamp, 0.0, float(top))
            return self.then(limited, "cast", DType.I32)
        if kind == 2:
            return self.call("argsort", floats.argsort)
        if kind == 3:
            counted = self.call("ctx.arange", self.ctx.arange, 0, min(ne[0], 1 << 20))
            return self.then(self.then(counted, "cast", DType.I32), "repeat_4d", *ne)
        ids, other = self.leaf(ne, DType.I32), self.leaf(ne, DType.I32)
        written = None if ids is None else self.then(other, "copy", ids)
        if written is not None and rng.random() < 0.5:
            self.call("ctx.forward", self.ctx.forward, written)
        return ids

    def any_tensor(self) -> Tensor | None:
        if self.pool and self.rng.random() < 0.85:
            return self.rng.choice(self.pool)
        dtype = values.dtype(self.rng)
        ne = (*values.shape(self.rng, dtype.block_size), 1, 1, 1)[:4]
        return self.operand(ne, dtype)

    # steps

    def an_op(self, op: str, stale: bool = False) -> None:
        """An op of the table: a valid call of it with random changes."""
        rng = self.rng
        template = self.varied(rng.choice(self.world.templates[op]))
        wrong = rng.random() < 0.35
        few = 1 / max(1, len(template.operands))  # or ops of many operands are never right
        operands: list[Any] = []
        for i, x in enumerate(template.operands):
            if x is None:
                operands.append(None)
                continue
            ne, dtype = x
            if wrong and rng.random() < few:
                ne, dtype = self.damaged(ne, dtype)
            drawn = rng.random()
            if stale:
                operands.append(self.world.stale[1][0])
            elif wrong and drawn > 0.99:
                operands.append(rng.choice(self.world.stale[1]))
            elif drawn < few / 4 and self.pool:
                similar = [t for t in self.pool if t.ne == ne] or self.pool
                operands.append(rng.choice(similar))
            elif wrong and drawn > 0.96:
                operands.append(None)
            elif (selects := OPS[op].operands[i].selects) and drawn < 0.5:
                table = operands[selects[0]]
                operands.append(self.indices(ne, 1 if table is None else table.ne[selects[1]]))
            else:
                operands.append(self.operand(ne, dtype))
        attrs = dict(template.attrs)
        if wrong and attrs and rng.random() < 0.5:
            key = rng.choice(list(attrs))
            attrs[key] = values.attribute(rng, attrs[key])
        if not operands:
            if op == "arange":
                place = self.world.stale[0][0] if stale else self.ctx
                self.call("record arange", place.arange, **attrs)
            return
        if operands[0] is not None:
            self.call(f"record {op}", record, operands[0], op, *operands[1:], **attrs)

    def varied(self, t: Template) -> Template:
        """The same dims replaced everywhere, other dtypes: usually still valid."""
        rng = self.rng
        operands, attrs = list(t.operands), t.attrs
        for i, x in enumerate(operands):
            if x is not None and rng.random() < 0.4 / len(operands):
                allowed = sorted(OPS[t.op].operands[i].dtypes)
                operands[i] = x[0], rng.choice(allowed)
        dims = sorted({n for x in operands if x is not None for n in x[0] if n > 1})
        renamed: dict[int, int] = {}
        if dims and rng.random() < 0.5:
            old = rng.choice(dims)
            renamed[old] = rng.choice([old * 2, old * 3, old + 1, rng.randrange(1, 9)])
        for x in operands:
            if x is not None:
                old, block = x[0][0], x[1].block_size
                if renamed.get(old, old) % block:
                    renamed[old] = block * rng.choice([1, 1, 2])
        if renamed:
            operands = [x and (tuple(renamed.get(n, n) for n in x[0]), x[1]) for x in operands]
            attrs = {k: _rename(v, renamed) for k, v in attrs.items()}
        return Template(t.op, tuple(operands), attrs)

    def damaged(self, ne: tuple[int, ...], dtype: DType) -> tuple[tuple[int, ...], DType]:
        rng = self.rng
        if rng.random() < 0.5:
            return ne, values.dtype(rng)
        dims = list(ne)
        dims[rng.randrange(4)] = values.integer(rng)
        return tuple(dims), dtype

    def a_method(self) -> None:
        """A public method of a tensor, with arguments by its annotations."""
        x = self.any_tensor()
        if x is not None:
            name = self.rng.choice(METHODS)
            args, kwargs = self.arguments(getattr(Tensor, name), x)
            self.call(f"{self.show(x)}.{name}", getattr(x, name), *args, **kwargs)

    def a_context_method(self) -> None:
        rng = self.rng
        stale = self.world.stale[0]
        ctx = rng.choice([self.ctx, self.ctx, self.ctx, self.other, rng.choice(stale)])
        if rng.random() < 0.4:
            view = self.call("ctx.input", ctx.input)
            ctx = ctx if view is None else view
        name = rng.choice(CONTEXT_METHODS)
        if name == "close" and rng.random() < 0.8:
            return
        args, kwargs = self.arguments(getattr(Context, name), None)
        tensors = [x for x in args if isinstance(x, Tensor)]
        runs = "compute" in name or name in ("forward", "reserve")
        if runs and not self.affordable(tensors, ctx.graph):
            return
        self.call(f"ctx.{name}", getattr(ctx, name), *args, **kwargs)

    def arguments(
        self, method: Callable[..., Any], receiver: Tensor | None
    ) -> tuple[list[Any], dict[str, Any]]:
        """Arguments by annotation."""
        rng = self.rng
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for p in list(inspect.signature(method).parameters.values())[1:]:
            make = ARGUMENTS[str(p.annotation)]
            if p.kind is p.VAR_POSITIONAL:
                few = range(rng.choice([0, 1, 2, 3, 4, 4, 5]))
                args += [a for a in (make(self, receiver) for _ in few) if a is not None]
            elif p.default is not p.empty and rng.random() < 0.5:
                continue
            elif p.kind is p.KEYWORD_ONLY or p.default is not p.empty:
                kwargs[p.name] = make(self, receiver)
            else:
                args.append(make(self, receiver))
        return args, kwargs

    def compute(self) -> None:
        """Computes some of the results, and reads them."""
        rng = self.rng
        made = [x for x in self.pool if x.op is not None] or self.pool
        if not made:
            return
        outputs = rng.sample(made, min(len(made), rng.choice([1, 1, 1, 2, 3])))
        if rng.random() < 0.5 and made[-1] not in outputs:
            outputs.append(made[-1])
        if not self.affordable(outputs, self.ctx.graph):
            return
        if rng.random() < 0.4 or self.shared:
            self.call("ctx.compute", self.computed, tuple(outputs))
        else:
            self.call("compile", self.compiled, tuple(outputs))

    def computed(self, outputs: tuple[Tensor, ...]) -> None:
        self.ctx.forward(*outputs)
        before = list(self.ctx.graph.schedule)
        self.ctx.compute(*outputs)
        for x in outputs:
            _check_value(x, x.raw())
        self.count(before)

    def compiled(self, outputs: tuple[Tensor, ...]) -> None:
        """As `computed`, by hand: compile, run twice, read all of ggml's results."""
        rng, graph = self.rng, self.ctx.graph
        self.ctx.forward(*outputs)
        executable = self.backend.compile(graph, outputs)
        assert isinstance(executable, GGMLExecutable)
        try:
            if rng.random() < 0.03:
                self.note("ctx.close()")
                self.ctx.close()
            executable.run()
            for node in graph.schedule:
                _check_made(executable.tensor(node), node)
            for x in outputs:
                if x.dtype.numpy is not None or x.is_contiguous:
                    _check_value(x, executable.value(x))
            if rng.random() < 0.5:
                executable.run()
            self.count(graph.schedule)
        finally:
            executable.close()

    def count(self, schedule: list[Node]) -> None:
        self.counts.update({f"computed {node.op.name}" for node in schedule if node.op is not None})
        self.computes = True

    def affordable(self, outputs: list[Tensor], graph: Graph) -> bool:
        """Whether computing is quick or impossible, rather than slow."""
        seen: set[int] = set()
        stack: list[Node | None] = [*outputs, *graph.schedule]
        while stack:
            x = stack.pop()
            if x is None or x.uid in seen:
                continue
            seen.add(x.uid)
            if _QUICK < x.n_elements < _IMPOSSIBLE:
                return False
            stack.extend(x.sources)
        return True


class _Fill:
    """A feed's function with a short repr."""

    def __init__(self, array: np.ndarray):
        self.array = array

    def __call__(self, _step: object) -> np.ndarray:
        return self.array

    def __repr__(self) -> str:
        few = self.array.reshape(-1)[:8].tolist()
        return f"<fill {few}…>"


def _rename(value: Any, renamed: dict[int, int]) -> Any:
    if type(value) is int:
        return renamed.get(value, value)
    if isinstance(value, tuple):
        return tuple(_rename(v, renamed) for v in value)
    return value


def _check_value(x: Tensor, value: np.ndarray) -> None:
    want = (x.nbytes,) if x.dtype.numpy is None else x.ne[::-1]
    if x.dtype.numpy is None:
        value = value.reshape(-1)
    elif x.storage is not None:
        value = value.reshape(want) if value.size == x.n_elements else value
    if value.shape != want or value.dtype != (x.dtype.numpy or np.uint8):
        got = f"{value.dtype}{value.shape}"
        raise Wrong("a value of another shape or dtype", f"{x.describe()} has {got}, not {want}")


def _check_made(made: Any, node: Node) -> None:
    got = tuple(made.ne), made.type, tuple(made.nb)
    if got[:2] != (node.ne, int(node.dtype)) or (node.n_elements and got[2] != node.nb):
        wanted = f"{node.describe()} {node.ne} {node.nb}"
        raise Wrong("ggml made another tensor", f"{got} of {wanted}")


def _tensor(p: Program, receiver: Tensor | None) -> Tensor | None:
    if receiver is not None and p.rng.random() < 0.6:
        found = p.operand(receiver.ne, receiver.dtype)
    else:
        found = p.any_tensor()
    return receiver if found is None else found


def _count(p: Program, receiver: Tensor | None) -> int:
    if receiver is not None and p.rng.random() < 0.3:
        return p.rng.choice([*receiver.ne, *receiver.nb])
    return values.integer(p.rng)


def _four(p: Program, receiver: Tensor | None) -> tuple[int, ...]:
    return tuple(_count(p, receiver) for _ in range(4))


def _data(p: Program, receiver: Tensor | None) -> bytes:
    size = receiver.nbytes if receiver is not None and receiver.nbytes < _QUICK else 16
    return p.rng.randbytes(size if p.rng.random() < 0.7 else p.rng.randrange(64))


def _list(p: Program, receiver: Tensor | None) -> list[float]:
    n = receiver.n_elements if receiver is not None and receiver.n_elements < _QUICK else 6
    return [float(i) for i in range(n if p.rng.random() < 0.7 else 3)]


def _maybe_tensor(p: Program, receiver: Tensor | None) -> Tensor | None:
    return _tensor(p, receiver) if p.rng.random() < 0.7 else None


# Arguments by annotation; a method with a new annotation needs a line here.
ARGUMENTS: dict[str, Callable[[Program, Tensor | None], Any]] = {
    "Node": _tensor,
    "Self": _tensor,
    "Tensor": _tensor,
    "Node | None": _maybe_tensor,
    "Self | None": _maybe_tensor,
    "Node | float": _tensor,
    "int": _count,
    "float": lambda p, _: values.real(p.rng),
    "bool": lambda p, _: p.rng.random() < 0.5,
    "DType": lambda p, _: values.dtype(p.rng),
    "RopeType": lambda p, _: p.rng.choice(list(RopeType)),
    "SamplingMode": lambda p, _: p.rng.choice(list(SamplingMode)),
    "Shape": _four,
    "tuple[int, ...]": _four,
    "bytes | memoryview": _data,
    "object": _list,
    "Any": _list,
    "str": lambda p, _: "name",
    "Callable[[], None]": lambda p, _: lambda: None,
    "Callable[[Any], Any]": lambda p, _: _Fill(np.zeros(1, np.float32)),
}


def public(cls: type, *without: str) -> list[str]:
    """Names of public methods and of the operators."""
    found = []
    for name, member in inspect.getmembers(cls, inspect.isfunction):
        operator = name in ("__add__", "__sub__", "__mul__", "__rmul__", "__truediv__", "__neg__")
        if name in without or (name.startswith("_") and not operator):
            continue
        for p in list(inspect.signature(member).parameters.values())[1:]:
            if str(p.annotation) not in ARGUMENTS:
                raise LookupError(
                    f"{cls.__name__}.{name}({p.name}: {p.annotation}): the fuzzer has nothing to "
                    "pass for this annotation; add it to ARGUMENTS in tests/fuzz/ops/program.py"
                )
        found.append(name)
    return found


METHODS = public(Tensor, "adopt_name")
CONTEXT_METHODS = public(Context, "trace")
