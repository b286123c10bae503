"""Everything that a transformers model computes for a text, in float64: inputs and results of
modules, and scores of attention.

Needs torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import Unsupported
from ..reference import need

Array = NDArray[Any]


@dataclass
class Call:
    """A call of a module that holds parameters itself, or of a norm without any.

    Attributes:
        path: of the module; "path#2" for its second call.
        kind: the name of its class.
        x: its first input, [n, …] with the tokens first; ids are int.
        y: its result, likewise, and `more`, further inputs.
        weights: its own parameters, by their names.
        at: when it returned.
    """

    path: str
    kind: str
    x: Array
    y: Array
    weights: dict[str, Array]
    at: int
    more: Sequence[Array] = ()


@dataclass
class Scores:
    """A softmax over the tokens.

    Attributes:
        path: of the module in which it is computed.
        scores: its input, [heads, n, n].
        queries, keys: the factors of the product before, [heads, n, d], keys of each head.
        values, out: of the product behind, [heads, n, dv].
        at: when it was computed.
        sunk: each head has one more score, which is subtracted from the others here.
    """

    path: str
    scores: Array
    queries: Array
    keys: Array
    values: Array
    out: Array
    at: int
    sunk: bool = False


@dataclass
class Recording:
    """The computation of a text of n tokens.

    Attributes:
        modules: path → inputs and results of its first call, [n, …] or None.
        small: parameters and buffers of one dim, by their names.
    """

    ids: Array
    logits: Array
    modules: dict[str, tuple[Array | None, Array | None]] = field(default_factory=dict)
    leaves: list[Call] = field(default_factory=list)
    scores: list[Scores] = field(default_factory=list)
    small: dict[str, Array] = field(default_factory=dict)

    def within(self, prefix: str) -> list[Call]:
        """Calls of leaves in a module."""
        return [call for call in self.leaves if call.path.startswith(f"{prefix}.")]


class _Watch:
    """Fills a recording while torch computes."""

    def __init__(self, torch: Any, record: Recording):
        self.torch, self.record, self.n = torch, record, len(record.ids)
        self.stack: list[str] = [""]
        self.products: list[tuple[Any, Any, Any]] = []
        self.pending: list[tuple[str, bool, Any, Any, Any, int]] = []
        self.clock = 0

    def rows(self, x: Any) -> Array | None:
        """A tensor with the tokens first; None if it has no such dim."""
        if not isinstance(x, self.torch.Tensor):
            return None
        values = x.detach().numpy().copy()
        while values.ndim > 1 and values.shape[0] == 1:
            values = values[0]
        axis = next((i for i, size in enumerate(values.shape) if size == self.n), None)
        return None if axis is None else np.moveaxis(values, axis, 0)

    def attach(self, path: str, module: Any) -> None:
        """Notes the calls of a module."""
        kind = type(module).__name__
        own = {k: p.detach().numpy() for k, p in module.named_parameters(recurse=False)}
        held = [p for child in module.children() for p in child.parameters()]
        leaf = not held and (own or (not [*module.children()] and "norm" in kind.lower()))

        def before(*_: Any) -> None:
            self.stack.append(path)

        def after(_: Any, args: tuple[Any, ...], options: dict[str, Any], result: Any) -> None:
            self.stack.pop()
            self.clock += 1
            given = [r for x in (*args, *options.values()) if (r := self.rows(x)) is not None]
            made = result[0] if isinstance(result, tuple | list) else result
            x, y = next(iter(given), None), self.rows(made)
            again = sum(c.path.partition("#")[0] == path for c in self.record.leaves)
            self.record.modules.setdefault(path, (x, y))
            if leaf and y is not None and x is not None:
                name = f"{path}#{again + 1}" if again else path
                weights = {k: w.copy() for k, w in own.items()}
                self.record.leaves.append(Call(name, kind, x, y, weights, self.clock, given[1:]))

        module.register_forward_pre_hook(before)
        module.register_forward_hook(after, with_kwargs=True)

    def product(self, a: Any, b: Any, result: Any) -> None:
        """Notes a product of matrices: of queries and keys, or of shares and values."""
        self.products.append((a, b, result))
        self.clock += 1
        for i, (path, sunk, q, k, before, at) in enumerate(self.pending):
            if a.shape[-2:] == (self.n, self.n) and b.dim() > 1 and b.shape[-2] == self.n:
                del self.pending[i]
                queries, keys = _heads(q), _heads(k.transpose(-1, -2))
                scores = Scores(
                    path, _heads(before), queries, keys, _heads(b), _heads(result), at, sunk
                )
                self.record.scores.append(scores)
                return

    def softmax(self, before: Any, shares: Any) -> None:
        """Notes a softmax over tokens, and maybe one more score for each head."""
        sunk = shares.shape[-1] == self.n + 1
        if shares.dim() < 3 or shares.shape[-2] != self.n:
            return
        if not self.n <= shares.shape[-1] <= self.n + 1:
            return
        if sunk:
            before = before[..., : self.n] - before[..., self.n :]
        self.clock += 1
        for a, b, result in reversed(self.products):
            if result.shape[-2:] == (self.n, self.n):
                self.pending.append((self.stack[-1], sunk, a, b, before, self.clock))
                return


def _heads(x: Any) -> Array:
    values = x.detach().numpy().copy()
    return values.reshape(-1, *values.shape[-2:])


@contextmanager
def computing(torch: Any, watch: _Watch | None = None) -> Iterator[None]:
    """While the block runs, torch computes in float64 even where code asks for float32."""
    products = {torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.bmm}
    softmaxes = {torch.softmax, torch.Tensor.softmax, torch.nn.functional.softmax}
    added = {torch.baddbmm, torch.Tensor.baddbmm}

    def wide(value: Any) -> Any:
        return torch.float64 if value is torch.float32 else value

    class Float64(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if function is torch.Tensor.float:
                function = torch.Tensor.double
            args, kwargs = [*map(wide, args)], {k: wide(v) for k, v in (kwargs or {}).items()}
            result = function(*args, **kwargs)
            if watch is None:
                return result
            if function in products:
                watch.product(args[0], args[1], result)
            elif function in added:
                factors = [*args[1:], kwargs.get("batch1"), kwargs.get("batch2")]
                watch.product(factors[0], factors[1], result)
            elif function in softmaxes:
                watch.softmax(args[0] if args else kwargs["input"], result)
            return result

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad(), Float64():
            yield
    finally:
        torch.set_default_dtype(before)


def logits(net: Any, ids: Array, watch: _Watch | None = None) -> Array:
    """Logits of all rows [n, vocabulary] in float64."""
    torch = need("torch")
    with computing(torch, watch):
        result = net(input_ids=torch.from_numpy(np.array([ids])), use_cache=False)
    return result.logits[0].double().numpy()


def record(net: Any, ids: Array) -> Recording:
    """Computes a text, and notes all.

    Raises:
        Unsupported: the model does not compute it from its ids alone.
    """
    torch = need("torch")
    result = Recording(np.array(ids), np.zeros(0))
    watch = _Watch(torch, result)
    for name, tensor in net.state_dict().items():
        if tensor.dim() == 1:
            result.small[name] = tensor.detach().numpy()
    for path, module in net.named_modules():
        if path:
            watch.attach(path, module)
    try:
        result.logits = logits(net, ids, watch)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise Unsupported(f"transformers does not compute a text of it: {reason:.300}") from error
    finally:
        for module in net.modules():
            module._forward_hooks.clear()
            module._forward_hooks_with_kwargs.clear()
            module._forward_pre_hooks.clear()
    return result
