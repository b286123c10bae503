"""The bill of materials: what is installed with ggmodel, and what its files bring, as CycloneDX."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import Refused, run
from .licences import UNWANTED


def make(python: Path, epoch: int, bundled: Iterable[str]) -> str:
    """The bill as JSON; the same for the same environment.

    Args:
        python: of an environment in which ggmodel is installed.
        epoch: the time of the bill, in seconds since 1970.
        bundled: parts that the wheel brings.

    Raises:
        Refused: it cannot be made, is not valid, or lacks ggmodel.
    """
    env = os.environ | {"SOURCE_DATE_EPOCH": str(epoch)}
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible"]
    bill = json.loads(run([*command, python], env=env))
    return json.dumps(completed(bill, bundled), indent=2, sort_keys=True) + "\n"


def completed(bill: dict[str, Any], bundled: Iterable[str]) -> dict[str, Any]:
    """The bill of an environment as that of ggmodel, which is one of its components.

    Raises:
        Refused: it is none of them, or depends on nothing.
    """
    named = {c["name"].lower(): c for c in bill["components"]}
    if "ggmodel" not in named:
        raise Refused("ggmodel is not in the bill of materials; was it installed?")
    main = named["ggmodel"]
    main.pop("externalReferences", None)  # the path of a file of this machine
    unwanted = {named[n]["bom-ref"] for n in ("ggmodel", *UNWANTED) if n in named}
    parts = [
        {
            "type": "library",
            "bom-ref": f"bundled-{name}",
            "name": name,
            "licenses": [{"license": {"id": "MIT"}}],
        }
        for name in sorted(bundled)
    ]
    kept = [c for c in bill["components"] if c["bom-ref"] not in unwanted]
    bill["metadata"]["component"] = main | {"type": "library"}
    bill["components"] = kept + parts
    listed = {c["bom-ref"] for c in (main, *kept)}
    edges = {e["ref"]: e.get("dependsOn", []) for e in bill["dependencies"] if e["ref"] in listed}
    if not edges.get(main["bom-ref"]):
        raise Refused("the bill of materials has nothing that ggmodel depends on")
    edges[main["bom-ref"]] = [*edges[main["bom-ref"]], *(p["bom-ref"] for p in parts)]
    bill["dependencies"] = [
        {"ref": ref, "dependsOn": sorted(r for r in refs if r not in unwanted)}
        for ref, refs in sorted(edges.items())
    ]
    return bill
