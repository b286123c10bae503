"""A failing assert of ggml while a graph is built is an exception, without side effects."""

from __future__ import annotations

import gc
import re
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ggmodel import native
from ggmodel.native import ffi, lib

F32 = lib.GGML_TYPE_F32


@contextmanager
def context(size: int = 1 << 16) -> Iterator[Any]:
    parameters = ffi.new("struct ggml_init_params *")
    parameters.mem_size = size
    parameters.no_alloc = True
    ctx = lib.ggml_init(parameters[0])
    try:
        yield ctx
    finally:
        lib.ggml_free(ctx)


def matrix(ctx: Any, columns: int, rows: int) -> Any:
    tensor = lib.ggml_new_tensor_2d(ctx, F32, columns, rows)
    assert tensor, native.last_abort()
    return tensor


Op = Callable[[Any], Any]

WRONG: dict[str, tuple[Op, str]] = {
    "mul_mat": (
        lambda ctx: lib.ggml_mul_mat(ctx, matrix(ctx, 4, 2), matrix(ctx, 5, 2)),
        "GGML_ASSERT(ggml_can_mul_mat(a, b)) failed",
    ),
    "reshape": (
        lambda ctx: lib.ggml_reshape_1d(ctx, matrix(ctx, 4, 2), 7),
        "GGML_ASSERT(ggml_nelements(a) == ne0) failed",
    ),
    "add": (
        lambda ctx: lib.ggml_add(ctx, matrix(ctx, 4, 2), matrix(ctx, 3, 2)),
        "GGML_ASSERT(ggml_can_repeat(b, a)) failed",
    ),
    "set_prec": (
        lambda ctx: lib.ggml_mul_mat_set_prec(matrix(ctx, 4, 2), lib.GGML_PREC_F32),
        "GGML_ASSERT(a->op == GGML_OP_MUL_MAT) failed",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_failing_assert_returns_and_leaves_its_text(name: str) -> None:
    op, text = WRONG[name]
    with context() as ctx:
        assert not op(ctx)
        assert native.last_abort().endswith(text)
        assert re.search(r"ggml\.c:\d+: GGML_ASSERT", native.last_abort())


def test_a_call_that_goes_through_clears_the_text() -> None:
    with context() as ctx:
        assert not WRONG["add"][0](ctx)
        assert native.last_abort()
        assert lib.ggml_add(ctx, matrix(ctx, 4, 2), matrix(ctx, 4, 2))
        assert native.last_abort() == ""


def test_functions_that_return_nothing_tell_success() -> None:
    with context(1 << 20) as ctx:
        graph = lib.ggml_new_graph_custom(ctx, 1, False)
        assert graph
        a = matrix(ctx, 4, 2)
        assert lib.ggml_build_forward_expand(graph, lib.ggml_neg(ctx, a)) is True
        assert lib.ggml_graph_n_nodes(graph) == 1
        # The graph has room for one node.
        assert lib.ggml_build_forward_expand(graph, lib.ggml_exp(ctx, a)) is False
        assert "GGML_ASSERT" in native.last_abort()


def test_a_full_context_refuses_tensors() -> None:
    with context(1 << 12) as ctx:
        while lib.ggml_new_tensor_1d(ctx, F32, 1):
            pass
        assert not lib.ggml_new_tensor_2d(ctx, F32, 1, 1)
        assert "obj_new" in native.last_abort()


def test_a_thousand_times_without_a_leak() -> None:
    def fail_all() -> None:
        for op, text in WRONG.values():
            with context() as ctx:
                assert not op(ctx)
                assert native.last_abort().endswith(text)

    for _ in range(100):
        fail_all()
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(1000):
        fail_all()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    # 4,000 contexts of 64 KiB that are not freed would be 256,000 KiB.
    assert grown < 16_000


def test_each_thread_has_its_own_way_back() -> None:
    problems: list[str] = []
    together = threading.Barrier(len(WRONG) + 1, timeout=60)

    def fail(op: Op, text: str) -> None:
        together.wait()
        for _ in range(500):
            with context() as ctx:
                if op(ctx) or not native.last_abort().endswith(text):
                    problems.append(f"{text}: {native.last_abort()!r}")

    def succeed() -> None:
        together.wait()
        for _ in range(500):
            with context() as ctx:
                if not lib.ggml_mul_mat(ctx, matrix(ctx, 4, 2), matrix(ctx, 4, 3)):
                    problems.append(f"aborted: {native.last_abort()!r}")

    threads = [threading.Thread(target=fail, args=wrong, daemon=True) for wrong in WRONG.values()]
    threads.append(threading.Thread(target=succeed, daemon=True))
    for thread in threads:
        thread.start()
    end = time.monotonic() + 60
    for thread in threads:
        thread.join(max(0, end - time.monotonic()))
        assert not thread.is_alive()
    assert problems == []


def test_every_op_of_ggml_can_be_called() -> None:
    """Every function of the headers that returns a tensor exists, guarded."""
    text = (native.prefix / "include" / "ggml.h").read_text()
    declared = set(re.findall(r"GGML_API\s+struct\s+ggml_tensor\s*\*\s*(ggml_\w+)\s*\(", text))
    assert len(declared) > 150
    variadic = {"ggml_format_name"}
    # Declared, but in no library.
    missing = {name for name in declared - variadic if not hasattr(lib, name)}
    libraries = b"".join(p.read_bytes() for p in native.prefix.glob("lib*/libggml-base.so"))
    assert {name for name in missing if name.encode() + b"\0" in libraries} == set()


def test_no_function_that_takes_a_context_aborts_the_process() -> None:
    """With a context that is full, every constructor of a tensor fails, and none ends Python."""
    with context(1 << 20) as ctx:
        a = lib.ggml_new_tensor_1d(ctx, F32, 1)
        while lib.ggml_new_tensor_1d(ctx, F32, 1):
            pass
        ops = 0
        for name in dir(lib):
            if not name.startswith("ggml_") or name.startswith("ggml_get_"):
                continue
            kind = ffi.typeof(getattr(lib, name)) if callable(getattr(lib, name)) else None
            if kind is None or kind.result.cname != "struct ggml_tensor *":
                continue
            if [t.cname for t in kind.args] == ["struct ggml_context *", "struct ggml_tensor *"]:
                assert getattr(lib, name)(ctx, a) == ffi.NULL, name
                assert native.last_abort(), name
                ops += 1
        assert ops > 40
