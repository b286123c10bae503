"""Adapters as PEFT saves them, in the names of files: adapter_config.json and its safetensors.

A change of a checkpoint's matrix is a product of two thin ones, W + U·V. The declaration says by
which operation a tensor of the file comes from W, and the same operation, tried on a product of one
column and one row, tells what becomes of U and V: its rows or its columns move, or they change
places. That is compared with the operation on the whole product, once for each kind of tensor.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import Error, FormatError, Unsupported
from ..gguf_file import MemorySource
from ..gguf_file.buffer import Buffer
from ..gguf_file.types import LARGEST
from ..ml import Tensor
from ..model import Model
from ..model.operations import Computed
from ..reading import read_json
from ..runner.loading.adapters import ALPHA, MAGNITUDE, TABLES, A, B
from .checkpoint import Checkpoint
from .declaration import PlannedTensor, copies, field_at, ignored, planned

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
# Keys that change nothing where A and B are given: how these were found, and what for. In a model
# with weights [in, out] (fan_in_fan_out) A and B lie like in any other.
_WITHOUT_EFFECT = {
    "peft_type", "peft_version", "task_type", "auto_mapping", "base_model_name_or_path", "revision",
    "inference_mode", "r", "lora_alpha", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern",
    "bias", "fan_in_fan_out", "target_modules", "target_parameters", "exclude_modules",
    "lora_dropout", "layers_to_transform", "layers_pattern", "init_lora_weights", "runtime_config",
    "megatron_core", "eva_config", "loftq_config", "corda_config", "lora_ga_config",
    "qalora_group_size", "ensure_weight_tying",
}  # fmt: skip
_INITIAL = (None, True, False, "gaussian", "eva", "orthogonal")  # that leave the model as it was
_NAME = re.compile(r"\^?[\w.\\-]+\$?")

Arrays = tuple[np.ndarray, np.ndarray]
Sides = tuple[np.ndarray, np.ndarray, np.ndarray | None]  # U, V, lengths of rows


@dataclass(frozen=True)
class Factors:
    """The change U·V of a matrix in a checkpoint: U float32 [(experts,) rows, rank], V
    [(experts,) rank, columns]; the lengths of rows for DoRA, [rows].

    Attributes:
        module: it belongs to a linear module, which multiplies by V first whatever way the matrix
            lies; that of a parameter lies as it does.
        embeds: rows of the matrix are looked up.
    """

    u: np.ndarray
    v: np.ndarray
    magnitude: np.ndarray | None = None
    module: bool = True
    embeds: bool = False


def open_peft(folder: str | os.PathLike[str], model: Model) -> MemorySource:
    """An adapter's folder in the layout of llama.cpp's files, F32.

    Args:
        model: the architecture with its tensors.

    Raises:
        FormatError: a file is missing or damaged, or a tensor fits no module of the model.
        Unsupported: the adapter has something else than LoRA or DoRA; names the key or the tensor.
    """
    folder = Path(folder)
    config = _config(folder)
    _check(config, folder / CONFIG)
    with closing(Buffer.open(folder / WEIGHTS)) as buffer:
        checkpoint = Checkpoint(folder, config, [buffer])
        factors = _factors(checkpoint, config)
        alpha = float(config.get("lora_alpha", 8))
        return in_file(model, factors, alpha, folder)


def in_file(
    model: Model,
    factors: Mapping[str, list[Factors]],
    alpha: float,
    path: Path,
    about: Mapping[str, Any] | None = None,
) -> MemorySource:
    """An adapter in the layout of llama.cpp's files, F32.

    Args:
        factors: changes by the checkpoint's names of tensors.
        path: of the adapter, whose name is its own.
        about: further metadata.

    Raises:
        FormatError: a change fits no module of the model.
    """
    tensors = dict(_tensors(model, factors, path))
    metadata = {
        "general.type": "adapter",
        "general.architecture": type(model).architecture,
        "general.name": path.name,
        "adapter.type": "lora",
        ALPHA: np.float32(alpha),
        **(about or {}),
    }
    return MemorySource(metadata, tensors, str(path))


def read_peft(folder: Path) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """An adapter's configuration, and the shapes of its tensors in numpy's order.

    Raises:
        FormatError: a file is missing or damaged.
    """
    config = _config(folder)
    with closing(Buffer.open(folder / WEIGHTS)) as buffer:
        tensors = Checkpoint(folder, config, [buffer]).tensors
        return config, {name: tensor.shape for name, tensor in tensors.items()}


def _config(folder: Path) -> dict[str, Any]:
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise FormatError(
                f"{folder} has no {name}: an adapter is a folder of PEFT with {CONFIG} and "
                f"{WEIGHTS}, or a GGUF file"
            )
    return read_json(folder / CONFIG)


def _check(config: Mapping[str, Any], path: Path) -> None:
    if config.get("peft_type") != "LORA":
        kind = config.get("peft_type")
        raise Unsupported(f"{path}: peft_type is {kind!r:.80}; LORA is supported, with DoRA")
    for key, value in config.items():
        if key not in _WITHOUT_EFFECT and value not in (None, False, "", [], {}):
            raise Unsupported(f"{path}: {key} is {value!r:.80}, which is unsupported for adapters")
    if (bias := config.get("bias", "none")) != "none":
        raise Unsupported(f"{path}: bias is {bias!r:.80}; biases of an adapter are unsupported")
    if (initial := config.get("init_lora_weights")) not in _INITIAL:
        raise Unsupported(
            f"{path}: init_lora_weights is {initial!r:.80}, which changes the model's own weights; "
            "save the adapter as plain LoRA (path_initial_model_for_weight_conversion of PEFT)"
        )
    positive(config.get("r", 8), "r", path, whole=True)
    positive(config.get("lora_alpha", 8), "lora_alpha", path)
    for key in ("rank_pattern", "alpha_pattern"):
        if not isinstance(value := config.get(key) or {}, dict):
            raise FormatError(f"{path}: {key} is {value!r:.80}; it must have a number by name")
        for pattern, number in value.items():
            positive(number, f"{key}[{pattern!r:.80}]", path, whole=key == "rank_pattern")
    names = config.get("target_parameters") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise FormatError(f"{path}: target_parameters is {names!r:.80}; it must be a list of names")


def positive(value: Any, key: str, path: Path, whole: bool = False) -> float:
    """A number of an adapter's settings.

    Raises:
        FormatError: it is none above 0, has a fraction though `whole`, or is too large for float32.
    """
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    if not numeric or not 0 < value <= LARGEST or (whole and value % 1):
        kind = "whole number" if whole else "number"
        raise FormatError(f"{path}: {key} is {value!r:.80}; it must be a {kind} above 0")
    return value


def _factors(checkpoint: Checkpoint, config: Mapping[str, Any]) -> dict[str, list[Factors]]:
    """The changes by the checkpoint's names of tensors, U with the scale in it as far as that is
    not alpha / rank. A module of experts may have several parameters, told apart by their shapes.
    """
    parts: dict[str, dict[str, np.ndarray]] = {}
    for name in checkpoint.tensors:
        module, part = _parsed(name, checkpoint.folder / WEIGHTS)
        parts.setdefault(module, {})[part] = checkpoint.array(name).astype(np.float32)
    factors: dict[str, list[Factors]] = {}
    for module, arrays in parts.items():
        if arrays.keys() == {"base_layer"}:  # the model's own embedding or head
            continue
        embedded = "lora_embedding_A" in arrays
        if embedded and "lora_magnitude_vector" in arrays:
            raise Unsupported(
                f"{checkpoint.folder / WEIGHTS}: DoRA of the embedding {module}; make the adapter "
                "without use_dora, or merge it by PEFT"
            )
        a, b = (arrays.get(f"lora_{'embedding_' * embedded}{x}") for x in "AB")
        if a is None or b is None or a.ndim != 2 or b.ndim != 2:
            raise FormatError(f"{checkpoint.folder / WEIGHTS}: {module} has no matrices A and B")
        plain = re.sub(r"(\.base_layer)+$", "", module)
        parameters = [
            last
            for name in config.get("target_parameters") or ()
            if f".{plain}.{(last := name.rpartition('.')[2])}".endswith(f".{name}")
        ]
        rank = int(_of(config, "rank_pattern", plain, config.get("r", 8)))
        alpha = float(_of(config, "alpha_pattern", plain, config.get("lora_alpha", 8)))
        scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
        usual = float(config.get("lora_alpha", 8)) / rank
        b = b if scale == usual else b * np.float32(scale / usual)
        if len(a) % rank or b.shape[1] != len(a) or (len(a) != rank and not parameters):
            raise FormatError(
                f"{checkpoint.folder / WEIGHTS}: A {list(a.shape)} and B {list(b.shape)} of "
                f"{module} are not of rank {rank}"
            )
        magnitude = arrays.get("lora_magnitude_vector")
        if magnitude is None and config.get("use_dora") and not embedded:
            raise FormatError(
                f"{checkpoint.folder / WEIGHTS}: {module} has no lora_magnitude_vector, and "
                f"{CONFIG} has use_dora; save the adapter again"
            )
        if embedded:
            factors[f"{plain}.weight"] = [Factors(a.T, b.T, None, False, True)]
        elif not parameters:
            flat = None if magnitude is None else magnitude.reshape(-1)
            factors[f"{plain}.weight"] = [Factors(b, a, flat)]
        for parameter in parameters:
            factors.setdefault(f"{plain}.{parameter}", []).extend(_of_parameter(a, b, rank))
    if not factors:
        raise FormatError(f"{checkpoint.folder / WEIGHTS} has no matrices A and B; save it again")
    return factors


# The parts of an expert's gate and up, which are one parameter, and its down, by their names.
_EXPERT = {
    "gate_up_proj": (("gate_proj", "up_proj"), ("w1", "w3")),
    "down_proj": (("down_proj",), ("w2",)),
}


Named = tuple[tuple[str, ...], str, list[Factors]]  # the adapter's names, another one, changes


def _numbered(factors: Mapping[str, list[Factors]]) -> Iterator[Named]:
    """Changes of stacked experts by the names that they have in checkpoints which number experts:
    transformers joins these into one parameter."""
    for parameter, changes in factors.items():
        module, _, last = parameter.rpartition(".")
        if last not in _EXPERT or changes[0].u.ndim != 3:
            continue
        modules = dict.fromkeys((module, module.replace(".mlp.", ".block_sparse_moe.")))
        for parts in _EXPERT[last]:
            for i, name in product(range(len(changes[0].u)), parts):
                at, count = parts.index(name), len(parts)
                some = [
                    Factors(np.split(one.u[i], count)[at], one.v[i])
                    for one in changes
                    if one.u.shape[1] % count == 0
                ]
                for path in modules:
                    yield (parameter,), f"{path}.{i}.{name}.weight", some


def _fused(factors: Mapping[str, list[Factors]]) -> Iterator[Named]:
    """Changes of queries, keys and values together, by the name of their matrix in checkpoints that
    have one: transformers takes it apart. Parts without a change have zeros; there are lengths of
    all rows, or of none."""
    matches = (re.fullmatch(r"(.+\.|)[qkv]_proj\.weight", name) for name in factors)
    for stem in dict.fromkeys(match[1] for match in matches if match):
        names = [f"{stem}{part}_proj.weight" for part in "qkv"]
        each = {name: factors[name][0] for name in names if name in factors}
        first = next(iter(each.values()))
        if any(len(one.v.shape) != 2 or len(one.v[0]) != len(first.v[0]) for one in each.values()):
            continue
        v, at, rows = np.concatenate([one.v for one in each.values()]), 0, list[np.ndarray]()
        for name in names:
            u = np.zeros((len(each.get(name, first).u), len(v)), np.float32)
            if name in each:
                rank = len(each[name].v)  # a strength is divided by the rank of all of them
                u[:, at : at + rank] = each[name].u * np.float32(len(v) / rank)
                at += rank
            rows.append(u)
        lengths = [one.magnitude for one in each.values() if one.magnitude is not None]
        magnitude = np.concatenate(lengths) if len(lengths) == len(names) else None
        yield tuple(each), f"{stem}Wqkv.weight", [Factors(np.concatenate(rows), v, magnitude)]


def _of_parameter(a: np.ndarray, b: np.ndarray, rank: int) -> list[Factors]:
    """The changes that A and B of a parameter that is no module's may mean. Ranks of stacked
    experts vary slowest in A and fastest in B. Older versions of PEFT take the second dim of a
    stack for the inputs, whatever it is: that counts where the shapes fit in no other way."""
    experts = len(a) // rank
    if experts == 1:
        return [Factors(b, a)]
    each_a = a.reshape(experts, rank, -1)
    each_b = b.reshape(len(b), rank, experts).transpose(2, 0, 1)
    older = each_a.swapaxes(1, 2), each_b.swapaxes(1, 2)
    return [Factors(each_b, each_a), Factors(*older, None, False)]


_PARTS = (
    "lora_A.weight", "lora_B.weight", "lora_embedding_A", "lora_embedding_B",
    "lora_magnitude_vector.weight", "lora_magnitude_vector", "base_layer.weight",
)  # fmt: skip


def _parsed(name: str, path: Path) -> tuple[str, str]:
    """The module that a tensor belongs to, in names of the checkpoint, and the part that it is."""
    for part in _PARTS:
        if name.startswith(_PREFIX) and name.endswith(f".{part}"):
            module = name.removeprefix(_PREFIX).removesuffix(f".{part}")
            return module, part.removesuffix(".weight")
    raise Unsupported(
        f"{path}: {name!r:.150} is unsupported: an adapter has matrices lora_A and lora_B, and "
        "lora_magnitude_vector, and changes neither biases nor whole modules"
    )


def _of(config: Mapping[str, Any], key: str, module: str, usual: Any) -> Any:
    """The number of a module by the first pattern that names it.

    Raises:
        Unsupported: a pattern is more than a name.
    """
    for pattern, number in (config.get(key) or {}).items():
        if not _NAME.fullmatch(pattern):
            raise Unsupported(
                f"{key} has {pattern!r:.80}; the ends of modules' names are supported"
            )
        name = pattern.replace("\\", "").removesuffix("$")
        if module == name.removeprefix("^") or f".{module}".endswith(f".{name}"):
            return number
    return usual


def _tensors(
    model: Model, factors: Mapping[str, list[Factors]], folder: Path
) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors of the file: their names, and their values."""
    unread = set(factors)
    made: dict[str, tuple[str, ...]] = {}
    expected: dict[str, tuple[int, ...]] = {}
    for names in (_numbered, _fused):
        left = {name: some for name, some in factors.items() if name in unread}
        changes = [*(((name,), name, some) for name, some in left.items()), *names(left)]
        named = {name: some for _, name, some in changes}
        origins = {name: those for those, name, _ in changes}
        for sources, field, (u, v, magnitude) in _fields(model, named, expected):
            changed = [name for source in sources for name in origins[source]]
            unread -= set(changed)
            if magnitude is None and any(factors[n][0].magnitude is not None for n in changed):
                raise Unsupported(
                    f"{folder}: DoRA of {changed[0]!r:.100} alone, a part of one tensor of this "
                    "model; make the adapter of queries, keys and values, or without use_dora"
                )
            if (before := made.setdefault(field.name, sources)) != sources:
                raise Unsupported(
                    f"{folder} changes {before[0]!r:.100} and {sources[0]!r:.100}, which are one "
                    "tensor of this model; leave one of them out"
                )
            if named[sources[0]][0].embeds and field.name not in TABLES:
                u, v = v.T, u  # rows that are looked up
            yield f"{field.name}{A}", np.ascontiguousarray(v, np.float32)
            yield f"{field.name}{B}", np.ascontiguousarray(u, np.float32)
            if magnitude is not None:
                yield f"{field.name}{MAGNITUDE}", np.ascontiguousarray(magnitude, np.float32)
        if not unread:
            return
    others = {n for n in unread if n in expected or not ignored(model, n)}
    if made and not others:
        return
    name = min(others or unread)
    rows, columns = factors[name][0].u.shape[-2], factors[name][0].v.shape[-1]
    raise FormatError(
        f"{folder} changes {name!r:.150} [{rows}, {columns}]"
        + (f" and {len(others) - 1} more" if others - {name} else "")
        + f", which this {type(model).architecture} "
        + (f"has as {list(own)}" if (own := expected.get(name)) else "lacks")
        + ": it is an adapter of another model"
    )


def _fields(
    model: Model, named: Mapping[str, list[Factors]], expected: dict[str, tuple[int, ...]]
) -> Iterator[tuple[tuple[str, ...], Tensor, Sides]]:
    """The tensors of the model that changes of these names belong to: the names, the tensor, its
    sides. `expected` gets the shapes of those that a change does not fit, by its name."""
    kinds: dict[Hashable, int | None] = {}
    for entry, path in planned(model, named):
        field = field_at(model, path)
        if isinstance(entry.join, Computed) or not isinstance(field, Tensor):
            continue
        shape = field.shape[::-1] if len(field.shape) > 1 else (1, *field.shape)
        sides = _sides(entry, named, model.config, shape, kinds)
        if sides is None:
            expected.update(dict.fromkeys(entry.sources, shape))
            continue
        others = copies(model, path) - {*entry.sources}
        if others and ignored(model, entry.sources[0]):
            raise Unsupported(
                f"an adapter changes {entry.sources[0]!r:.100} alone, and this model has one "
                f"tensor for it and {', '.join(sorted(others))}; leave it out"
            )
        yield entry.sources, field, sides


def _sides(
    entry: PlannedTensor,
    factors: Mapping[str, list[Factors]],
    config: Any,
    shape: tuple[int, ...],
    kinds: dict[Hashable, int | None],
) -> Sides | None:
    """U and V of a tensor of the file of this shape, and the magnitudes of its rows; None if none
    fit.

    Args:
        kinds: the number of the way that was found for an operation and shapes.
    """

    def apply(parts: list[np.ndarray]) -> np.ndarray:
        x = parts[0] if entry.join is None else entry.join.join(parts, config)
        return x if entry.op is None else entry.op.to_gguf(x, config)

    for choice in zip(*(factors[source] for source in entry.sources), strict=False):
        us, vs = [one.u for one in choice], [one.v for one in choice]
        ways = _ways(apply, choice[0].module)
        kind = str(entry.join), str(entry.op), us[0].shape, vs[0].shape, shape
        if kind not in kinds:
            columns = [_probe(u[..., :1].shape, i) for i, u in enumerate(us)]
            rows = [_probe(v[..., :1, :].shape, i) for i, v in enumerate(vs)]
            kinds[kind] = _found(ways, apply, columns, rows, shape)
        if (number := kinds[kind]) is None:
            continue
        way, _ = ways[number]
        u, v = way(us, vs)
        lengths = [one.magnitude[:, None] for one in choice if one.magnitude is not None]
        return u, v, way(lengths, vs)[0][..., 0] if len(lengths) == len(choice) else None
    return None


def _probe(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Small integers, whose products are exact."""
    return np.random.default_rng(seed).integers(-99, 100, shape).astype(np.float32)


Way = Callable[[list[np.ndarray], list[np.ndarray]], Arrays]
Apply = Callable[[list[np.ndarray]], np.ndarray]


def _swapped(parts: list[np.ndarray]) -> list[np.ndarray]:
    return [part.swapaxes(-1, -2) for part in parts]


def _stacked(parts: list[np.ndarray]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.stack(parts)


def _ways(apply: Apply, module: bool) -> list[tuple[Way, bool]]:
    """Ways in which an operation may act on U and V; whether each is for a matrix [in, out] of a
    module, which is the transposed product."""
    plain: list[tuple[Way, bool]] = [
        (lambda u, v: (apply(u), _stacked(v)), False),
        (lambda u, v: (_stacked(u), apply(v)), False),
    ]
    if module:
        return [
            *plain,
            (lambda u, v: (apply(_swapped(u)), _stacked(v)), True),
            (lambda u, v: (_stacked(u), apply(_swapped(v))), True),
        ]
    return [
        *plain,
        (lambda u, v: (apply(v), _stacked(u).swapaxes(-1, -2)), False),
        (lambda u, v: (_stacked(v).swapaxes(-1, -2), apply(u)), False),
    ]


def _found(
    ways: list[tuple[Way, bool]],
    apply: Apply,
    us: list[np.ndarray],
    vs: list[np.ndarray],
    shape: tuple[int, ...],
) -> int | None:
    """The number of the way that gives the operation's own result, a tensor of this shape; None if
    there is none."""
    whole = [u @ v for u, v in zip(us, vs, strict=True)]
    for number, (way, transposed) in enumerate(ways):
        with suppress(Error, ValueError, IndexError, TypeError):
            u, v = way(us, vs)
            expected = apply(_swapped(whole) if transposed else whole)
            if expected.shape == shape == (u @ v).shape and (u @ v == expected).all():
                return number
    return None
