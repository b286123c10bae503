"""Writes `convert/reference_keys.json`: the keys of a config.json that transformers reads.

    python -m tests.convert.make_reference_keys [FOLDER OF TRANSFORMERS]

Its source is read, not imported: neither torch nor an installed transformers is needed.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

from ggmodel.convert.keys import TABLE
from ggmodel.model import find
from ggmodel.model.registry import supported
from ggmodel.workbench.reference_keys import keys_read


def served() -> list[str]:
    """The classes of transformers that built-in architectures serve."""
    return sorted(
        {name for architecture in supported() for name in find(architecture).hf_architectures}
    )


def table(root: Path) -> dict[str, Any]:
    said = re.search(r'^__version__ = "(.+)"', (root / "__init__.py").read_text(), re.M)
    assert said is not None, f"{root} is no folder of transformers"
    keys = {name: keys_read(name, root=root) for name in served()}
    lacking = [name for name, found in keys.items() if not found]
    assert not lacking, f"transformers {said.group(1)} lacks {lacking}"
    return {"transformers": said.group(1), "keys": keys}


def main() -> None:
    if len(sys.argv) > 1:
        root = Path(sys.argv[1])
    else:
        spec = importlib.util.find_spec("transformers")
        assert spec is not None and spec.origin is not None, "give the folder of transformers"
        root = Path(spec.origin).parent
    TABLE.write_text(json.dumps(table(root), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
