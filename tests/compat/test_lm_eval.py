"""The model for lm-eval where that is not installed; tests/evaluations has it with lm-eval."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import ggmodel
from ggmodel.errors import ConfigError, Unsupported
from ggmodel.runner.engine.continuations import Continuations
from tests.workbench.models import STORIES

NAME = "ggmodel.compat.lm_eval"
CPU: dict[str, Any] = {"threads": 1, "gpu_layers": 0}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The class, with nothing of lm-eval's."""

    def stub(name: str, **members: Any) -> None:
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)

    for name in ("lm_eval", "lm_eval.api", "lm_eval.models"):
        stub(name)
    stub("lm_eval.api.model", TemplateLM=object)
    stub("lm_eval.api.registry", register_model=lambda _: lambda made: made)
    unused = ("handle_stop_sequences", "normalize_gen_kwargs", "postprocess_generated_text")
    stub("lm_eval.models.utils", **dict.fromkeys(unused))
    stub("lm_eval.utils", **dict.fromkeys(("get_rolling_token_windows", "make_disjoint_window")))
    stub("tqdm", tqdm=lambda each, **_: each)
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    yield importlib.import_module(NAME).GGModel
    del sys.modules[NAME]


def test_it_asks_for_lm_eval():
    with pytest.raises(Unsupported, match="pip install 'lm-eval>="):
        importlib.import_module(NAME)


def test_options_have_two_names_and_one_value(made: Any):
    # lm-eval's command gives a batch_size of 1 where it is told none
    for told in ({"batch_size": 1, "parallel": 3}, {"batch_size": "3"}):
        one = made(STORIES, **told, context_length=64, **CPU)
        assert (len(one.model.engine.sequences.all), one.max_length) == (3, 64)
        one.close()
    for told, names in (
        ({"batch_size": 2, "parallel": 3}, "batch_size and parallel"),
        ({"max_length": 32, "context_length": 64}, "max_length and context_length"),
        ({"device": "cpu", "gpu_layers": 4}, "device and gpu_layers"),
        ({"max_length": 0}, "max_length 0"),
    ):
        with pytest.raises(ConfigError, match=names):
            made(STORIES, **told)


def test_a_loaded_model_takes_a_max_length_alone(made: Any):
    with ggmodel.load(STORIES, context_length=64, **CPU) as model:
        for told in ({"batch_size": 1}, {"device": "cpu"}, {"threads": 1}):
            with pytest.raises(ConfigError, match=f"{next(iter(told))}: of no effect"):
                made(model, **told)
        assert made(model).max_length == made(model, max_length=65).max_length == 64
        ids = model.tokenize("Once upon a time, there was a little fox", add_special=False)
        one = made(model, max_length=6)
        (answer,) = one._loglikelihood_tokens([(None, ids[:-2], ids[-2:])])
        one.close()
        with Continuations(model.engine) as continuations:
            assert answer == continuations.score(ids[-7:-2], ids[-2:])
