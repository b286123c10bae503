"""The text of memory reports."""

from __future__ import annotations

import logging

import pytest

from ggmodel.ml import Backend, BackendMemory, DeviceID, DeviceMemory

CPU = DeviceMemory("CPU", [1000, 24], [0, 500], 300)
GPU = DeviceMemory("CUDA0", [5000, 0], [7, 0], 1, device=DeviceID("0", "CUDA"))
MEMORY = BackendMemory(CPU, [GPU], input_weights=50)


def test_sizes_add_up_and_input_weights_are_no_device_s():
    assert CPU.size() == 1824
    assert GPU.size() == 5008
    assert MEMORY.size() == 1824 + 5008 + 50


def test_a_summary_has_a_line_for_each_device(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.DEBUG, "ggmodel.ml"):
        MEMORY.log(logging.DEBUG)
    assert caplog.messages == [
        "CUDA0: weights 5,000, cache 7, graph 1 bytes (unallocated)",
        "CPU: weights 1,024, cache 500, graph 300 bytes (unallocated)",
        "input weights 50, in all 6,882 bytes",
    ]
    assert {record.levelno for record in caplog.records} == {logging.DEBUG}


def test_a_backend_on_the_cpu_uses_no_devices(backend: Backend):
    assert backend.backend_devices() == []
