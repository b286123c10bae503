"""Large batches: a device takes over products of weights that lie in system memory.

Only GPUs do so among ggml's devices. Here two workers are told to, by the entry that they leave
empty in ggml's table of functions of a device.
"""

from __future__ import annotations

import json
import subprocess
import sys

CODE = """
import json, sys
import numpy as np
from ggmodel.gguf_file import MemorySource
from ggmodel.ml import BackendParams, DType, GPULayers, GPULayersList, new_backend
from ggmodel.ml.process.workers import Workers
from ggmodel.native import ffi, lib

OFFLOAD = 11  # of the pointers in struct ggml_backend_device_i

@ffi.callback("bool(ggml_backend_dev_t, struct ggml_tensor *)")
def takes_over(device, op):
    return op.op == lib.GGML_OP_MUL_MAT and op.ne[1] >= 32

workers = Workers(60, print)
for endpoint in sys.argv[2:]:
    workers.connect(endpoint)
if sys.argv[1] == "offload":
    for name in (b"RPC0", b"RPC1"):
        table = ffi.cast("void **", lib.ggml_backend_dev_by_name(name))
        assert table[OFFLOAD] == ffi.NULL and table[OFFLOAD - 1] != ffi.NULL
        table[OFFLOAD] = ffi.cast("void *", takes_over)

random = np.random.default_rng(3)
weights = {f"blk.{i}.w.weight": random.normal(size=(64, 64)).astype(np.float32) for i in range(3)}
source = MemorySource({"general.architecture": "test", "test.block_count": 3}, weights)
layers = GPULayersList(GPULayers(str(i), "RPC", (i + 1,)) for i in range(2))
found = []
with new_backend(source, BackendParams(num_threads=1, gpu_layers=layers)) as backend:
    backend.load()
    names = {int(ffi.cast("intptr_t", d.backend)): d.name for d in backend.hardware.devices}
    for hint, columns in ((0, 64), (31, 64), (32, 64), (512, 64), (512, 31)):
        x = random.normal(size=(columns, 64)).astype(np.float32)
        with backend.new_context().set_batch_size(hint) as ctx, ctx.trace():
            products, y = [], ctx.input().from_floats(x)
            for i in range(3):
                products.append(y := backend.get(f"blk.{i}.w.weight").mulmat(y))
            ctx.forward(y)
            executable = backend.compile(ctx.graph, tuple(products))
            executable.run()
            sched = executable._compute._handle
            places = [
                lib.ggml_backend_sched_get_tensor_backend(sched, executable.tensor(p))
                for p in products
            ]
            want = x.astype(np.float64)
            for w in weights.values():
                want = want @ w.T.astype(np.float64)
            got = executable.value(y).reshape(want.shape)
            error = float(((got - want) ** 2).sum() / (want ** 2).sum())
            found.append([[names[int(ffi.cast("intptr_t", p))] for p in places], error])
            executable.close()
    print(json.dumps([backend.hardware.offloads, found]), flush=True)
import os
os._exit(0)  # a regular end would talk to the workers
"""

EXACT = 1e-10  # float32 sums in another order


def computed(pair: list, environment: dict[str, str], mode: str) -> tuple[bool, list]:
    """Whether devices take over products, and for each graph the places of its products and the
    error of its result."""
    command = [sys.executable, "-c", CODE, mode, *(w.endpoint for w in pair)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert ran.returncode == 0, ran.stderr[-3000:]
    offloads, found = json.loads(ran.stdout)
    assert all(error < EXACT for _, error in found), found
    return offloads, [places for places, _ in found]


def test_large_batches_leave_the_cpu(pair: list, rpc_environment: dict[str, str]):
    offloads, places = computed(pair, rpc_environment, "offload")
    at_home = ["CPU", "RPC0", "RPC1"]
    taken = ["RPC0", "RPC0", "RPC1"]
    # An unknown batch is a small one; whether a product is large is up to the device.
    assert offloads
    assert places == [at_home, at_home, taken, taken, at_home]


def test_devices_that_take_nothing_over(pair: list, rpc_environment: dict[str, str]):
    offloads, places = computed(pair, rpc_environment, "leave")
    assert not offloads
    assert places == [["CPU", "RPC0", "RPC1"]] * 5
