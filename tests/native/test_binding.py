"""The binding describes its ggml, and a graph computes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from ggmodel import native
from ggmodel.errors import NativeError
from ggmodel.gguf_file.types import DType
from ggmodel.native import ffi, lib


def test_the_type_table_is_ggmls() -> None:
    known = {}
    for number in range(lib.GGML_TYPE_COUNT):
        # Numbers of types that were removed have no size.
        if size := lib.ggml_type_size(number):
            name = ffi.string(lib.ggml_type_name(number)).decode().upper()
            known[number] = (name, lib.ggml_blck_size(number), size)
    assert {t.value: (t.name, t.block_size, t.type_size) for t in DType} == known


def test_the_structs_are_ggmls() -> None:
    parameters = ffi.new("struct ggml_init_params *", {"mem_size": 1 << 12, "no_alloc": True})
    ctx = lib.ggml_init(parameters[0])
    tensor = lib.ggml_new_tensor_2d(ctx, lib.GGML_TYPE_F16, 5, 7)
    lib.ggml_set_name(tensor, b"a tensor")
    lib.ggml_set_output(tensor)
    assert list(tensor.ne) == [5, 7, 1, 1]
    assert list(tensor.nb) == [2, 10, 70, 70]
    assert ffi.string(tensor.name) == b"a tensor"
    assert tensor.flags == lib.GGML_TENSOR_FLAG_OUTPUT
    assert tensor.type == lib.GGML_TYPE_F16
    assert tensor.src[lib.GGML_MAX_SRC - 1] == ffi.NULL
    assert len(tensor.op_params) * 4 == lib.GGML_MAX_OP_PARAMS
    lib.ggml_free(ctx)


def test_a_graph_computes() -> None:
    n, k, m = 3, 8, 5
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((m, k), dtype=np.float32)
    x = rng.standard_normal((n, k), dtype=np.float32)

    parameters = ffi.new("struct ggml_init_params *", {"mem_size": 1 << 20, "no_alloc": True})
    ctx = lib.ggml_init(parameters[0])
    inputs = [lib.ggml_new_tensor_2d(ctx, lib.GGML_TYPE_F32, k, rows) for rows in (m, n)]
    for tensor in inputs:
        lib.ggml_set_input(tensor)
    result = lib.ggml_mul_mat(ctx, *inputs)
    assert result
    graph = lib.ggml_new_graph(ctx)
    assert lib.ggml_build_forward_expand(graph, result)

    device = lib.ggml_backend_dev_by_type(lib.GGML_BACKEND_DEVICE_TYPE_CPU)
    backend = lib.ggml_backend_dev_init(device, ffi.NULL)
    allocator = lib.ggml_gallocr_new(lib.ggml_backend_get_default_buffer_type(backend))
    with native.ThreadPool(2) as pool:
        pool.attach(backend)
        assert lib.ggml_gallocr_alloc_graph(allocator, graph)
        for tensor, array in zip(inputs, (weight, x), strict=True):
            lib.ggml_backend_tensor_set(tensor, ffi.from_buffer(array), 0, array.nbytes)
        assert lib.ggml_backend_graph_compute(backend, graph) == lib.GGML_STATUS_SUCCESS
        out = np.empty((n, m), np.float32)
        lib.ggml_backend_tensor_get(result, ffi.from_buffer(out), 0, out.nbytes)
        lib.ggml_gallocr_free(allocator)
        lib.ggml_backend_free(backend)
    lib.ggml_free(ctx)
    np.testing.assert_allclose(out, x @ weight.T, rtol=1e-5)


def test_a_function_that_this_build_lacks_is_named() -> None:
    cpu = lib.ggml_backend_reg_by_name(b"CPU")
    assert native.proc(cpu, "ggml_backend_set_n_threads")
    with pytest.raises(NativeError, match=r"CPU backend .* has no ggml_fly"):
        native.proc(cpu, "ggml_fly")
    with pytest.raises(NativeError, match="lacks the backend"):
        native.proc(lib.ggml_backend_reg_by_name(b"abacus"), "ggml_fly")


def test_a_description_for_bug_reports() -> None:
    described = native.describe()
    assert described["version"] == native.version
    assert "CPU" in described["backends"]
    assert list(described["devices"])
    assert described["features"]


def test_ggml_logs_to_python() -> None:
    # In a new process: the full context writes a warning.
    code = """
import logging
from ggmodel.native import ffi, lib
logging.basicConfig(format="%(levelname)s %(name)s %(message)s")
ctx = lib.ggml_init(ffi.new("struct ggml_init_params *", {"mem_size": 1 << 10})[0])
while lib.ggml_new_tensor_1d(ctx, 0, 1):
    pass
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.startswith("WARNING ggmodel.ggml ggml_new_object: not enough space")


def test_messages_at_the_end_of_python_reach_stderr() -> None:
    code = """
import atexit
@atexit.register
def after_the_binding_was_detached():
    ctx = lib.ggml_init(ffi.new("struct ggml_init_params *", {"mem_size": 1 << 10})[0])
    while lib.ggml_new_tensor_1d(ctx, 0, 1):
        pass
from ggmodel.native import ffi, lib
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.startswith("ggml_new_object: not enough space")


def test_an_abort_where_nobody_waits_for_it_is_printed() -> None:
    code = """
from ggmodel.native import ffi, lib
lib.ggml_backend_reg_get(1 << 40)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode < 0
    assert "GGML_ASSERT(index < ggml_backend_reg_count()) failed" in done.stderr


def test_importing_the_package_does_not_load_ggml() -> None:
    code = "import ggmodel, sys; sys.exit('ggmodel.native' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
