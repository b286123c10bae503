"""lm-eval itself, as people run it, with a server and with a model of its own: see
`make test-lm-eval`.

Its numbers are those that the model gives in this process. It reads its tasks and their documents
from files, and asks nothing but the server.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from tests.evaluations.checkpoints import CASES
from tests.evaluations.harness import (
    BEGINNINGS,
    ENDS,
    GOING_ON,
    MOST,
    TASKS,
    WORDS,
    Done,
    evaluated,
)
from tests.serve.test_process import ASSETS
from tests.serving import running

LM_EVAL = Path(os.environ["LM_EVAL"])  # the program
OWN = [str(LM_EVAL.parent / "python"), "-m", "ggmodel.compat.lm_eval"]
pytestmark = pytest.mark.timeout(300)
STORIES = ASSETS / "stories.gguf"
# Both compute a prompt alone, in the same batches; JSON keeps float32 to the last bit.
CLOSE = 1e-5
# The same sums in another order.
EQUAL = 1e-6


@pytest.fixture(scope="module", params=["one", "many", "here"])
def done(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("lm-eval") / "run"
    if request.param == "here":
        told = f"pretrained={STORIES},threads=1,gpu_layers=0,add_bos_token=False"
        return evaluated(OWN, folder, "ggmodel", told)
    batch, at_once = {"one": (1, 1), "many": (3, 2)}[request.param]
    with running(str(STORIES), "--threads", "1", "--gpu-layers", "0") as server:
        url = f"{server.url}/v1/completions"
        told = f"model=stories,base_url={url},tokenizer_backend=remote,tokenized_requests=True"
        told += ",custom_prefix_token_id=0"  # this vocabulary's first, which lm-eval takes for none
        told += f",num_concurrent={at_once}"
        return evaluated([str(LM_EVAL)], folder, "local-completions", told, batch)


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
            model.tokenize(text, add_special=False), max_tokens=MOST, temperature=0, stop=ENDS
        ).text
        for text in BEGINNINGS
    ]
    assert told == wanted
    assert any(wanted)


@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_has_the_results_of_transformers(case: str, tmp_path: Path):
    """As lm-eval's `hf` computes them: see make_hf.py."""
    make, more = CASES[case]
    wanted = json.loads((Path(__file__).parent / "hf.json").read_text())[case]
    told = f"pretrained={make(tmp_path / 'model')},threads=1,gpu_layers=0,kv_type=f32{more}"
    done = evaluated(OWN, tmp_path / "run", "ggmodel", told)
    for task in TASKS[:2]:
        pairs = [one for document in done.told(task) for one in document]
        theirs = [one for document in wanted[task] for one in document]
        numbers = [float(one[0]) for one in theirs]
        assert [float(one[0]) for one in pairs] == pytest.approx(numbers, rel=EQUAL), task
        assert [str(one[1]) for one in pairs] == [str(one[1]) for one in theirs]
    sums = [float(np.ravel(one[0])[0]) for one in done.told("rolling")]
    assert sums == pytest.approx(
        [float(np.ravel(one[0])[0]) for one in wanted["rolling"]], rel=EQUAL
    )
    assert done.told("written") == wanted["written"]
