"""Arguments of wrong types, everywhere in the interface: always an error of ours."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest

from ggmodel import ml
from ggmodel.errors import ArgumentError, ConfigError, Error, GraphError, TensorError, Unsupported
from ggmodel.gguf_file import MemorySource
from ggmodel.ml import Backend, BackendParams, Context, DType, GPULayers, GPULayersList, Tensor
from tests.ml.harness import METADATA, normal

WRONG = ["a", b"a", None, 1.5, -3, 1 << 70, [], {}, object(), len, [[1], [2, 3]], complex(1, 1)]


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    with ml.new_backend(MemorySource(METADATA, {"w": normal(4, 8)})) as backend:
        yield backend


@pytest.fixture
def ctx(backend: Backend) -> Iterator[Context]:
    with backend.new_context() as ctx:
        yield ctx


def methods(cls: type, *without: str) -> list[str]:
    found = inspect.getmembers(cls, inspect.isfunction)
    return [name for name, _ in found if not name.startswith("_") and name not in without]


def calls(method: Callable[..., Any]) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Arguments for a method of which at least one is wrong."""
    parameters = [p for p in inspect.signature(method).parameters.values() if p.name != "self"]
    required = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    yield [], {"there_is_none": 3}
    if required:
        yield [], {}
    if not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        yield [1] * (len(parameters) + 1), {}
    for wrong in WRONG:
        for p in parameters:
            if p.kind is p.VAR_POSITIONAL:
                yield [*[1] * len(required), wrong], {}
            elif p.default is not p.empty:
                yield [1] * len(required), {p.name: wrong}
        for values in product([1, wrong], repeat=min(len(required), 3)):
            yield [*values, *[wrong] * (len(required) - 3)], {}


@pytest.mark.parametrize("name", methods(Tensor))
def test_methods_of_tensors(ctx: Context, name: str):
    refused = 0
    for args, kwargs in calls(getattr(Tensor, name)):
        x = ctx.input().from_floats(np.ones((2, 4), np.float32))
        try:
            getattr(x, name)(*args, **kwargs)
        except Error:
            refused += 1
    assert refused


@pytest.mark.parametrize("name", methods(Context, "compute", "compute_with_notify"))
def test_methods_of_contexts(backend: Backend, name: str):
    refused = 0
    for args, kwargs in calls(getattr(Context, name)):
        with backend.new_context() as ctx:
            for view in (ctx, ctx.input(), ctx.layer(0)):
                try:
                    getattr(view, name)(*args, **kwargs)
                except Error:
                    refused += 1
    assert refused


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_computed(ctx: Context, wrong: Any):
    for call in (lambda: ctx.compute(wrong), lambda: ctx.compute_with_notify(print, wrong)):
        with pytest.raises(TensorError):
            call()
    if not callable(wrong):
        with pytest.raises(TensorError, match="which is no function"):
            ctx.compute_with_notify(wrong)


def test_errors_of_the_caller_pass(ctx: Context):
    def begun() -> None:
        raise ValueError("the caller's own")

    with pytest.raises(ValueError, match=r"^the caller's own$"):
        ctx.compute_with_notify(begun, ctx.input().from_floats([1]).scale(2))


def test_what_is_wrong_is_said(ctx: Context):
    x = ctx.input().from_floats([1, 2, 3, 4])
    with pytest.raises(TensorError, match=r"scale\(s\) cannot take.*could not convert") as caught:
        x.scale("a")  # type: ignore[arg-type]
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(TensorError, match=r"slice\(dim, lo, hi, step\) cannot take"):
        x.slice(0, 0, 2.5)  # type: ignore[arg-type]


def test_an_operand_of_the_wrong_dtype_is_told_the_right_ones(ctx: Context):
    x, ids = ctx.input().from_floats([1, 2]), ctx.input().from_ints([1, 0])
    with pytest.raises(TensorError, match="weight is I32; it must be F32, F16, BF16 or quantised"):
        ids.mulmat(x)
    with pytest.raises(TensorError, match="ids is F32; it must be I32\n"):
        x.rows(x)


def integer_parameters(cls: type) -> Iterator[tuple[str, inspect.Parameter]]:
    for name in methods(cls):
        for p in inspect.signature(getattr(cls, name)).parameters.values():
            if p.annotation == "int":
                yield name, p


@pytest.mark.parametrize("wrong", [1.0, True, np.float32(1), np.True_, "1", None])
@pytest.mark.parametrize(("name", "parameter"), [*integer_parameters(Tensor)])
def test_floats_and_bools_are_no_integers(
    ctx: Context, name: str, parameter: inspect.Parameter, wrong: Any
):
    """Refused before anything else is looked at, wherever a method of tensors takes an integer."""
    x = ctx.input().from_floats(np.ones((2, 4), np.float32))
    match = r"no integer|as an integer|dims 0 to 3"
    if parameter.kind is parameter.VAR_POSITIONAL:
        before = list(inspect.signature(getattr(x, name)).parameters.values())[:-1]
        given = [x if p.annotation in ("Node", "Self") else 1 for p in before]
        with pytest.raises(TensorError, match=match):
            getattr(x, name)(*given, wrong)
    else:
        with pytest.raises(TensorError, match=match):
            getattr(x, name)(**{parameter.name: wrong})


def test_numpy_integers_serve(ctx: Context):
    x = ctx.input().from_floats(np.ones((2, 4), np.float32))
    assert x.top_k(np.int64(2)).shape == (2, 2)  # type: ignore[arg-type]
    assert x.reshape(*np.array([2, 4])).shape == (2, 4)
    assert type(x.slice(0, 0, np.int32(3)).ne[0]) is int  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [1.0, 1.5, True, "1", None])
def test_integers_of_contexts(ctx: Context, wrong: Any):
    place = ctx.input()
    for call in (
        lambda: ctx.layer(wrong),
        lambda: ctx.set_batch_size(wrong),
        lambda: place.zeros(DType.F32, wrong),
        lambda: place.empty(DType.F32, 2, wrong),
        lambda: place.from_floats([1], wrong),
        lambda: place.from_ints([1], wrong),
        lambda: place.from_bytes(DType.F32, bytes(4), wrong),
        lambda: ctx.feed(np.zeros, DType.F32, wrong),
    ):
        with pytest.raises(TensorError):
            call()


def test_numbers_are_no_text(ctx: Context):
    x = ctx.input().from_floats([1, 2])
    for call in (lambda: x.scale("2"), lambda: x * "2", lambda: x.clamp(0, b"1")):  # type: ignore[arg-type]
        with pytest.raises(TensorError, match="is text, no number"):
            call()


def test_nothing_is_divided_by_zero(ctx: Context):
    with pytest.raises(TensorError, match="division by zero"):
        _ = ctx.input().from_floats([1, 2]) / 0


def test_feeds_are_filled_by_functions(ctx: Context):
    with pytest.raises(TensorError, match="filled by a function of the step, not by 3"):
        ctx.feed(3, DType.F32, 1)  # type: ignore[arg-type]
    with pytest.raises(TensorError, match="3 is no text"):
        ctx.feed(np.zeros, DType.F32, 1, name=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [*WRONG, True])
def test_methods_of_backends(backend: Backend, wrong: Any):
    made: Any = backend
    calls: list[Callable[[], object]] = [
        lambda: made.reserve(wrong),
        lambda: made.compile(wrong, ()),
        lambda: made.allocate(wrong),
        lambda: made.read(wrong),
        lambda: made.create_state(wrong),
        lambda: made.free_states([wrong]),
        lambda: made.new_context_size(wrong),
    ]
    if not isinstance(wrong, str):
        calls.append(lambda: made.get(wrong))
    if wrong is not None and not callable(wrong):
        calls += [lambda: made.load(wrong), lambda: made.load(cancel=wrong)]
    if type(wrong) is not int:
        calls.append(lambda: made.keep_graphs(wrong))
    for call in calls:
        with pytest.raises(Error):
            call()
    with pytest.raises(GraphError, match=r"get\(name\) cannot take"):
        made.get()


def test_errors_of_progress_pass(backend: Backend):
    def progress(_: float) -> None:
        raise ValueError("the caller's own")

    with pytest.raises(ValueError, match=r"^the caller's own$"):
        backend.load(progress)


def test_what_is_no_dump(ctx: Context):
    x: Any = ctx.input().from_floats([1, 2])
    dump: Any = ml.dump
    for call in (dump, lambda: dump(x, precision="a"), lambda: dump(x, edge_items=1.5)):
        with pytest.raises(TensorError, match=r"dump\(first, .* cannot take"):
            call()


@pytest.mark.parametrize("values", [[1.9], [1 << 40], [-(1 << 31) - 1], [np.nan], ["1"], [None]])
def test_integers_are_integers_of_32_bits(ctx: Context, values: list[Any]):
    for make in (ctx.input().from_ints, ctx.input().zeros(DType.I32, 1).from_ints):
        with pytest.raises(TensorError, match=r"is no int32|no real numbers"):
            make(values)


def test_numbers_that_are_integers_serve(ctx: Context):
    for values in ([2.0, -3.0], np.array([2, -3], np.int64), (2, -3)):
        assert ctx.input().from_ints(values).numpy().tolist() == [2, -3]
    assert ctx.input().from_ints([True, False]).numpy().tolist() == [1, 0]


@pytest.mark.parametrize("values", [["3.5"], [1j], [None], [object()]])
def test_numbers_are_needed(ctx: Context, values: list[Any]):
    for make in (ctx.input().from_floats, ctx.input().zeros(DType.F32, 1).from_floats):
        with pytest.raises(TensorError, match="no real numbers"):
            make(values)


def test_layers_end_with_the_output(ctx: Context):
    assert ctx.layer(2).zeros(DType.F32, 4).shape == (4,)
    with pytest.raises(TensorError, match="layer 99: the model has 0 to 1; 2 is its output"):
        ctx.layer(99)


def test_a_closed_backend_makes_no_contexts():
    backend = ml.new_backend(MemorySource(METADATA, {"w": normal(4, 8)}))
    backend.close()
    for make in (backend.new_context, lambda: backend.new_context_size(8)):
        with pytest.raises(GraphError, match="this backend is closed"):
            make()


@pytest.mark.parametrize(
    "options",
    [
        {"num_threads": -1},
        {"num_threads": "2"},
        {"num_threads": True},
        {"alloc_memory": 1},
        {"gpu_layers": ()},
        {"flash_attention": "on"},
        {"optimize": "speed"},
        {"rpc": "a:1"},
        {"rpc": 5},
        {"rpc": (1,)},
        {"tensor_overrides": {"a": "CPU"}},
        {"tensor_overrides": (("a", 1),)},
    ],
)
def test_parameters_of_backends(options: dict[str, Any]):
    with pytest.raises(ConfigError, match=next(iter(options))):
        BackendParams(**options)


def public_things(backend: Backend) -> dict[str, object]:
    """An object of each class that has methods, and the functions and classes that take some."""
    ctx, info = backend.new_context(), ml.DeviceInfo("0", "CPU")
    things: dict[str, object] = {
        "backend": backend,
        "context": ctx,
        "tensor": ctx.input().from_floats([1, 2]),
        "executable": backend.compile(backend.new_context().graph, ()),
        "memory": backend.backend_memory(),
        "cpu": backend.backend_memory().cpu,
        "info": info,
        "layers": GPULayersList([GPULayers("0", "CUDA", (1,))]),
        "group": GPULayers("0", "CUDA", (1,)),
        "port": ml.RunnerAtPort(1),
    }
    for name in ml.__all__:
        thing = getattr(ml, name)
        if inspect.isfunction(thing) or is_dataclass(thing):
            things[name] = thing
    return things


def test_wrong_numbers_of_arguments_everywhere(backend: Backend):
    """Also of methods that only the backends and executables of ggml have."""
    tried = 0
    for name, thing in public_things(backend).items():
        whole = callable(thing)
        for method in [""] if whole else methods(type(thing), "close"):
            function: Any = thing if whole else getattr(thing, method)
            wrong: list[tuple[tuple[int, ...], dict[str, int]]] = [((), {"there_is_none": 3})]
            parameters = inspect.signature(function).parameters.values()
            if any(p.default is p.empty and p.kind <= p.POSITIONAL_OR_KEYWORD for p in parameters):
                wrong.append(((), {}))
            if all(p.kind is not p.VAR_POSITIONAL for p in parameters):
                wrong.append(((1,) * (len(parameters) + 1), {}))
            for args, kwargs in wrong:
                with pytest.raises(ArgumentError) as caught:
                    function(*args, **kwargs)
                assert isinstance(caught.value, TypeError), (name, method)
                tried += 1
    assert tried > 300


@pytest.mark.parametrize("wrong", WRONG)
def test_inner_methods_of_backends_and_executables(backend: Backend, wrong: Any):
    made: Any = backend
    executable: Any = backend.compile(backend.new_context().graph, ())
    for call in (
        lambda: made.write(wrong, b""),
        lambda: made.batches_to_reserve(2, wrong or 3),
        lambda: executable.value(wrong),
    ):
        with pytest.raises(Error):
            call()


def test_functions():
    source = MemorySource(METADATA, {"w": normal(4, 8)})
    functions: list[Callable[[Any], object]] = [
        lambda x: ml.new_backend(x),
        lambda x: ml.new_backend(source, name=x),
        lambda x: ml.register_backend(x, x),
        lambda x: ml.dump(x),
        lambda x: ml.get_devices_from_runner(x),
        lambda x: ml.by_library([x]),
        lambda x: ml.by_performance([x]),
        lambda x: ml.by_free_memory([x, x]),
        lambda x: ml.flash_attention_supported([x]),
        lambda x: ml.get_visible_devices_env([x]),
        lambda x: ml.library_paths([x]),
        lambda x: ml.without_duplicates([x]),
        lambda x: ml.gpu_layers_from_split([x], 2, 2),
        lambda x: GPULayers("0", "CUDA", (x,)),
        lambda x: GPULayersList([x]),
    ]
    for call in functions:
        for wrong in ("a", None, 1.5, object()):
            with pytest.raises(Error):
                call(wrong)


@pytest.mark.parametrize("wrong", ["a", 3, {}, object()])
def test_parameters_of_another_type(wrong: Any):
    with pytest.raises(ConfigError, match="it must be BackendParams"):
        ml.new_backend(MemorySource(METADATA, {}), wrong)


def test_what_no_backend_is():
    with pytest.raises(Unsupported, match="1 to 1024 ops, not 'a'"):
        ml.new_backend(MemorySource(METADATA, {})).new_context_size("a")  # type: ignore[arg-type]


@pytest.mark.parametrize("arguments", [(), (5,), (5, ["a"]), ({}, 5), ({}, ["a"]), ({}, [[]])])
def test_what_no_interface_is(arguments: Any):
    check: Any = ml.check_interface
    with pytest.raises(ArgumentError, match="check_interface"):
        check(*arguments)


def test_out_of_memory_is_part_of_the_interface():
    from ggmodel import errors

    assert ml.OutOfMemory is errors.OutOfMemory and "OutOfMemory" in ml.__all__


@pytest.mark.parametrize("flash", [False, True])
@pytest.mark.parametrize(
    ("scale", "softcap"),
    [(np.nan, 0.0), (np.inf, 0.0), (1.0, np.nan), (1.0, -1.0), (1.0, np.inf)],
)
def test_attention_scales_by_finite_numbers(
    ctx: Context, flash_backend: Backend, flash: bool, scale: float, softcap: float
):
    if flash:
        ctx = flash_backend.new_context()
    q = ctx.input().zeros(DType.F32, 8, 2, 3)
    with pytest.raises(TensorError, match=r"scale .*finite") as caught:
        q.scaled_dot_product_attention(q, q, scale=scale, softcap=softcap)
    assert "test_arguments.py" in str(caught.value)


@pytest.mark.parametrize("name", [["ggml"], {}, None, 5])
def test_a_backend_has_a_name(name: Any):
    with pytest.raises(Unsupported, match="there is no backend"):
        ml.new_backend(MemorySource(METADATA, {}), name=name)
