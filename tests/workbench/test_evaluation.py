"""Evaluation: choices by `score` and `logits`, prefixes computed once, bad files."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.convert.quantize import quantize
from ggmodel.errors import FormatError, PromptError
from ggmodel.gguf_file import open_gguf
from ggmodel.runner import LoadedModel
from ggmodel.runner.engine.continuations import Continuations
from ggmodel.workbench.evaluation import (
    Result,
    evaluate,
    log_likelihoods,
    read_documents,
    summary,
)
from tests.workbench.models import STORIES

SHOTS = "Once upon a time, there was a little fox named Pip. Pip lived near the river.\n\n"
CHOICES = [" girl", " bird who flew away", " stone"]
PROMPTS = [SHOTS + text for text in ("One day there was a", "The fox found a", "She saw a little ")]
# Sums of a few log-probabilities in float32, of logits up to 20: steps of 2e-6.
CLOSE = 1e-5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedModel]:
    path = tmp_path_factory.mktemp("evaluation") / "f32.gguf"
    with open_gguf(STORIES) as source:
        quantize(source, path, "f32", allow_requantize=True)
    with ggmodel.load(path, threads=1, gpu_layers=0, kv_type="f32", context_length=256) as loaded:
        yield loaded


@pytest.fixture
def tasks(tmp_path: Path) -> Callable[..., Path]:
    def write(*documents: Any) -> Path:
        path = tmp_path / "tasks.jsonl"
        lines = [d if isinstance(d, str) else json.dumps(d) for d in documents]
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


def by_hand(model: LoadedModel, prompt: str, text: str) -> tuple[float, bool]:
    """The whole of both computed at once; the space behind a prompt is the text's."""
    stripped = prompt.rstrip()
    before = len(model.tokenize(stripped))
    ids = model.tokenize(prompt + text)
    scores, logits = model.score(ids)[before - 1 :], model.logits(ids)[before - 1 : -1]
    return float(np.sum(scores, dtype=np.float64)), logits.argmax(-1).tolist() == ids[before:]


def test_log_likelihoods_are_those_of_whole_texts(model: LoadedModel):
    with Continuations(model.engine) as continuations:
        for prompt in PROMPTS:
            for found, text in zip(
                log_likelihoods(model, continuations, prompt, CHOICES), CHOICES, strict=True
            ):
                expected = by_hand(model, prompt, text)
                assert found[0] == pytest.approx(expected[0], abs=CLOSE)
                assert found[1] == expected[1]


def test_rows_of_logits_are_dropped_batch_by_batch(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
):
    batches, seen, held = Continuations._batches, list[weakref.ref[np.ndarray]](), list[int]()

    def pairs(
        self: Continuations, sequence: int, tokens: np.ndarray, start: int, first: int, _: int
    ) -> Iterator[np.ndarray]:
        for batch in batches(self, sequence, tokens, start, first, 2):
            seen.append(weakref.ref(batch))
            held.append(sum(one() is not None for one in seen))
            yield batch

    monkeypatch.setattr(Continuations, "_batches", pairs)
    prompt, text = PROMPTS[0], SHOTS
    with Continuations(model.engine) as continuations:
        ((found, likeliest),) = log_likelihoods(model, continuations, prompt, [text])
    expected = by_hand(model, prompt, text)
    assert found == pytest.approx(expected[0], rel=1e-6) and likeliest == expected[1]
    assert len(held) > 8 and max(held) <= 2  # the latest, and the one before until it is replaced


def test_prefixes_are_computed_once(model: LoadedModel):
    with Continuations(model.engine) as continuations:
        log_likelihoods(model, continuations, PROMPTS[0], CHOICES)
        once = continuations.computed
        lengths = [len(model.tokenize(PROMPTS[0] + c)) for c in CHOICES]
        begin = len(model.tokenize(PROMPTS[0]))
        # The prompt less its last token, and for each choice that one and its own but the last.
        assert once == begin - 1 + sum(n - begin for n in lengths)
        log_likelihoods(model, continuations, PROMPTS[1], CHOICES)
        shots = len(model.tokenize(SHOTS.rstrip()))
        more = len(model.tokenize(PROMPTS[1])) - shots + sum(n - begin for n in lengths)
        assert continuations.computed - once <= more


def test_greedy_texts_are_said_to_be(model: LoadedModel):
    ids = model.tokenize(SHOTS.rstrip())
    (token,) = model.generate(ids, max_tokens=1, temperature=0).tokens
    with Continuations(model.engine) as continuations:
        (found,) = log_likelihoods(
            model, continuations, SHOTS.rstrip(), [model.detokenize([token])]
        )
    assert found[1] and found[0] > np.log(1 / 1536)


def test_as_many_tokens_as_the_context_and_the_last(model: LoadedModel):
    with Continuations(model.engine) as continuations:
        assert continuations.score([5] * 250, [6] * 7)[0] < 0
        for prompt, tokens in (([5] * 250, [6] * 8), ([], [6]), ([5], [])):
            with pytest.raises(PromptError, match="at most 257 together"):
                continuations.score(prompt, tokens)


def test_requests_go_on_meanwhile(model: LoadedModel):
    want = model.generate("A fox", temperature=0, max_tokens=10).text
    with Continuations(model.engine) as continuations:
        log_likelihoods(model, continuations, PROMPTS[0], CHOICES)
        assert model.generate("A fox", temperature=0, max_tokens=10).text == want


def documents() -> list[dict[str, Any]]:
    return [
        {"prompt": PROMPTS[0], "choices": CHOICES, "answer": 0},
        {"prompt": PROMPTS[1], "choices": CHOICES, "answer": CHOICES[2]},
        {"prompt": SHOTS + "The", "answer": ["nothing", "x"], "stop": ["."], "max_tokens": 4},
    ]


def test_results(model: LoadedModel, tasks: Callable[..., Path]):
    read = read_documents(tasks(*documents()))
    results = list(evaluate(model, read))
    for document, result in zip(documents()[:2], results, strict=False):
        sums = [by_hand(model, document["prompt"], c)[0] for c in CHOICES]
        right = document["answer"] if isinstance(document["answer"], int) else 2
        assert result.log_likelihoods == pytest.approx(sums, abs=CLOSE)
        assert result.right == (int(np.argmax(sums)) == right)
        by_length = [s / len(c) for s, c in zip(sums, CHOICES, strict=True)]
        assert result.right_by_length == (int(np.argmax(by_length)) == right)
    expected = model.generate(SHOTS + "The", stop=["."], max_tokens=4, temperature=0).text
    assert results[2].text == expected and not results[2].right
    found = summary(results)
    assert found["documents"] == 3
    assert found["acc"]["value"] == np.mean([r.right for r in results[:2]])
    assert found["exact_match"] == {"value": 0.0, "error": 0.0}


def test_an_answer_that_is_right(model: LoadedModel, tasks: Callable[..., Path]):
    text = model.generate("Once", stop=["\n"], max_tokens=4, temperature=0).text
    task = {"prompt": "Once", "answer": f"  {text} ", "max_tokens": 4}
    (result,) = evaluate(model, read_documents(tasks(task)))
    assert result.right and summary([result])["exact_match"]["value"] == 1


def test_known_results_are_not_computed(model: LoadedModel, tasks: Callable[..., Path]):
    read = read_documents(tasks(*documents()))
    known = Result(1, read[0].digest, True, False, (1.0, 2.0, 3.0))
    other = Result(2, "another line", True, False, (1.0, 2.0, 3.0))
    first, second, _ = evaluate(model, read, [known, other])
    assert first is known and second.log_likelihoods != other.log_likelihoods
    line = json.dumps(known.as_dict()).encode()
    assert Result.read(line, "a") == known
    with pytest.raises(FormatError, match="a is no result of `ggmodel eval`"):
        Result.read(b'{"a": 1}', "a")


def test_errors_are_standard_errors():
    results = [Result(i, "", i < 3, i < 1) for i in range(10)]
    values = np.array([1.0] * 3 + [0.0] * 7)
    found = summary(results)["acc"]
    assert found["value"] == values.mean()
    assert found["error"] == pytest.approx(values.std(ddof=1) / np.sqrt(10))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2"),
        ("[]", "line 2"),
        ("{}", '"prompt" must be a text'),
        ('{"prompt": "a"}', '"answer" must be a text, or a list'),
        ('{"prompt": "a", "answer": "b", "max_tokens": 0}', '"max_tokens" a number above 0'),
        ('{"prompt": "a", "answer": "b", "stop": [1]}', '"stop" must be texts'),
        ('{"prompt": "a", "choices": [], "answer": 0}', '"choices" must be a list of texts'),
        ('{"prompt": "a", "choices": ["b", ""], "answer": 0}', "none of them empty"),
        ('{"prompt": "a", "choices": ["b"], "answer": 1}', "one of the choices, or its number"),
        ('{"prompt": "a", "choices": ["b"], "answer": "c"}', "one of the choices"),
        ('{"prompt": "a", "choices": ["b"], "answer": true}', "one of the choices"),
    ],
)
def test_lines_that_are_no_documents(tasks: Callable[..., Path], line: str, message: str):
    with pytest.raises(FormatError, match=r"tasks\.jsonl, line 2") as raised:
        read_documents(tasks({"prompt": "a", "answer": "b"}, line))
    assert message in str(raised.value)


def test_a_file_without_documents(tasks: Callable[..., Path]):
    with pytest.raises(FormatError, match="has no documents"):
        read_documents(tasks(""))


def test_prompts_that_cannot_be(model: LoadedModel, tasks: Callable[..., Path]):
    task = {"prompt": "The fox " * 300, "choices": [" a"], "answer": 0}
    with pytest.raises(PromptError, match=r"line 1: .* context of 256"):
        list(evaluate(model, read_documents(tasks(task))))
