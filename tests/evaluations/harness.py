"""lm-eval in a process: tasks of all kinds of requests, and what it understood of the answers."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

SECONDS = 240.0
BEGINNINGS = ["Once upon a time there was a", "The dog", "She was happy and", "One day, a big"]
GOING_ON = [" little girl", " barked at the cat.", " went home.", " bird flew away"]
WORDS = [" girl", " stone", " boy"]
TASKS = "likely", "choice", "rolling", "written"
ENDS = [".", "\n"]
MOST = 12


class Done(NamedTuple):
    """Findings of lm-eval.

    Attributes:
        results: by task, then by metric. samples: by task, in the order of the documents.
    """

    results: dict[str, dict[str, Any]]
    samples: dict[str, list[dict[str, Any]]]

    def told(self, task: str) -> list[list[Any]]:
        """The answers to the requests of each document, as lm-eval understood them."""
        return [[one[0] for one in sample["resps"]] for sample in self.samples[task]]


def make_tasks(folder: Path) -> None:
    """Tasks of all kinds of requests. JSON is YAML, too."""

    def task(name: str, kind: str, documents: list[dict[str, Any]], **more: Any) -> None:
        lines = folder / f"{name}.jsonl"
        lines.write_text("".join(json.dumps(one) + "\n" for one in documents))
        made = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(lines)}},
            "test_split": "test",
            "output_type": kind,
            "doc_to_text": "{{text}}",
            "target_delimiter": "",
            **more,
        }
        (folder / f"{name}.yaml").write_text(json.dumps(made))

    pairs = zip(BEGINNINGS, GOING_ON, strict=True)
    continued = [{"text": text, "more": more} for text, more in pairs]
    metrics = [{"metric": "perplexity"}, {"metric": "acc"}]
    task("likely", "loglikelihood", continued, doc_to_target="{{more}}", metric_list=metrics)
    chosen = [{"text": text, "words": WORDS, "right": i % 3} for i, text in enumerate(BEGINNINGS)]
    choice = {"doc_to_choice": "{{words}}", "doc_to_target": "{{right}}"}
    task("choice", "multiple_choice", chosen, **choice, metric_list=[{"metric": "acc"}])
    whole = [{"text": a + b} for a, b in zip(BEGINNINGS, GOING_ON, strict=True)]
    rolling = {"doc_to_text": "", "doc_to_target": "{{text}}"}
    words = [{"metric": "word_perplexity"}]
    task("rolling", "loglikelihood_rolling", whole, **rolling, metric_list=words)
    ends = {"until": ENDS, "max_gen_toks": MOST, "do_sample": False}
    wanted = {"doc_to_target": "{{more}}", "metric_list": [{"metric": "exact_match"}]}
    task("written", "generate_until", continued, generation_kwargs=ends, **wanted)


def evaluated(program: Sequence[str], folder: Path, model: str, told: str, batch: int = 1) -> Done:
    """All tasks, evaluated without a network.

    Args:
        program: lm-eval. folder: a new one, for its files.
        model, told, batch: `--model`, `--model_args` and `--batch_size`.
    """
    (folder / "tasks").mkdir(parents=True)
    make_tasks(folder / "tasks")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("GGMODEL_", "PYTHON"))}
    environment |= {"HF_HOME": str(folder / "home"), "HF_DATASETS_OFFLINE": "1"}
    environment |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [*program, "run", "--model", model, "--model_args", told]
    command += ["--batch_size", str(batch), "--tasks", ",".join(TASKS)]
    command += ["--include_path", str(folder / "tasks")]
    command += ["--output_path", str(folder / "found"), "--log_samples"]
    asked: Any = {"env": environment, "cwd": folder, "timeout": SECONDS}
    ended = subprocess.run(command, text=True, capture_output=True, check=False, **asked)
    assert ended.returncode == 0, ended.stderr[-4000:]
    (results,) = (folder / "found").rglob("results_*.json")
    samples = {}
    for file in (folder / "found").rglob("samples_*.jsonl"):
        listed = [json.loads(line) for line in file.read_text().splitlines()]
        samples[file.name.split("_")[1]] = sorted(listed, key=lambda one: one["doc_id"])
    return Done(json.loads(results.read_text())["results"], samples)
