"""The processes that a test has started, and what they start in their turn."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path


def descendants(of: int) -> dict[int, str]:
    """Process id → command line of all processes below one."""
    children, commands = defaultdict[int, list[int]](list), dict[int, str]()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            state = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state[0] != "Z":
            children[int(state[1])].append(int(folder.name))
            commands[int(folder.name)] = command
    found, left = dict[int, str](), [of]
    while left:
        for child in children[left.pop()]:
            found[child] = commands[child]
            left.append(child)
    return found


def runners() -> list[int]:
    """Process ids of the models that run below this process."""
    return [id for id, command in descendants(os.getpid()).items() if "runners.process" in command]
