"""Modules captured, patched and steered, by request."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import ggmodel
from ggmodel import Steering, in_graph
from ggmodel.errors import ComputeError, ConfigError, Unsupported
from ggmodel.runner import LoadedModel
from ggmodel.workbench.golden import source_of
from tests.golden.files import load_embeddings, load_golden
from tests.runner.requests.hooks import CASES, ENCODERS, HERE, LAYER, TOWERS, direction

STORIES = Path(__file__).parents[3] / "examples" / "assets" / "stories.gguf"
SHAPES = STORIES.with_name("shapes.gguf")
SCENE = str(SHAPES.with_name("scene.png"))
PROMPT = "Once upon a time, there was a little fox."


@pytest.fixture(scope="module")
def stories() -> Iterator[LoadedModel]:
    with ggmodel.load(STORIES, parallel=4, deterministic=True, context_length=256) as model:
        yield model


def nmse(a: np.ndarray, b: np.ndarray) -> float:
    return float(((a - b) ** 2).mean() / (b**2).mean())


@pytest.mark.parametrize("backend", ["ggml", "reference"])
@pytest.mark.parametrize("arch", CASES)
def test_captures_and_patches_equal_those_of_hooks_in_transformers(arch: str, backend: str):
    """To 1e-9: they are below 6e-13. ggml's GELU, gemma3's, reads a table in F16."""
    golden = load_golden(arch, CASES[arch])
    with np.load(HERE / f"{arch}.npz") as file:
        hooks = dict(file)
    source = source_of(golden)
    ids, bound = hooks["ids"].tolist(), 1e-6 if (arch, backend) == ("gemma3", "ggml") else 1e-9
    with ggmodel.load(source, kv_type="f32", context_length=64, backend=backend) as model:
        layers, width = model.residual, hooks["layers.0"].shape[1]
        names = model.modules
        mixer = next(
            f"{layers[LAYER]}.{n}" for n in ("attn", "mixer") if f"{layers[LAYER]}.{n}" in names
        )
        with model.capture("layers.*", mixer, f"{layers[LAYER]}.ffn") as seen:
            logits = model.logits(ids)
        assert nmse(logits, hooks["logits"]) < bound
        for name in layers:
            assert nmse(seen[name], hooks[name]) < bound, name
        assert nmse(seen[mixer], hooks[f"layers.{LAYER}.mixer"]) < bound
        assert nmse(seen[f"{layers[LAYER]}.ffn"], hooks[f"layers.{LAYER}.ffn"]) < bound
        added = direction(width)
        for patch in (added, lambda x: x + added, in_graph(lambda x, d: x + d, added)):
            with model.patch({layers[LAYER]: patch}):
                assert nmse(model.logits(ids), hooks["patched"]) < bound
        np.testing.assert_array_equal(model.logits(ids), logits)


@pytest.mark.parametrize("arch", ["llama", "qwen3"])
def test_rows_of_texts_are_captured_and_patched(arch: str):
    """By transformers' hooks: the head's product with the rows of a text gives its logits."""
    golden = load_golden(arch, CASES[arch])
    with np.load(HERE / f"{arch}.npz") as file:
        hooks = dict(file)
    source, ids = source_of(golden), hooks["ids"].tolist()
    head = "output.weight" if "output.weight" in source.tensors else "token_embd.weight"
    added = direction(hooks["layers.0"].shape[1])
    weight = np.frombuffer(source.data(head), np.float32).reshape(-1, len(added))
    with ggmodel.load(source, kv_type="f32", context_length=64) as model:
        layer = model.residual[LAYER]
        plain = model.embed([ids, ids[:3]], pooling="last")
        for patch in (added, lambda x: x + added, in_graph(lambda x, d: x + d, added)):
            with model.patch({layer: patch}), model.capture("layers.*") as seen:
                rows = model.embed([ids[:3], ids], pooling="last")
                (each,) = model.states_of_tokens([np.array(ids, np.int32)])
            assert nmse(rows @ weight.T, hooks["patched"][[2, -1]]) < 1e-9
            assert nmse(each @ weight.T, hooks["patched"]) < 1e-9
            shorter, longer, alone = seen.requests
            assert nmse(shorter["layers.0"], hooks["layers.0"][:3]) < 1e-9
            assert nmse(longer["layers.0"], hooks["layers.0"]) < 1e-9
            np.testing.assert_array_equal(seen[layer], alone[layer])
            with (
                pytest.raises(ConfigError, match="head is not computed"),
                model.patch({"head": 0 * added}),
            ):
                model.embed([ids])
        np.testing.assert_array_equal(model.embed([ids, ids[:3]], pooling="last"), plain)


@pytest.mark.parametrize("in_a_graph", [False, True])
def test_a_patch_looks_across_the_rows_of_one_text(stories: LoadedModel, in_a_graph: bool):
    """Texts that share a step, captured or not, have the rows that each has alone."""
    sizes: list[int] = []

    def less_the_last(rows: np.ndarray) -> np.ndarray:
        sizes.append(len(rows))
        return rows - 0.5 * rows[-1:]

    expression = in_graph(lambda x: x - x.slice(1, x.dim(1) - 1, x.dim(1)) * 0.5)
    texts, layer = [PROMPT, "Tim had a red ball."], stories.residual[1]
    lengths = [len(stories.tokenize(text)) for text in texts]
    assert lengths[0] != lengths[1]
    plain = stories.embed(texts, pooling="last")
    with stories.patch({layer: expression if in_a_graph else less_the_last}):
        alone = [stories.embed([text], pooling="last")[0] for text in texts]
        sizes.clear()
        together = stories.embed(texts, pooling="last")
        assert in_a_graph or sorted(sizes) == sorted(lengths)
        with stories.capture(layer):
            captured = stories.embed(texts, pooling="last")
        states = stories.states_of_tokens([np.array(stories.tokenize(t)) for t in texts])
    for rows in (together, captured, [each[-1] for each in states]):
        assert nmse(np.array([*rows]), np.array(alone)) < 1e-9
    assert nmse(together, plain) > 1e-3


def patches_of(added: np.ndarray) -> tuple[Any, ...]:
    """Each kind of patch that adds numbers."""
    return added, lambda x: x + added, in_graph(lambda x, d: x + d, added)


@pytest.mark.parametrize("backend", ["ggml", "reference"])
@pytest.mark.parametrize("arch", ENCODERS)
def test_encoders_of_texts_equal_hooks_in_transformers(arch: str, backend: str):
    """Up to the head behind the pooled rows, by the names that the modules have there."""
    case, patched, *names = ENCODERS[arch]
    golden = load_embeddings(arch, case)
    with np.load(HERE / f"{arch}.npz") as file:
        hooks = dict(file)
    ids, other = [int(i) for i in golden.texts[0]], [int(i) for i in golden.texts[1]]
    options: Any = {"kv_type": "f32", "flash_attention": "off", "backend": backend}
    with ggmodel.load(source_of(golden), **options) as model:
        plain = model.embed([other, ids], pooling="rank")
        for name in (patched, *names):
            with model.capture(name) as seen:
                scores = model.embed([other, ids], pooling="rank")
            np.testing.assert_array_equal(scores, plain)
            (rows,) = seen.values()  # of the latest text
            assert nmse(rows, hooks[name]) < 1e-9, name
        assert nmse(plain[1:], hooks["result"]) < 1e-9
        for patch in patches_of(direction(hooks[patched].shape[1])):
            with model.patch({patched: patch}):
                assert nmse(model.embed([ids], pooling="rank"), hooks["patched"]) < 1e-9


def test_heads_behind_pooled_rows():
    """A row for each text."""
    golden = load_embeddings("bert", "reranker")
    with ggmodel.load(source_of(golden), kv_type="f32", flash_attention="off") as model:
        texts = [[int(i) for i in text] for text in golden.texts]
        with model.capture("classifier.*", "layers.2") as seen:
            scores = model.embed(texts, pooling="rank")
        dense, out = (np.concatenate([r[n] for r in seen.requests]) for n in seen if "." in n[7:])
        np.testing.assert_array_equal(out, scores)
        assert dense.shape == (len(texts), 64)
        with model.patch({"classifier.out": lambda rows: 0 * rows + len(rows)}):
            np.testing.assert_array_equal(model.embed(texts, pooling="rank"), 0 * scores + 1)
            with pytest.raises(ConfigError, match="stands behind pooled rows"):
                model.embed(texts, pooling="mean")


@pytest.mark.parametrize("backend", ["ggml", "reference"])
@pytest.mark.parametrize("arch", TOWERS)
def test_towers_equal_hooks_in_transformers(arch: str, backend: str):
    case, patched, *names = TOWERS[arch]
    golden = load_golden(arch, case)
    with np.load(HERE / f"{arch}.npz") as file:
        hooks = dict(file)
    item = next(iter(golden.pictures.values()))
    options: Any = {"kv_type": "f32", "flash_attention": "off", "context_length": 64}
    with ggmodel.load(source_of(golden), backend=backend, **options) as model:

        def encoded() -> np.ndarray:
            parts = model.encode_media(item.kind, item.pixels, **item.data)
            return np.concatenate([part.rows for part in parts])

        plain = encoded()
        for name in (patched, *names):
            with model.capture(name) as seen:
                np.testing.assert_array_equal(encoded(), plain)
            (rows,) = seen.values()
            assert nmse(rows, hooks[name]) < 1e-9, name
        assert nmse(plain, hooks["result"]) < 1e-9
        for patch in patches_of(direction(hooks[patched].shape[1])):
            with model.patch({patched: patch}):
                assert nmse(encoded(), hooks["patched"]) < 1e-9
        np.testing.assert_array_equal(encoded(), plain)


def test_an_encoder_of_texts_is_patched_and_its_patch_may_raise():
    def fails(rows: np.ndarray) -> np.ndarray:
        raise ValueError("no such direction")

    golden = load_embeddings("bert", "released")
    with ggmodel.load(source_of(golden), kv_type="f32") as model:
        texts, last = golden.texts, model.residual[-1]
        with model.capture(last) as seen:
            plain = model.embed(texts, pooling="mean")
        means = [rows[last].mean(axis=0) for rows in seen.requests]
        assert nmse(np.stack(means), plain) < 1e-9
        with model.patch({last: np.full(plain.shape[1], 2.0)}):
            assert nmse(model.embed(texts, pooling="mean"), plain + 2.0) < 1e-9
        with model.patch({last: fails}), pytest.raises(ComputeError, match="raised ValueError"):
            model.embed(texts)


def test_names_that_no_module_has_list_the_nearest(stories: LoadedModel):
    with pytest.raises(ConfigError, match=r"'layers.3.atn'; the nearest names are layers\.3\.attn"):
        stories.generate("a", capture="layers.3.atn")
    with pytest.raises(ConfigError, match="nearest"), stories.patch({"layer.1": np.zeros(64)}):
        pass
    wrong: Any = {"layers.1": 3}
    with pytest.raises(ConfigError, match="must be a function"), stories.patch(wrong):
        pass


@pytest.mark.parametrize("arch", ["llama", "gemma3", "qwen3"])
def test_names_of_nnsight_and_transformer_lens(arch: str):
    golden, post = load_golden(arch, CASES[arch]), arch == "gemma3"
    names = {
        "model.layers.1": "layers.1",
        "model.layers[1].self_attn": "layers.1.attn",
        "model.layers.*.mlp": "layers.*.ffn",
        "model.layers.1.mlp.down_proj": "layers.1.ffn.down",
        "model.layers.1.self_attn.o_proj": "layers.1.attn.out",
        "model.norm": "norm",
        "lm_head": "head",
        "model.embed_tokens": "embed",
        "hook_embed": "embed",
        "blocks.1.hook_resid_post": "layers.1",
        "blocks.*.hook_attn_out": "layers.*.attn" + "_post_norm" * post,
        "blocks.*.hook_mlp_out": "layers.*.ffn" + "_post_norm" * post,
        "blocks.1.attn.hook_v": "layers.1.attn.v",
        "blocks.1.mlp.hook_pre": "layers.1.ffn.gate",
    }
    with ggmodel.load(source_of(golden), context_length=32) as model:
        for theirs, ours in names.items():
            probe, same = model.probe(theirs), model.probe(ours)
            assert probe is not None and same is not None
            assert probe.captures == same.captures, theirs


def test_an_answer_has_what_it_captured_of_prompt_and_answer(stories: LoadedModel):
    done = stories.generate(PROMPT, max_tokens=5, temperature=0, capture=["layers.*", "head"])
    ids = stories.tokenize(PROMPT)
    computed = [*ids, *done.tokens[:-1]]
    assert done.captured is not None
    with stories.capture("layers.*", "head") as seen:
        logits = stories.logits(computed)
    for name in stories.residual:
        np.testing.assert_array_equal(done.captured[name], seen[name])
        assert seen[name].dtype == np.float32 and len(seen[name]) == len(computed)
    np.testing.assert_array_equal(seen["head"], logits)
    np.testing.assert_array_equal(done.captured["head"], logits[len(ids) - 1 :])
    assert stories.generate(PROMPT, max_tokens=2).captured is None


def test_captured_results_have_a_limit(stories: LoadedModel):
    request = stories.request(PROMPT, max_tokens=3, capture="layers.*")
    assert request.probe is not None
    request.probe.captured.most = 1000
    with pytest.raises(ComputeError, match="takes over 1,000 bytes; name fewer"):
        request.run()


def test_drafts_that_are_rejected_leave_no_rows(stories: LoadedModel):
    options: Any = {"max_tokens": 40, "temperature": 0, "capture": "layers.1"}
    text = PROMPT + " " + PROMPT
    alone = stories.generate(text, **options)
    drafted = stories.generate(text, prompt_lookup=True, **options)
    assert alone.captured is not None and drafted.captured is not None
    assert drafted.tokens == alone.tokens
    np.testing.assert_array_equal(drafted.captured["layers.1"], alone.captured["layers.1"])


def test_others_in_the_batch_have_the_same_bits(stories: LoadedModel):
    """Each kind of patch, beside requests without any, in one batch."""
    width = stories.model.config.width
    push = 3.0 * direction(width)
    prompts = [PROMPT, "Tim had a red ball.", "The sun was", "One day a cat"]
    options: Any = {"max_tokens": 12, "temperature": 0}

    def proof(done: Any) -> list[str]:
        return done.proof.sums

    plain = [stories.generate(p, **options) for p in prompts]
    patches = [None, push, lambda x: x + push, in_graph(lambda x, d: x + d, push)]
    patched = []
    for prompt, patch in zip(prompts, patches, strict=True):
        with stories.patch({} if patch is None else {"layers.2": patch}):
            patched.append(stories.generate(prompt, **options))
    requests = []
    for prompt, patch in zip(prompts, patches, strict=True):
        with stories.patch({} if patch is None else {"layers.2": patch}):
            requests.append(stories.request(prompt, **options))
    for one in requests:
        one.start()
    together = [wait(one) for one in requests]
    assert proof(together[0]) == proof(plain[0])
    for now, alone, without in zip(together[1:], patched[1:], plain[1:], strict=True):
        assert proof(now) == proof(alone) != proof(without)
    again = [stories.generate(p, **options) for p in prompts]  # no prefix of a patched one
    assert [*map(proof, again)] == [*map(proof, plain)]


def wait(request: Any) -> Any:
    ended = threading.Event()
    while not request.done:
        ended.wait(0.01)
    return request.result()


def test_expressions_are_captured_of_their_own_request(stories: LoadedModel):
    """Beside requests in the same batch that capture rows, another expression, or nothing."""
    width = stories.model.config.width
    both = np.stack([direction(width), direction(width)[::-1]])
    prompts = [PROMPT, "Tim had a red ball.", "The sun was", "One day a cat"]
    products = in_graph(lambda x, d: d.mulmat_full_prec(x), both)
    first = in_graph(lambda x: x.slice(0, 0, 1).contiguous())
    taken: list[Any] = ["layers.1", {"layers.1": products}, {"layers.1": first}, None]
    rows, plain, requests = [], [], []
    for prompt, one in zip(prompts, taken, strict=True):
        done = stories.generate(prompt, capture="layers.1", max_tokens=8, temperature=0)
        rows.append(done.captured["layers.1"])  # type: ignore[index]
        plain.append(done.proof.sums)  # type: ignore[union-attr]
        with stories.capture(*([one] if one else [])):
            requests.append(stories.request(prompt, max_tokens=8, temperature=0))
    for request in requests:
        request.start()
    together = [wait(request) for request in requests]
    assert [done.proof.sums for done in together] == plain
    assert together[3].captured is None
    captured = [done.captured["layers.1"] for done in together[:3]]
    np.testing.assert_array_equal(captured[0], rows[0])
    np.testing.assert_allclose(captured[1], rows[1] @ both.T, rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(captured[2], rows[2][:, :1])


def test_an_expression_is_captured_of_a_tower():
    with ggmodel.load(SHAPES) as model:
        with model.capture("vision.layers.0") as rows:
            model.encode_image(SCENE)
        with model.capture({"vision.layers.0": in_graph(lambda x: x.sum_rows())}) as sums:
            model.encode_image(SCENE)
    wanted = rows["vision.layers.0"].sum(1, keepdims=True)
    np.testing.assert_allclose(sums["vision.layers.0"], wanted, rtol=1e-4, atol=1e-3)


def test_a_patch_that_raises_ends_its_own_request(stories: LoadedModel):
    def fails(rows: np.ndarray) -> np.ndarray:
        raise ValueError("no such direction")

    plain = stories.generate("The sun was", max_tokens=8, temperature=0)
    with stories.patch({"layers.1": fails}):
        bad = stories.request(PROMPT, max_tokens=8)
    good = stories.request("The sun was", max_tokens=8, temperature=0)
    for one in (bad, good):
        one.start()
    assert wait(good).proof.sums == plain.proof.sums  # type: ignore[union-attr]
    with pytest.raises(ComputeError, match=r"patch of layers\.1 raised ValueError: no such"):
        wait(bad)
    wrong: list[tuple[Any, type[Exception], str]] = [
        (lambda rows: rows[:, :3], ComputeError, "must return the shape"),
        (np.zeros(3), ConfigError, "rows of 192"),
        (in_graph(lambda x: x.sum_rows()), ConfigError, "must return F32"),
    ]
    for patch, error, message in wrong:
        with stories.patch({"layers.1": patch}), pytest.raises(error, match=message):
            stories.generate(PROMPT, max_tokens=1)


def test_steering_is_of_a_request_or_of_the_model(stories: LoadedModel, tmp_path: Path):
    width = stories.model.config.width
    steering = Steering({2: 5.0 * direction(width)})
    options: Any = {"max_tokens": 8, "temperature": 0}
    with stories.patch({"layers.2": 5.0 * direction(width)}):
        patched = stories.generate(PROMPT, **options)
    steered = stories.generate(PROMPT, steer=steering, **options)
    again = stories.generate(PROMPT, steer=[steering * 0.5, 0.5 * steering], **options)
    assert steered.proof.sums == patched.proof.sums == again.proof.sums  # type: ignore[union-attr]
    assert again.usage.reused_tokens  # the same directions, the same states
    with pytest.raises(ConfigError, match="last layer is"):
        stories.generate(PROMPT, steer=Steering({99: direction(width)}))
    with pytest.raises(ConfigError, match="no steering vector is called 'happy'"):
        stories.generate(PROMPT, steer={"happy": 1.0})
    from ggmodel.workbench.inside import save_steering

    save_steering(tmp_path / "push.gguf", steering, "llama")
    loaded = Steering.load(tmp_path / "push.gguf")
    np.testing.assert_array_equal(loaded.directions[2], steering.directions[2])
    file = f"{tmp_path / 'push.gguf'}:0.5"
    with ggmodel.load(STORIES, deterministic=True, context_length=256, steer=file) as model:
        half = stories.generate(PROMPT, steer=steering * 0.5, **options)
        assert model.generate(PROMPT, **options).tokens == half.tokens
        assert model.generate(PROMPT, steer={"push": 1.0}, **options).tokens == steered.tokens
        plain = stories.generate(PROMPT, **options)
        assert model.generate(PROMPT, steer={}, **options).tokens == plain.tokens


def test_modules_that_cannot_be_seen(stories: LoadedModel):
    with ggmodel.load(SHAPES) as model:
        with pytest.raises(ConfigError, match="belongs to an encoder that encodes nothing"):
            model.generate("What is it?", max_tokens=1, capture="vision.layers.0")
        before = model.embeddings(SCENE)
        with pytest.raises(ConfigError, match="belongs to an encoder that encodes nothing"):
            model.generate([before, "What is it?"], max_tokens=1, capture="vision.layers.0")
        with pytest.raises(ConfigError, match=r"the nearest names are vision\.layers\."):
            model.generate([before, "What is it?"], max_tokens=1, capture="vision.layer.0")
        nothing = pytest.raises(ConfigError, match="belongs to an encoder that encodes nothing")
        with model.capture("vision.layers.0"):
            before = model.embeddings(SCENE)
            with nothing:  # the request's own option asks for rows
                model.generate([before, "What is it?"], max_tokens=1, capture="vision.layers.0")
        with model.capture("vision.layers.0"), nothing:  # another block
            model.generate([before, "What is it?"], max_tokens=1)
        with model.capture("vision.layers.0"):
            before = model.embeddings(SCENE)
            with model.patch({"vision.layers.0": lambda rows: rows}), nothing:  # not patched so
                model.generate([before, "What is it?"], max_tokens=1)
    with pytest.raises(Unsupported, match="context_shift"):
        stories.generate(PROMPT, max_tokens=1, capture="layers.1", context_shift=True)


def test_pictures_and_chats_are_captured_and_patched():
    options: Any = {"max_tokens": 6, "temperature": 0}
    messages: Any = [{"role": "user", "content": "what is in the picture?", "images": [SCENE]}]
    with ggmodel.load(SHAPES) as model:
        answer: Any = model.chat(messages, capture="layers.*", **options)
        rows = answer.usage.prompt_tokens + len(answer.tokens) - 1
        assert {len(values) for values in answer.captured.values()} == {rows}
        with model.patch({"layers.0": lambda rows: 0 * rows}):
            assert model.chat(messages, **options) != answer
        with model.stream("a", capture="layers.1", max_tokens=3) as stream:
            pieces = list(stream)
        captured = stream.completion(pieces).captured
        assert captured is not None and len(captured["layers.1"]) == stream.usage.prompt_tokens + 2


def test_towers_are_captured_and_patched_by_request():
    """Beside others that have the same picture."""
    names, options = ("vision.layers.*", "layers.1"), {"max_tokens": 6, "temperature": 0}
    prompt: Any = [Path(SCENE), "what is in the picture?"]
    with ggmodel.load(SHAPES, parallel=3, deterministic=True) as model:
        plain = model.generate(prompt, **options)  # type: ignore[arg-type]
        with model.capture(*names) as seen:
            model.encode_image(SCENE)
        alone = dict(seen)
        width = alone["vision.layers.0"].shape[1]
        requests = [model.request(prompt, capture=names, **options)]  # type: ignore[arg-type]
        with model.patch({"vision.layers.0": 5 * direction(width)}), model.capture(*names) as seen:
            requests.append(model.request(prompt, **options))  # type: ignore[arg-type]
            both: Any = [Path(SCENE), *prompt]
            twice = model.generate(both, **options)  # type: ignore[arg-type]
        requests.append(model.request(prompt, **options))  # type: ignore[arg-type]
        for one in requests:
            one.start()
        captured, patched, other = [wait(one) for one in requests]
        assert captured.proof.sums == other.proof.sums == plain.proof.sums  # type: ignore[union-attr]
        assert patched.proof.sums != plain.proof.sums  # type: ignore[union-attr]
        assert len(captured.captured["layers.1"]) == plain.usage.prompt_tokens + 5
        for name, rows in alone.items():
            np.testing.assert_array_equal(captured.captured[name], rows)
            assert nmse(patched.captured[name], rows) > 1e-3
            np.testing.assert_array_equal(seen.requests[0][name], patched.captured[name])
            again = np.concatenate([patched.captured[name]] * 2)
            np.testing.assert_array_equal(twice.captured[name], again)  # type: ignore[index]


def test_an_item_that_was_encoded_in_the_same_block_is_taken():
    """Its rows are those of the request that encoded it."""
    name, options = "vision.layers.0", {"max_tokens": 6, "temperature": 0}
    prompt: Any = [Path(SCENE), "what is in the picture?"]
    with ggmodel.load(SHAPES, deterministic=True) as model:
        plain: Any = model.generate(prompt, **options)  # type: ignore[arg-type]
        with model.patch({name: lambda rows: 2 * rows}):
            with model.capture(name, "layers.1") as seen:
                whole: Any = model.generate(prompt, **options)  # type: ignore[arg-type]
                encoded: Any = model.encode_image(SCENE)
                apart: Any = model.generate([encoded, prompt[1]], **options)  # type: ignore[arg-type]
            outside: Any = model.generate([encoded, prompt[1]], capture="layers.1", **options)  # type: ignore[arg-type]
        assert whole.proof.sums == apart.proof.sums == outside.proof.sums != plain.proof.sums
        assert [name in one for one in seen.requests] == [True, True, False]
        np.testing.assert_array_equal(seen.requests[1][name], whole.captured[name])
        np.testing.assert_array_equal(apart.captured["layers.1"], whole.captured["layers.1"])


def test_an_item_is_found_by_its_content_unless_it_is_patched():
    """As prefixes on disk have it; what is captured is computed all the same."""
    name = "vision.layers.0"
    with ggmodel.load(SHAPES) as model:
        plain = model.embeddings(SCENE)
        done = model.generate([plain, "what?"], max_tokens=1)
        with model.capture(name):
            captured = model.embeddings(SCENE)
            again = model.generate([Path(SCENE), "what?"], max_tokens=1)
        with model.patch({name: lambda rows: rows}):
            patched = model.embeddings(SCENE)
        assert [one.key for one in plain] == [one.key for one in captured]
        assert {one.key for one in plain}.isdisjoint(one.key for one in patched)
        assert again.captured is not None and len(again.captured[name])
        assert again.tokens == done.tokens


def test_encoders_may_call_other_modules_for_items_of_another_shape(
    monkeypatch: pytest.MonkeyPatch,
):
    name, sizes = "vision.layers.1", ((32, 32), (64, 32))
    with ggmodel.load(source_of(load_golden("lfm2vl", "experts")), context_length=64) as model:
        declared: Any = model.model
        layers, encode = declared.vision.layers, declared.encode_multimodal
        shapes: list[tuple[int, ...]] = []

        def shortened(ctx: Any, item: Any) -> Any:
            shapes.append(item.values.shape)
            declared.vision.layers = layers[: 1 + (shapes[0] != shapes[-1])]
            try:
                return encode(ctx, item)
            finally:
                declared.vision.layers = layers

        monkeypatch.setattr(declared, "encode_multimodal", shortened)
        with model.capture(name) as seen:
            for size in sizes:
                model.encode_image(Image.new("RGB", size))
        assert [name in one for one in seen.requests] == [False, True]


def test_a_patch_of_a_tower_that_raises_ends_its_own_request():
    def fails(rows: np.ndarray) -> np.ndarray:
        raise ValueError("no such direction")

    prompt: Any = [Path(SCENE), "what is in the picture?"]
    with ggmodel.load(SHAPES, parallel=2) as model:
        with model.patch({"vision.layers.1": fails}):
            bad = model.request(prompt, max_tokens=4)
        good = model.request(prompt, max_tokens=4)
        for one in (bad, good):
            one.start()
        assert wait(good).tokens
        with pytest.raises(ComputeError, match=r"patch of vision\.layers\.1 raised ValueError"):
            wait(bad)


def test_an_encoder_of_the_prompts_text_is_seen_beside_the_decoder():
    """T5's, whose halves share the embedding of tokens: the decoder's call is the second one."""
    options: Any = {"max_tokens": 3, "temperature": 0}
    names = ("encoder.layers.0", "decoder.layers.1", "embed")
    with ggmodel.load(source_of(load_golden("t5", "gated")), context_length=64) as model:
        done = model.generate([5, 6, 7, 8, 9], capture=names, **options)
        assert done.captured is not None
        sizes = {name: len(rows) for name, rows in done.captured.items()}
        assert sizes == {"embed": 5, "encoder.layers.0": 5, "embed#2": 3, "decoder.layers.1": 3}
        with model.patch({"encoder.layers.0": lambda rows: np.roll(rows, 1, axis=1)}):
            logits = model.logits([5, 6, 7, 8, 9])
        assert nmse(logits, model.logits([5, 6, 7, 8, 9])) > 1e-6


def test_nothing_is_recorded_for_requests_that_ask_for_nothing(stories: LoadedModel):
    graphs = stories.engine.graphs
    stories.generate(PROMPT, max_tokens=3, temperature=0, capture="layers.*")
    assert any(key[2] for key in graphs._entries)
    stories.generate("A new prompt", max_tokens=3, temperature=0)
    assert all(entry.tap is None for key, entry in graphs._entries.items() if not key[2])
