"""lm-eval itself, as people run it, against `ggmodel serve`: see `make test-lm-eval`.

Its numbers are those that the model gives in this process. It reads its tasks and their documents
from files, and asks nothing but the server.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import ggmodel
from tests.serve.test_process import ASSETS
from tests.serving import running

LM_EVAL = Path(os.environ["LM_EVAL"])  # the program
pytestmark = pytest.mark.timeout(300)
STORIES = ASSETS / "stories.gguf"
SECONDS = 240.0
# Both compute a prompt alone, in the same batches; JSON keeps float32 to the last bit.
CLOSE = 1e-5
BEGINNINGS = ["Once upon a time there was a", "The dog", "She was happy and", "One day, a big"]
GOING_ON = [" little girl", " barked at the cat.", " went home.", " bird flew away"]
WORDS = [" girl", " stone", " boy"]


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
    ends = {"until": [".", "\n"], "max_gen_toks": 12, "do_sample": False}
    wanted = {"doc_to_target": "{{more}}", "metric_list": [{"metric": "exact_match"}]}
    task("written", "generate_until", continued, generation_kwargs=ends, **wanted)


@pytest.fixture(scope="module", params=["one", "many"])
def done(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("lm-eval")
    (folder / "tasks").mkdir()
    make_tasks(folder / "tasks")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("GGMODEL_", "PYTHON"))}
    environment |= {"HF_HOME": str(folder / "home"), "HF_DATASETS_OFFLINE": "1"}
    environment |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    batch, at_once = {"one": (1, 1), "many": (3, 2)}[request.param]
    with running(str(STORIES), "--threads", "1", "--gpu-layers", "0") as server:
        url = f"{server.url}/v1/completions"
        told = f"model=stories,base_url={url},tokenizer_backend=remote,tokenized_requests=True"
        told += ",custom_prefix_token_id=0"  # this vocabulary's first, which lm-eval takes for none
        command = [str(LM_EVAL), "run", "--model", "local-completions"]
        command += ["--model_args", f"{told},num_concurrent={at_once}"]
        command += ["--batch_size", str(batch), "--tasks", "likely,choice,rolling,written"]
        command += ["--include_path", str(folder / "tasks")]
        command += ["--output_path", str(folder / "found"), "--log_samples"]
        asked = {"env": environment, "cwd": folder, "timeout": SECONDS}
        ended = subprocess.run(command, text=True, capture_output=True, **asked)  # type: ignore[call-overload]
    assert ended.returncode == 0, ended.stderr[-4000:]
    (results,) = (folder / "found").rglob("results_*.json")
    samples = {}
    for file in (folder / "found").rglob("samples_*.jsonl"):
        listed = [json.loads(line) for line in file.read_text().splitlines()]
        samples[file.name.split("_")[1]] = sorted(listed, key=lambda one: one["doc_id"])
    return Done(json.loads(results.read_text())["results"], samples)


@pytest.fixture(scope="module")
def model() -> Iterator[ggmodel.LoadedModel]:
    with ggmodel.load(STORIES, threads=1, gpu_layers=0) as found:
        yield found


def likelihood(model: ggmodel.LoadedModel, text: str, more: str) -> tuple[float, bool]:
    """The log-probability of a continuation, and whether each of its tokens is the likeliest."""
    before = len(model.tokenize(text, add_special=False))
    ids = model.tokenize(text + more, add_special=False)
    scores, logits = model.score(ids)[before - 1 :], model.logits(ids)[before - 1 : -1]
    return float(np.sum(scores, dtype=np.float64)), logits.argmax(-1).tolist() == ids[before:]


def check(told: list[Any], wanted: list[tuple[float, bool]]) -> None:
    assert [float(one[0]) for one in told] == pytest.approx([w[0] for w in wanted], abs=CLOSE)
    assert [str(one[1]) == "True" for one in told] == [w[1] for w in wanted]


def test_continuations_have_the_model_s_log_probabilities(done: Done, model: ggmodel.LoadedModel):
    told = [one for (one,) in done.told("likely")]
    wanted = [likelihood(model, *pair) for pair in zip(BEGINNINGS, GOING_ON, strict=True)]
    check(told, wanted)
    perplexity = np.exp(-np.mean([logprob for logprob, _ in wanted]))
    assert done.results["likely"]["perplexity,none"] == pytest.approx(perplexity, rel=CLOSE)
    accuracy = np.mean([greedy for _, greedy in wanted])
    assert done.results["likely"]["acc,none"] == accuracy


def test_the_likeliest_word_is_chosen(done: Done, model: ggmodel.LoadedModel):
    right = 0
    for i, (text, told) in enumerate(zip(BEGINNINGS, done.told("choice"), strict=True)):
        wanted = [likelihood(model, text, word) for word in WORDS]
        check(told, wanted)
        right += int(np.argmax([one[0] for one in wanted])) == i % 3
    assert done.results["choice"]["acc,none"] == right / len(BEGINNINGS)


def test_whole_texts_have_the_model_s_perplexity(done: Done, model: ggmodel.LoadedModel):
    wanted, words = [], 0
    for text, more in zip(BEGINNINGS, GOING_ON, strict=True):
        ids = model.tokenize(text + more)
        assert ids[0] == 0
        wanted.append(float(np.sum(model.score(ids), dtype=np.float64)))
        words += len((text + more).split())
    told = [float(np.ravel(one[0])[0]) for one in done.told("rolling")]
    assert told == pytest.approx(wanted, abs=CLOSE)
    perplexity = np.exp(-sum(wanted) / words)
    assert done.results["rolling"]["word_perplexity,none"] == pytest.approx(perplexity, rel=CLOSE)


def test_texts_are_those_of_the_model(done: Done, model: ggmodel.LoadedModel):
    told = [one for (one,) in done.told("written")]
    wanted = [
        model.generate(
            model.tokenize(text, add_special=False), max_tokens=12, temperature=0, stop=[".", "\n"]
        ).text
        for text in BEGINNINGS
    ]
    assert told == wanted
    assert any(wanted)
