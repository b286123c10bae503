"""Adapters of a loaded model: chosen by requests of one batch, added and removed while it runs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.convert import from_hf
from ggmodel.errors import ConfigError, FormatError
from ggmodel.gguf_file import MemorySource, TensorSource
from ggmodel.model import Step, find, find_hf
from ggmodel.runner.engine.graphs import trace
from ggmodel.runner.engine.scoring import Scoring
from ggmodel.runner.requests.receipt import Receipt
from tests.convert.make_adapters import CASES
from tests.golden.files import load_golden
from tests.models.forced import DEADLINE, Forced

ADAPTERS = Path(__file__).parents[2] / "convert" / "adapters"
METADATA = {
    "general.type": "adapter",
    "general.architecture": "llama",
    "adapter.type": "lora",
    "adapter.lora.alpha": np.float32(8),
}
IDS = [1, 5, 9, 3, 7, 11, 2, 6]


@pytest.fixture(scope="module")
def base() -> TensorSource:
    golden = load_golden("llama", "plain_gqa")
    return from_hf(find("llama"), golden.config, golden.weights())


@pytest.fixture(scope="module", params=[True, False], ids=["deterministic", "usual"])
def model(base, request):
    with ggmodel.load(base, parallel=6, kv_type="f32", deterministic=request.param) as model:
        for name, path in (("poet", "plain"), ("lawyer", "dora")):
            model.adapters.add(ADAPTERS / path, name, strength=0.0)
        yield model


def answers(model, asked: list[tuple[list[int], Any]]) -> list[np.ndarray]:
    """The logits of prompts with these adapters, which come at once and are then given 4 tokens."""
    requests = [
        Forced(model.prompts.read(ids), [3, 1, 4, 1], adapters=model.adapters.chosen(adapters))
        for ids, adapters in asked
    ]
    for one in requests:
        model.engine.submit(one)
    for one in requests:
        assert one.ended.wait(DEADLINE)
        if one.error is not None:
            raise one.error
    return [np.stack(one.rows) for one in requests]


ASKED: list[tuple[list[int], Any]] = [
    (IDS[:5], None),
    (IDS[1:7], "poet"),
    (IDS[2:6], {"poet": 0.5, "lawyer": -1}),
    (IDS[:5], "lawyer"),
    (IDS[3:], None),
    (IDS[:6], ["lawyer", "poet"]),
]


def test_requests_of_one_batch_get_the_logits_that_each_has_alone(model):
    together = answers(model, ASKED)
    alone = [answers(model, [one])[0] for one in ASKED]
    exact = model.backend.params.deterministic
    for some, other in zip(together, alone, strict=True):
        assert np.array_equal(some, other) if exact else np.allclose(some, other, atol=1e-4)
    assert not np.allclose(together[0], together[3], atol=0.1)


@pytest.mark.parametrize(
    "name", ["experts", "tied_embedding", "fused", "interleaved_experts", "states"]
)
def test_rows_of_experts_embeddings_and_states_have_adapters_of_their_own(name: str):
    """The states of Mamba select by matrices, which see no rows of a batch: such requests are
    computed one after the other, and are right, too."""
    golden = load_golden(*CASES[name][:2])
    source = from_hf(find_hf(golden.config["architectures"]), golden.config, golden.weights())
    asked: list[tuple[list[int], Any]] = [
        (golden.prompt[:5].tolist(), None),
        (golden.prompt[2:9].tolist(), name),
        (golden.prompt[1:4].tolist(), {name: 0.5}),
        (golden.prompt[3:6].tolist(), name),
    ]
    with ggmodel.load(source, parallel=4, kv_type="f32", adapters={ADAPTERS / name: 0.0}) as model:
        alone = [answers(model, [one])[0] for one in asked]
        for some, other in zip(answers(model, asked), alone, strict=True):
            assert np.allclose(some, other, atol=1e-3)


def test_a_prompt_computed_with_one_adapter_is_never_reused_with_another(base):
    with ggmodel.load(base, parallel=2) as model:
        model.adapters.add(ADAPTERS / "plain", "poet", strength=0.0)
        ways: list[Any] = [None, "poet", {"poet": 0.5}]
        first = [model.generate(IDS, max_tokens=3, temperature=0, adapters=way) for way in ways]
        assert [one.usage.reused_tokens for one in first] == [0, 0, 0]
        again = model.generate(IDS, max_tokens=3, temperature=0, adapters={"poet": 0.5})
        assert again.usage.reused_tokens == len(IDS) - 1
        assert again.tokens == first[2].tokens


def test_prefixes_in_the_hosts_memory_are_of_their_adapters(base):
    prompt = IDS * 10
    ways: list[Any] = [None, "poet", {"poet": 0.5}]
    with ggmodel.load(base, parallel=1, cache_ram=16, deterministic=True) as model:
        model.adapters.add(ADAPTERS / "plain", "poet", strength=0.0)

        def ask(way: Any) -> Any:
            return model.generate(prompt, max_tokens=3, temperature=0, adapters=way)

        first, again = [ask(way) for way in ways], [ask(way) for way in ways]
    assert [one.usage.reused_tokens for one in first] == [0, 0, 0]
    assert [one.usage.reused_tokens for one in again] == [len(prompt) - 1] * 3
    assert [one.tokens for one in again] == [one.tokens for one in first]
    assert len({tuple(one.tokens) for one in first}) == 3


def test_the_strengths_of_requests_that_do_not_choose(model):
    poet, plain = model.logits(IDS, adapters="poet"), model.logits(IDS)
    model.adapters["poet"] = 1.0
    try:
        assert np.array_equal(model.logits(IDS), poet)
        assert np.array_equal(model.logits(IDS, adapters={}), plain)
        assert np.array_equal(model.logits(IDS, adapters={"poet": 0}), plain)
    finally:
        model.adapters["poet"] = 0.0
    assert np.array_equal(model.logits(IDS), plain)


def test_a_graph_without_adapters_is_that_of_a_model_without_any(base, model):
    def ops(some, adapters) -> list[Any]:
        engine = some.engine

        def recorded() -> list[Any]:
            with Scoring(engine).graphs(engine.model, 1, 8) as graphs:
                step = Step.blank(4, 1).adapt(adapters)
                graphs.cache.start_forward(step, reserve=True)
                traced = trace(engine.model, engine.backend, graphs.cache, step)
                schedule = [
                    (node.op and node.op.name, node.ne) for node in traced.ctx.graph.schedule
                ]
                traced.close()
                return schedule

        return engine.call(recorded)

    with ggmodel.load(
        base, kv_type="f32", deterministic=model.backend.params.deterministic
    ) as bare:
        assert ops(model, ()) == ops(bare, ())
    assert len(ops(model, model.adapters.chosen("poet"))) > len(ops(model, ()))


def test_an_adapter_is_removed_while_a_request_goes_on_with_it(base):
    with ggmodel.load(base, parallel=2) as model:
        name = model.adapters.add(ADAPTERS / "plain")
        assert name == "plain"
        expected = model.generate(IDS, max_tokens=40, temperature=0).tokens
        memory = model.memory.size()
        stream = model.stream(IDS, max_tokens=40, temperature=0)
        tokens = [next(stream).token]
        (adapter,) = model.engine.loaded
        del model.adapters["plain"]
        assert not adapter.closed
        with pytest.raises(ConfigError, match="no adapter 'plain'; loaded: none"):
            model.generate(IDS, adapters="plain")
        tokens += [piece.token for piece in stream]
        assert tokens[: len(expected)] == expected
        assert model.generate(IDS, max_tokens=2).usage.reused_tokens == 0
        assert adapter.closed
        assert model.memory.size() < memory


def test_a_request_made_before_its_adapter_was_removed_says_so(base):
    with ggmodel.load(base) as model:
        model.adapters.add(ADAPTERS / "plain")
        request = model.request(IDS, max_tokens=2)
        del model.adapters["plain"]
        model.generate(IDS, max_tokens=1)
        with pytest.raises(ConfigError, match="was removed before it began"):
            request.run()


def test_requests_run_while_adapters_come_and_go(base):
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            for _ in range(6):
                expected = model.generate(IDS[:4], max_tokens=8, temperature=0, adapters={}).tokens
                assert expected == plain
        except BaseException as error:
            errors.append(error)

    with ggmodel.load(base, parallel=3) as model:
        plain = model.generate(IDS[:4], max_tokens=8, temperature=0).tokens
        threads = [threading.Thread(target=ask) for _ in range(2)]
        for one in threads:
            one.start()
        for _ in range(3):
            model.adapters.add(ADAPTERS / "plain", "a")
            model.generate(IDS, max_tokens=3)
            del model.adapters["a"]
        for one in threads:
            one.join(DEADLINE)
    assert not errors


def test_a_receipt_names_the_adapters(base, tmp_path: Path):
    with ggmodel.load(base, deterministic=True, adapters=ADAPTERS / "plain") as model:
        done = model.generate(IDS, max_tokens=4, temperature=0, adapters={"plain": 0.5})
        written = done.receipt
        assert written is not None
        written.save(tmp_path / "r.json")
        receipt = Receipt.read(tmp_path / "r.json")
        assert model.replay(receipt).same
        del model.adapters["plain"]
        with pytest.raises(ConfigError, match="no adapter 'plain'"):
            model.replay(receipt)
        model.adapters.add(ADAPTERS / "dora", "plain")
        with pytest.raises(ConfigError, match="not the receipt's"):
            model.replay(receipt)


def test_embeddings_are_computed_with_the_adapters_that_all_requests_have(base):
    with ggmodel.load(base, adapters=ADAPTERS / "plain") as model:
        changed = model.embed([IDS])
        model.adapters["plain"] = 0.0
        assert not np.allclose(model.embed([IDS]), changed, atol=1e-2)


@pytest.mark.parametrize(
    ("adapters", "message"),
    [
        ("sailor", "no adapter 'sailor'; loaded: 'poet', 'lawyer'"),
        ({"poet": "much"}, "strength of poet is 'much'"),
        ({"poet": float("inf")}, "strength of poet is inf"),
        ({"poet": 1e39}, r"strength of poet is 1e\+39"),
        ({"poet": 10**400}, "strength of poet is 1000"),
        ([3], "an adapter is 3"),
    ],
)
def test_wrong_choices_are_refused(model, adapters, message: str):
    with pytest.raises(ConfigError, match=message):
        model.generate(IDS, adapters=adapters)


def test_two_adapters_have_two_names(model):
    with pytest.raises(ConfigError, match="an adapter 'poet' already"):
        model.adapters.add(ADAPTERS / "plain", "poet")


def test_a_change_of_what_no_product_reads_is_refused(base, write_gguf, tmp_path: Path):
    rows, width = (base.tensors["token_embd.weight"].shape[i] for i in (1, 0))
    tensors = {
        "token_embd.weight.lora_a": np.ones((2, width), np.float32),
        "token_embd.weight.lora_b": np.ones((rows, 2), np.float32),
    }
    path = write_gguf(tmp_path / "head.gguf", MemorySource(METADATA, tensors))
    with ggmodel.load(base) as model:
        with pytest.raises(FormatError, match=r"changes token_embd\.weight, which texts are not"):
            model.adapters.add(path)
        assert not model.adapters
        assert not model.engine.loaded
