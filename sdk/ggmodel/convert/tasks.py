"""Adapters that a checkpoint has within its own tensors, one for each task: jina-embeddings-v3.

Source of the layout: jinaai/xlm-roberta-flash-implementation, modeling_lora.py. Each weight has all
tasks' matrices, those of a linear layer A [tasks, rank, in] and B [tasks, out, rank], with the
change B·A, and those of an embedding A [tasks, rows, rank] and B [tasks, rank, width], with the
change A·B; both times alpha / rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ConfigError, FormatError
from ..gguf_file import MemorySource
from ..model import Model
from ..runner.loading.adapters import PROMPT, TASK
from .checkpoint import Checkpoint, tasks_of
from .peft import Factors, in_file, open_peft, positive

_A, _B = (f".parametrizations.weight.0.lora_{x}" for x in "AB")


def open_in_folder(path: Path, model: Model) -> MemorySource | None:
    """The adapter of PEFT in a folder, or of a task, FOLDER/TASK, in llama.cpp's layout; None if
    the path is neither. Errors are those of `open_peft` and `open_task`."""
    folder, task = (path, "") if path.is_dir() else (path.parent, path.name)
    if tasks_of(folder):
        return open_task(folder, task, model)
    return open_peft(path, model) if path.is_dir() else None


def open_task(folder: Path, task: str, model: Model) -> MemorySource:
    """The adapter of a task in the layout of llama.cpp's files, F32, with the task's instruction as
    `adapter.lora.prompt_prefix`.

    Args:
        folder: of the checkpoint.
        task: one of `tasks_of(folder)`.
        model: the architecture with its tensors.

    Raises:
        ConfigError: there is no such task; lists those that there are.
        FormatError: a file is missing or damaged, or a tensor fits no module of the model.
    """
    tasks = tasks_of(folder)
    if task not in tasks:
        raise ConfigError(
            f"{folder} has no adapter {task!r:.80}; it has one for each of: {', '.join(tasks)}. "
            f"Name one behind the folder: {folder / tasks[0]}"
        )
    with closing(Checkpoint.open(folder)) as checkpoint:
        file, config = folder / "config.json", checkpoint.config
        alpha = float(positive(config.get("lora_alpha", 1), "lora_alpha", file))
        rank = positive(config.get("lora_rank", 4), "lora_rank", file)
        factors = _factors(checkpoint, tasks.index(task), len(tasks), rank)
        about = {TASK: task}
        if (instruction := instructions_of(config, file).get(task)) is not None:
            about[PROMPT] = instruction
        return in_file(model, factors, alpha, folder / task, about)


def instructions_of(config: Mapping[str, Any], file: Path) -> dict[str, str]:
    """The text that goes before others by the name of their task; none without.

    Raises:
        FormatError: they are no texts.
    """
    texts = config.get("task_instructions") or {}
    if not isinstance(texts, Mapping) or not all(isinstance(t, str) for t in texts.values()):
        raise FormatError(f"{file}: task_instructions should be texts by tasks; get it again")
    return dict(texts)


def _factors(
    checkpoint: Checkpoint, number: int, tasks: int, rank: float
) -> dict[str, list[Factors]]:
    """The changes for a task by the checkpoint's names of tensors."""
    factors: dict[str, list[Factors]] = {}
    for name in checkpoint.tensors:
        weight = f"{name.removesuffix(_A)}.weight"
        if not name.endswith(_A):
            continue
        other = f"{name.removesuffix(_A)}{_B}"
        w = checkpoint.stored(weight).shape
        shapes = checkpoint.stored(name).shape, checkpoint.stored(other).shape
        if len(w) != 2 or shapes not in (
            ((tasks, rank, w[1]), (tasks, w[0], rank)),
            ((tasks, w[0], rank), (tasks, rank, w[1])),
        ):
            raise FormatError(
                f"{checkpoint.folder}: {name} {list(shapes[0])} and lora_B {list(shapes[1])} are "
                f"not {tasks} changes of rank {rank} of {weight} {list(w)}; get the files again"
            )
        a, b = (checkpoint.array(n)[number].astype(np.float32) for n in (name, other))
        linear = a.shape == (rank, w[1])
        factors[weight] = [Factors(b, a) if linear else Factors(a, b, None, False, True)]
    if not factors:
        raise FormatError(f"{checkpoint.folder} has no tensors NAME{_A}; get the files again")
    return factors
