"""Versions of NVIDIA's devices, from the driver's library; ggml does not report them."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

# CUdevice_attribute, in cuda.h
_COMPUTE_MAJOR = 75
_COMPUTE_MINOR = 76


@dataclass(frozen=True)
class Versions:
    """The compute capability (−1 if unknown), and the CUDA version of the driver (0 if unknown)."""

    compute_major: int = -1
    compute_minor: int = -1
    driver_major: int = 0
    driver_minor: int = 0


def driver_library() -> Any:
    """The driver's library, or None without one."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def versions(driver: Any, pci_id: str) -> Versions:
    """The versions of one device.

    Args:
        driver: the result of `driver_library`.
        pci_id: "domain:bus:device.function".
    """
    device = ctypes.c_int()
    if driver is None or driver.cuInit(0):
        return Versions()
    if driver.cuDeviceGetByPCIBusId(ctypes.byref(device), pci_id.encode()):
        return Versions()
    major, minor, cuda = ctypes.c_int(-1), ctypes.c_int(-1), ctypes.c_int()
    driver.cuDeviceGetAttribute(ctypes.byref(major), _COMPUTE_MAJOR, device)
    driver.cuDeviceGetAttribute(ctypes.byref(minor), _COMPUTE_MINOR, device)
    driver.cuDriverGetVersion(ctypes.byref(cuda))  # 12040 is 12.4
    return Versions(major.value, minor.value, cuda.value // 1000, cuda.value % 1000 // 10)
