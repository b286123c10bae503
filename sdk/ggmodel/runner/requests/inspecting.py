"""Looking into a loaded model: results of modules captured, patched and steered, by request."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

import numpy as np

from ...errors import ConfigError, Unsupported
from ...ml.tensor import as_numbers
from ...model import Model
from ...model.walk import Instance
from ..engine.probes import Captured, InGraph, Patch, Probe
from ..steering import Steer, Steering
from .module_names import checkpoint_names, named, of_hook, plain


class Seen(Mapping[str, np.ndarray]):
    """The results that `capture` took: module's name → float32 [tokens, width], of the latest
    request.

    Attributes:
        requests: what each request gave, in the order in which they were made.
    """

    def __init__(self) -> None:
        self.requests: list[Captured] = []

    def __getitem__(self, name: str) -> np.ndarray:
        if not self.requests:
            raise KeyError(f"{name}: no request was made within the block")
        return self.requests[-1][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.requests[-1] if self.requests else ())

    def __len__(self) -> int:
        return len(self.requests[-1]) if self.requests else 0


@dataclass(frozen=True, eq=False)
class _Block:
    """A `with` block of `capture` or `patch`, for the requests that are made within it."""

    model: object
    captures: Mapping[str, InGraph | None] = field(default_factory=dict)
    patches: Mapping[str, Patch] = field(default_factory=dict)
    named: frozenset[str] = frozenset()  # those whose own names were given
    seen: Seen | None = None


_blocks: ContextVar[tuple[_Block, ...]] = ContextVar("blocks", default=())


@contextmanager
def _within(block: _Block) -> Iterator[None]:
    token = _blocks.set((*_blocks.get(), block))
    try:
        yield
    finally:
        _blocks.reset(token)


class Inspecting:
    """The methods; `LoadedModel` inherits them."""

    model: Model
    _steering: dict[str, tuple[Steering, float]] = {}  # name → directions, strength

    @cached_property
    def modules(self) -> dict[str, Instance]:
        """Name → module, as `capture` and `patch` take the names, outer modules first: the fields
        of the declaration, such as "layers.3.attn", those of a field `text` without it."""
        return named(self.model)

    @cached_property
    def _checkpoint_names(self) -> dict[str, str]:
        """Names in a checkpoint → ours."""
        ours: dict[str, str] = {}
        for theirs, name in checkpoint_names(self.model):
            if theirs:  # some parts have no name there
                ours.setdefault(theirs, name)  # the outermost: parts may have no name of their own
        return ours

    @contextmanager
    def capture(self, *names: str | Mapping[str, InGraph]) -> Iterator[Seen]:
        """Captures what modules give for the requests that are made within the block, by this
        thread or task: prompts, answers, logits and rows of texts. Only what is named is copied.
        Prompts are computed from their beginning. Each text that is embedded is a request, and each
        item that `encode_media` encodes.

        Args:
            names: of modules, with `*` in place of a part: "layers.*" are all layers, whose results
                are the residual stream, "layers.*.attn" their attention; those that are not
                computed by themselves are left out. Names of a checkpoint, as
                transformers and nnsight have them ("model.layers.3.self_attn"), and hooks of
                TransformerLens ("blocks.3.hook_resid_post") stand for the same modules. A mapping
                of names has `in_graph` of an expression, whose value F32 [any width, rows] is
                captured in place of the module's rows.

        Raises:
            ConfigError: no module has such a name, or a mapping has something else than `in_graph`.
        """
        seen, captures, own = Seen(), dict[str, InGraph | None](), frozenset[str]()
        for one in names:
            pairs = [*one.items()] if isinstance(one, Mapping) else [(one, None)]
            for pattern, expression in pairs:
                if isinstance(one, Mapping) and not isinstance(expression, InGraph):
                    raise ConfigError(
                        f"what is captured of {pattern} is {expression!r:.80}; it must be "
                        "in_graph(function)"
                    )
                _add(captures, dict.fromkeys(self._matching((pattern,)), expression))
            own |= self._named(pattern for pattern, _ in pairs)
        with _within(_Block(self, captures, named=own, seen=seen)):
            yield seen

    @contextmanager
    def patch(self, patches: Mapping[str, Patch]) -> Iterator[None]:
        """Changes what modules give, for the requests that are made within the block, by this
        thread or task, and for no other in the same batch.

        Args:
            patches: name of a module, as `capture` takes it → a function of its rows float32 [rows,
                width] that returns their new values; `in_graph` of an expression of tensors, which
                becomes part of the graph; or numbers float32 [width], added to each row.

        Raises:
            ConfigError: no module has such a name, or a patch is none of these.
        """
        if not isinstance(patches, Mapping):
            raise ConfigError(f"patches are {patches!r:.80}; give {{name of a module: patch}}")
        by_name: dict[str, Patch] = {}
        for pattern, patch in patches.items():
            numbers = as_numbers(patch) if isinstance(patch, np.ndarray) else None
            if numbers is not None:
                patch = numbers.reshape(-1)
            elif not (callable(patch) or isinstance(patch, InGraph)):
                raise ConfigError(
                    f"the patch of {pattern} is {patch!r:.80}; it must be a function, "
                    "in_graph(function), or an array of numbers to add, none NaN or infinite"
                )
            by_name |= dict.fromkeys(self._matching((pattern,)), patch)
        with _within(_Block(self, patches=by_name, named=self._named(patches))):
            yield

    def _named(self, patterns: Iterable[str]) -> frozenset[str]:
        """The names of modules that were given as such, without a `*`."""
        return frozenset(self._matching(p for p in patterns if "*" not in p))

    def _matching(self, patterns: Iterable[str]) -> list[str]:
        """The names of modules that fit patterns."""
        matching: list[str] = []
        for pattern in patterns:
            if not isinstance(pattern, str):
                raise ConfigError(f"{pattern!r:.80} is no name of a module")
            parts = of_hook(plain(pattern), self.modules).split(".")
            names = [name for name in self.modules if _fits(name.split("."), parts)]
            if not names:
                theirs = self._checkpoint_names.items()
                names = [our for name, our in theirs if _fits(name.split("."), parts)]
            if not names:
                raise ConfigError(self._unknown(pattern))
            matching += names
        return matching

    def _unknown(self, pattern: str) -> str:
        near = difflib.get_close_matches(pattern, self.modules, 3, cutoff=0.0)
        return f"no module is called {pattern!r:.200}; the nearest names are {', '.join(near)}"

    @cached_property
    def residual(self) -> list[str]:
        """The names of the layers, whose results are the residual stream, in order.

        Raises:
            Unsupported: the model has no list of layers.
        """
        names = [name for name in self.modules if _fits(name.split("."), ["layers", "*"])]
        if names:
            return names
        raise Unsupported(f"{self.model.architecture} has no list of layers to steer")

    def steer_by_default(self, steer: str | Steering | Sequence[str | Steering]) -> None:
        """Has steering vectors act on all requests that say nothing of them.

        Args:
            steer: files with their strengths, as "happy.gguf:1.5", or `Steering`s. A file is called
                by its name without its ending from now on, a `Steering` by its number.

        Raises:
            Error: a file cannot be read, or is no control vector of this model.
        """
        several = (steer,) if isinstance(steer, (str, Steering)) else steer
        self._steering = {}
        for i, one in enumerate(several):
            if not isinstance(one, (str, Path, Steering)):
                raise ConfigError(f"steer has {one!r:.80}; give 'FILE:STRENGTH', or a Steering")
            name, steering, strength = (str(i), one, 1.0)
            if not isinstance(one, Steering):
                name, steering, strength = Steering.parse(one)
            assert isinstance(steering, Steering)
            if name in self._steering:
                raise ConfigError(f"two steering vectors are called {name!r}; rename a file")
            self._steering[name] = steering, strength
        self.probe(steer=[steering for steering, _ in self._steering.values()])

    def _steering_of(self, steer: Steer | None) -> list[Steering]:
        """The steering vectors of a request, each with its strength."""
        if isinstance(steer, Steering):
            return [steer]
        if steer is not None and not isinstance(steer, Mapping):
            return [*steer]
        strengths = {name: strength for name, (_, strength) in self._steering.items()}
        for name in strengths if steer is None else steer:
            if name not in self._steering:
                loaded = ", ".join(self._steering) or "none; --steer FILE gives one"
                raise ConfigError(f"no steering vector is called {name!r:.80}; loaded: {loaded}")
        chosen = strengths if steer is None else steer
        return [self._steering[name][0] * s for name, s in chosen.items() if s]

    def probe(self, capture: str | Iterable[str] = (), steer: Steer | None = None) -> Probe | None:
        """The captures and patches of a request, by its options and by the blocks that it is made
        in; None without any.

        Raises:
            ConfigError: no module has such a name, or a direction does not fit a layer.
        """
        names = [capture] if isinstance(capture, str) else [*capture]
        if len(names) > len(self.modules):
            raise ConfigError(
                f"capture has {len(names):,} names, and the model {len(self.modules):,} modules"
            )
        captures: dict[str, InGraph | None] = dict.fromkeys(self._matching(names))
        own = self._named(names)
        patches: dict[str, tuple[Patch, ...]] = {}
        for layer, direction in Steering.sum(self._steering_of(steer)).items():
            if layer >= len(self.residual):
                raise ConfigError(
                    f"the steering vector has a direction for layer {layer}; the model's last "
                    f"layer is {len(self.residual) - 1}"
                )
            patches[self.residual[layer]] = (direction,)
        capturers = dict.fromkeys(captures, frozenset[object]({object()}))
        blocks = [block for block in _blocks.get() if block.model is self]
        for block in blocks:
            _add(captures, block.captures)
            own |= block.named
            for name, patch in block.patches.items():
                patches[name] = (*patches.get(name, ()), patch)
            for name in block.captures:
                capturers[name] = capturers.get(name, frozenset()) | {block}
        if not captures and not patches:
            return None
        modules = {id(self.modules[name].module): name for name in (*captures, *patches)}
        probe = Probe(modules, captures, patches, capturers, own)
        for block in blocks:
            if block.seen is not None:
                block.seen.requests.append(probe.captured)
        return probe


def _add(captures: dict[str, InGraph | None], more: Mapping[str, InGraph | None]) -> None:
    """Adds what is captured of modules.

    Raises:
        ConfigError: something else of one of them is captured already.
    """
    for name, expression in more.items():
        if captures.setdefault(name, expression) is not expression:
            raise ConfigError(f"{name} is captured twice, with different expressions; take one")


def _fits(name: list[str], pattern: list[str]) -> bool:
    return len(name) == len(pattern) and all(map(fnmatchcase, name, pattern))
