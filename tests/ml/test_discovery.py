"""The devices of the installed ggml, and descriptions of simulated ones."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from ggmodel import native
from ggmodel.ml import system_info
from ggmodel.ml.ggml import hardware
from ggmodel.native import ffi, lib

CPU, GPU, INTEGRATED = (
    lib.GGML_BACKEND_DEVICE_TYPE_CPU,
    lib.GGML_BACKEND_DEVICE_TYPE_GPU,
    lib.GGML_BACKEND_DEVICE_TYPE_IGPU,
)


def test_cpu():
    cpu = next(d for d in hardware.discover(cpu=True) if d.library == "CPU")
    assert (cpu.id, cpu.name, cpu.integrated, cpu.pci_id) == ("0", "CPU", False, "")
    assert cpu.description == native.describe()["devices"]["CPU"]
    assert cpu.total_memory == system_info().total_memory
    assert 0 < cpu.free_memory <= cpu.total_memory
    assert cpu.library_path[-1].startswith(str(native.prefix))


def test_without_the_cpu():
    with_cpu, without = hardware.discover(cpu=True), hardware.discover()
    assert [d.device_id for d in without] == [d.device_id for d in with_cpu if d.library != "CPU"]


class Registry:
    """ggml's list of devices, with simulated ones."""

    def __init__(self, *devices: tuple[str, str, int, str | None]):
        self.devices = devices  # library, name, type, pci id
        self._kept: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(lib, name)

    def ggml_backend_dev_count(self) -> int:
        return len(self.devices)

    def ggml_backend_dev_get(self, i: int) -> int:
        return i

    def ggml_backend_dev_backend_reg(self, i: int) -> int:
        return i

    def ggml_backend_reg_name(self, i: int) -> Any:
        return self._text(self.devices[i][0])

    def ggml_backend_dev_type(self, i: int) -> int:
        return self.devices[i][2]

    def ggml_backend_dev_get_props(self, i: int, props: Any) -> None:
        _, name, props.type, pci = self.devices[i]
        props.name = self._text(name)
        props.description = self._text(f"a {name}")
        props.memory_total, props.memory_free = 1000 + i, 500 + i
        props.device_id = ffi.NULL if pci is None else self._text(pci)

    def _text(self, text: str) -> Any:
        self._kept.append(ffi.new("char[]", text.encode()))
        return self._kept[-1]


@pytest.fixture
def _many_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry(
        ("CUDA", "CUDA0", GPU, "0000:C1:00.0"),
        ("CUDA", "CUDA1", GPU, None),
        ("MTL", "MTL0", INTEGRATED, None),
        ("RPC[10.0.0.2:50052]", "RPC0", GPU, None),
        ("RPC[10.0.0.3:50052]", "RPC1", GPU, None),
        ("BLAS", "BLAS", lib.GGML_BACKEND_DEVICE_TYPE_ACCEL, None),
        ("CPU", "CPU", CPU, None),
    )
    monkeypatch.setattr(hardware, "lib", registry)
    monkeypatch.setattr(hardware, "driver_library", lambda: Driver())
    for variable in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)


class Driver:
    """NVIDIA's driver library with one device, of capability 9.0, and CUDA 12.4."""

    failing = False

    def cuInit(self, flags: int) -> int:
        return 100 if self.failing else 0

    def cuDeviceGetByPCIBusId(self, device: Any, pci_id: bytes) -> int:
        device._obj.value = 5
        return 0 if pci_id == b"0000:c1:00.0" else 101

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: ctypes.c_int) -> int:
        assert device.value == 5
        value._obj.value = {75: 9, 76: 0}[attribute]
        return 0

    def cuDriverGetVersion(self, value: Any) -> int:
        value._obj.value = 12040
        return 0


@pytest.mark.usefixtures("_many_devices")
def test_many_devices():
    found = {d.name: d for d in hardware.discover(cpu=True)}
    assert {n: (d.library, d.id) for n, d in found.items()} == {
        "CUDA0": ("CUDA", "0"),
        "CUDA1": ("CUDA", "1"),
        "MTL0": ("Metal", "0"),
        "RPC0": ("RPC", "0"),
        "RPC1": ("RPC", "1"),
        "BLAS": ("BLAS", "0"),
        "CPU": ("CPU", "0"),
    }
    assert [n for n, d in found.items() if d.integrated] == ["MTL0"]
    cuda = found["CUDA0"]
    assert (cuda.pci_id, cuda.compute(), cuda.driver()) == ("0000:c1:00.0", "9.0", "12.4")
    assert (cuda.total_memory, cuda.free_memory) == (1000, 500)
    assert cuda.filter_id == ""
    assert found["CUDA1"].compute() == found["CUDA1"].pci_id == ""
    assert [d.name for d in hardware.discover()] == ["CUDA0", "CUDA1", "MTL0", "RPC0", "RPC1"]


@pytest.mark.usefixtures("_many_devices")
def test_the_filter_id_is_the_one_before_devices_were_hidden(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-1a2b")
    found = hardware.discover()
    assert [d.filter_id for d in found] == ["3", "GPU-1a2b", "", "", ""]


def test_versions_that_the_driver_does_not_tell():
    assert hardware.versions(None, "0000:c1:00.0") == {}
    assert hardware.versions(Driver(), "0000:c2:00.0") == {}
    failing = Driver()
    failing.failing = True
    assert hardware.versions(failing, "0000:c1:00.0") == {}
