"""The oracle of the bench of faults, and a sample of the faults themselves.

`make faults` tries all of them, with transformers; here what transformers computed once is enough.
"""

from __future__ import annotations

import random

import pytest

import ggmodel
from ggmodel.convert import from_hf
from ggmodel.gguf_file import MemorySource
from ggmodel.model import find
from ggmodel.workbench import golden
from ggmodel.workbench.diff import diff
from tests.faults.processed import differing_inputs
from tests.faults.source import MODELS, files, spelled
from tests.faults.subjects import EXACT, Subject, served_by, subjects
from tests.faults.trial import Fault, Trials, differing, faults, judged, written
from tests.golden.files import HERE
from tests.workbench.saved import CASES, saved

SAMPLE, COMPARED = 16, 12  # faults


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Trials:
    return Trials(tmp_path_factory.mktemp("faults"), references=False)


def changed(path: str, old: str, new: str, *blames: str) -> Fault:
    text = spelled(MODELS / path).text
    assert text.count(old) == 1
    return Fault("by hand", path, 1, new, text.replace(old, new), frozenset(blames))


@pytest.mark.parametrize("path", [p.relative_to(MODELS).as_posix() for p in files()])
def test_spelling_blocks_out_changes_no_number(trials: Trials, path: str):
    """Nor does importing a model from another folder."""
    subject = subjects(served_by(path)[0])[-1]
    text = spelled(MODELS / path).text
    with written(path, text) as models, subject.load(trials.cache, models) as model:
        found = subject.numbers(model)
    assert differing(found, trials.numbers(subject)) == ""


CALL = "attention(q, k, v, cache, scale=h.scale, softcap=h.score_cap, sinks=self.sinks)"
ROPE = "self.rotary.rope(RopeType.NEOX)"
MOVED = f"""type("Moved", (nn.Rope,), {{
    "move": lambda self, x, amounts: self(x, amounts).scale(1.01)
}})(**vars({ROPE}))"""


def test_a_fault_in_prompts_is_seen_and_caught(trials: Trials):
    result = trials.run(changed("mistral/model.py", CALL, CALL.replace("h.scale", "1.1 * h.scale")))
    assert (result.shown, result.case, result.by) == ("prompt", "mistral/window", ["golden"])


@pytest.mark.slow
def test_a_fault_of_single_tokens_is_seen(trials: Trials):
    text = CALL.replace("scale=", "scale=(1.0 if q.dim(2) > 1 else 1.1) * ")
    result = trials.run(changed("mistral/model.py", CALL, text))
    assert (result.shown, result.by) == ("decode", ["golden"])


@pytest.mark.slow
def test_a_fault_after_a_context_shift_is_seen(trials: Trials):
    result = trials.run(changed("mistral/model.py", ROPE, MOVED))
    assert (result.shown, result.by) == ("shift", ["golden"])


def test_a_fault_in_loading_is_seen_by_check(trials: Trials):
    result = trials.run(changed("mistral/model.py", "'k_proj'", "'key'"))
    assert result.shown == "loading"
    assert result.by == ["check", "golden"]


@pytest.mark.parametrize("case", ["gemma3/images", "llama4/images", "mllama/images"])
def test_true_models_make_the_pixels_and_tokens_of_processors(trials: Trials, case: str):
    architecture, name = case.split("/")
    subject = Subject(architecture, name)
    with subject.load(trials.cache) as model:
        assert differing_inputs(subject, model) == ""


VIEW = "_pixels(view, h)[None]"


@pytest.mark.slow
def test_a_fault_in_pixels_is_seen_and_caught(trials: Trials):
    fault = changed("llama4/image.py", VIEW, f"{VIEW} * 0.9", "preprocess")
    result = trials.run(fault)
    assert (result.shown, result.by, result.right) == ("pixels", ["diff", "golden"], True)


def test_no_effect_is_no_fault(trials: Trials):
    result = trials.run(
        changed("mistral/model.py", CALL, CALL.replace("attention(", "(attention)("))
    )
    assert (result.shown, result.by) == ("", [])


@pytest.mark.slow
@pytest.mark.timeout(900)  # 16 trials: 40 s on an idle machine
def test_every_effective_fault_of_a_sample_is_caught(trials: Trials):
    sample = random.Random(1).sample(faults(), SAMPLE)
    results = [trials.run(fault) for fault in sample]
    effective = [r for r in results if r.shown]
    assert len(effective) > SAMPLE // 2
    assert not [r for r in effective if not r.by]


@pytest.mark.slow
def test_diff_names_the_module_of_each_fault_in_a_sample():
    served = {case.arch for case in CASES.values()}
    every = [f for f in faults() if set(served_by(f.path)) & served]
    wrong, compared = [], 0
    for fault in random.Random(4).sample(every, len(every)):
        if compared >= COMPARED:
            break
        for name, case in CASES.items():
            if case.arch not in served_by(fault.path):
                continue
            found = named(fault, name)
            compared += found is not None
            if found is not None and not found[1]:
                wrong.append((fault.path, fault.rule, fault.said, found[0]))
    assert compared >= COMPARED
    assert not wrong


def named(fault: Fault, name: str) -> tuple[str, bool] | None:
    """The module that `diff` names in a case with saved activations, and whether it is to blame;
    None if it finds none, or the model does not load."""
    case, reference = CASES[name], saved(name)
    weight = golden.Cases(HERE / case.arch).weight
    weights = {key: weight(key, tuple(shape)) for key, shape in reference.tensors.items()}
    with written(fault.path, fault.text) as models:
        try:
            source: MemorySource = from_hf(find(case.arch, models), case.config, weights)
            with ggmodel.load(source, models=models, **EXACT) as model:
                found = diff(model, reference)
                return None if found.first is None else judged(found, model, fault)
        except ggmodel.Error:
            return None
