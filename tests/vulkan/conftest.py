"""`make test-vulkan` runs these in a process with a ggml that has Vulkan, on Mesa's software device
where there is no other."""

from __future__ import annotations

import pytest

from ggmodel.ml.devices import DeviceInfo
from ggmodel.ml.ggml.hardware import discover


@pytest.fixture(scope="session")
def gpu() -> DeviceInfo:
    """The first device that Vulkan drives."""
    found = [device for device in discover() if device.library == "Vulkan"]
    if not found:
        pytest.fail(
            "this ggml sees no device of Vulkan: `make test-vulkan` builds one that does",
            pytrace=False,
        )
    return found[0]
