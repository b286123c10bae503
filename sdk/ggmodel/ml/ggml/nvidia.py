"""Versions of NVIDIA's devices, from the driver's library; ggml does not report them."""

from __future__ import annotations

import ctypes
from typing import Any

from ...platforms.libraries import CUDA_DRIVER

# CUdevice_attribute, in cuda.h
_COMPUTE_MAJOR = 75
_COMPUTE_MINOR = 76


def driver_library() -> Any:
    """The driver's library, or None without one."""
    try:
        return ctypes.CDLL(CUDA_DRIVER)
    except OSError:
        return None


def versions(driver: Any, pci_id: str) -> dict[str, int]:
    """The compute capability of one device and the CUDA version of the driver, as fields of
    `DeviceInfo`; empty if unknown.

    Args:
        driver: the result of `driver_library`.
        pci_id: "domain:bus:device.function".
    """
    device = ctypes.c_int()
    if driver is None or driver.cuInit(0):
        return {}
    if driver.cuDeviceGetByPCIBusId(ctypes.byref(device), pci_id.encode()):
        return {}
    major, minor, cuda = ctypes.c_int(-1), ctypes.c_int(-1), ctypes.c_int()
    driver.cuDeviceGetAttribute(ctypes.byref(major), _COMPUTE_MAJOR, device)
    driver.cuDeviceGetAttribute(ctypes.byref(minor), _COMPUTE_MINOR, device)
    driver.cuDriverGetVersion(ctypes.byref(cuda))  # 12040 is 12.4
    return {
        "compute_major": major.value,
        "compute_minor": minor.value,
        "driver_major": cuda.value // 1000,
        "driver_minor": cuda.value % 1000 // 10,
    }
