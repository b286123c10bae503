"""`ggmodel devices` as printed; what it finds is tested in tests/ml."""

from __future__ import annotations

import json
import re

from ggmodel import native
from ggmodel.ml import system_info
from ggmodel.ml.ggml.hardware import discover


def test_devices(program):
    ran = program("devices")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "\x1b" not in ran.stdout
    assert ran.stdout.startswith(f"ggml {native.version} in {native.prefix}\nbackends: ")
    known = native.describe()
    for row in (
        f"description  {re.escape(known['devices']['CPU'])}",
        f"threads      {system_info().thread_count}",
        r"memory       \d+\.\d\d [GT]iB free of \d+\.\d\d [GT]iB",
        f"features     .*{next(iter(known['features']))}",
    ):
        assert re.search(f"^{row}", ran.stdout, re.M), row


def test_devices_as_json(program):
    shown = json.loads(program("devices", "--json").stdout)
    known = native.describe()
    assert shown["ggml"] == {k: known[k] for k in shown["ggml"]}
    assert shown["ggml"].keys() == {"version", "commit", "prefix", "backends", "features"}
    assert shown["system"]["threads"] == system_info().thread_count
    cpu = next(d for d in shown["devices"] if d["backend"] == "CPU")
    info = next(d for d in discover(cpu=True) if d.library == "CPU")
    assert cpu == info.to_json() | {"free_memory": cpu["free_memory"]}
    assert cpu["total_memory"] == shown["system"]["total_memory"]
