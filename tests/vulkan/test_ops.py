"""The self-test of `ggmodel ggml build`, in which a device of Vulkan takes part."""

from __future__ import annotations

from ggmodel.ml.devices import DeviceInfo
from ggmodel.workbench.selftest import self_test


def test_it_computes_what_it_should(gpu: DeviceInfo):
    result = self_test()
    assert result.devices == ["CPU", gpu.name]
    assert result.worst < 1
