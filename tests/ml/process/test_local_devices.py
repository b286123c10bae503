"""Devices of this machine that take the process down which lists or uses them."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from ggmodel import native
from ggmodel.cli import app
from ggmodel.errors import ComputeError
from ggmodel.ml.process import RunnerProcess, local_devices
from ggmodel.ml.process.conversation import NoAnswer

# A child with three GPUs: the second ends the process that uses it, the third is refused.
CHILD = """
import os, sys
from ggmodel.errors import ComputeError
from ggmodel.ml import DeviceInfo
from ggmodel.ml.ggml import hardware, memory
from ggmodel.ml.process import child

FAULT = {fault!r}
real = hardware.discover

def die(reason):
    print(reason, file=sys.stderr, flush=True)
    os.abort()

def discover(cpu=False):
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1,2")
    ids = [n for n in visible.split(",") if n]
    if FAULT == "always" or (FAULT == "listing" and ids):
        die("/build/ggml-cuda.cu:7: no driver")
    gpus = [
        DeviceInfo(str(i), "CUDA", name="CUDA" + str(i), filter_id=n) for i, n in enumerate(ids)
    ]
    return [*(real(cpu=True) if cpu else ()), *gpus]

class Device:
    def __init__(self, info, handle):
        assert os.environ["GGML_CUDA_INIT"] == "1"
        if info.filter_id == "1":
            die("/build/ggml-cuda.cu:99: an illegal instruction")
        if info.filter_id == "2":
            raise ComputeError("the device CUDA2 could not be initialised")

    def close(self):
        pass

hardware.discover = discover
memory.Device, hardware.by_name = Device, lambda info: None
child.main(int(sys.argv[1]), int(sys.argv[2]))
"""


@pytest.fixture
def fault(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    popen = subprocess.Popen
    code = CHILD.format(fault=request.param)

    def patched(command: list[str], **options: Any) -> object:
        return popen([command[0], "-c", code, *command[-2:]], **options)

    monkeypatch.setattr("ggmodel.ml.process.conversation.subprocess.Popen", patched)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return request.param


def test_this_machine():
    local = local_devices()
    assert local.ggml == native.describe()
    assert "CPU" in [d.name for d in local.devices]


@pytest.mark.parametrize("fault", [""], indirect=True)
def test_devices_that_cannot_be_used_are_left_out(fault: str):
    local = local_devices()
    assert [d.name for d in local.devices] == ["CPU", "CUDA0"]
    assert local.left_out == {
        "CUDA1": "its process ended by SIGABRT: ggml-cuda.cu:99: an illegal instruction",
        "CUDA2": "the device CUDA2 could not be initialised",
    }


@pytest.mark.parametrize("fault", [""], indirect=True)
def test_a_device_that_does_not_answer(fault: str, monkeypatch: pytest.MonkeyPatch):
    request = RunnerProcess.request

    def silent(self: RunnerProcess, kind: str, *args: Any, **options: Any) -> Any:
        if kind == "initialise":
            raise NoAnswer
        return request(self, kind, *args, **options)

    monkeypatch.setattr(RunnerProcess, "request", silent)
    assert local_devices(77).left_out["CUDA0"] == "its process did not answer in 77 s"


@pytest.mark.parametrize("fault", ["listing"], indirect=True)
def test_without_those_that_crash_the_list(fault: str):
    local = local_devices()
    assert [d.name for d in local.devices] == ["CPU"]
    assert local.left_out == {
        "CUDA, ROCm": "its process ended by SIGABRT: ggml-cuda.cu:7: no driver"
    }


@pytest.mark.parametrize("fault", ["always"], indirect=True)
def test_no_list_at_all(fault: str):
    with pytest.raises(ComputeError, match=r"cannot list this machine's devices: its process "):
        local_devices()


@pytest.mark.slow
@pytest.mark.parametrize("fault", [""], indirect=True)
def test_the_command_says_what_is_left_out(fault: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        app(["devices"])
    shown = capsys.readouterr().out
    assert "\nCUDA0\n" in shown and "\nCUDA2\n" not in shown
    assert "CUDA1 cannot be used: its process ended by SIGABRT: ggml-cuda.cu:99: an" in shown
    with pytest.raises(SystemExit):
        app(["devices", "--json"])
    assert json.loads(capsys.readouterr().out)["left_out"].keys() == {"CUDA1", "CUDA2"}
