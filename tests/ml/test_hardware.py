"""The devices that a model is placed on, here stand-ins for the CPU."""

from __future__ import annotations

from contextlib import closing

import pytest

from ggmodel.errors import ConfigError
from ggmodel.ml import BackendParams, DeviceInfo, GPULayers, GPULayersList
from ggmodel.ml.ggml import hardware
from ggmodel.ml.ggml.hardware import Hardware
from ggmodel.native import lib


def test_a_model_is_placed_on_as_many_devices_as_ggml_takes(monkeypatch: pytest.MonkeyPatch):
    found = [DeviceInfo(str(i), "CUDA", name=f"CUDA{i}") for i in range(16)]
    cpu = lib.ggml_backend_dev_by_type(lib.GGML_BACKEND_DEVICE_TYPE_CPU)
    monkeypatch.setattr(hardware, "discover", lambda: found)
    monkeypatch.setattr(hardware, "by_name", lambda info: cpu)

    def placed(n: int) -> Hardware:
        layers = [GPULayers(d.id, d.library, (i,)) for i, d in enumerate(found[:n])]
        return Hardware(BackendParams(num_threads=1, gpu_layers=GPULayersList(layers)), 20)

    with closing(placed(15)) as most:
        assert [d.info.name for d in most.gpus] == [d.name for d in found[:15]]
    with pytest.raises(ConfigError, match=r"on 17 devices, the CPU .* computes on 16 at most"):
        placed(16)
