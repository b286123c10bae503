"""Shared by the scripts for Python: python NAME.py URL ASSETS SCRIPTED.

URL serves stories and shapes. The model of SCRIPTED calls `paint` where that is among the tools,
and then tells the result.
"""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from typing import Any

url, assets, scripted = sys.argv[1:]
ASK = "Tell me a story about a dog."
SEE = "what is in the picture?"
PICTURE = base64.b64encode(Path(assets, "scene.png").read_bytes()).decode()
ARGUMENTS: dict[str, Any] = {"colour": "blue"}
COLOUR: dict[str, Any] = {
    "type": "object",
    "properties": {"colour": {"type": "string", "enum": ["red", "blue"]}},
    "required": ["colour"],
    "additionalProperties": False,
}
RESULT = "secret-42"


def ok(client: str, *columns: str) -> None:
    """A line for cells of the table in docs/serving.md."""
    for column in columns:
        print(f"ok {client}: {column}")
