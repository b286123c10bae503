"""Images in prompts: encoded once, laid over their placeholders, in any batches, for many users."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import ggmodel
from ggmodel import Input, MultimodalEmbedding
from ggmodel.errors import ComputeError, Error, PromptError, TensorError, Unsupported
from ggmodel.gguf_file import MemorySource
from ggmodel.model import Multimodal, Pixels, find
from ggmodel.runner import LoadedModel
from ggmodel.runner.engine.images import Encoded
from ggmodel.workbench.observe import watch_item

MODELS = Path(__file__).parents[1] / "models"
TEXT = [3, 17, 40, 9, 22, 31]
HIDDEN = 64
ROWS = 9
EXACT = 1e-8  # float32 sums in another order

Open = Callable[..., LoadedModel]


def nmse(got: np.ndarray, want: np.ndarray) -> float:
    return float(((got - want) ** 2).sum() / (want**2).sum())


def picture(seed: int, size: tuple[int, int] = (6, 6)) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)
    return Image.fromarray(pixels)


def png(seed: int) -> bytes:
    stream = BytesIO()
    picture(seed).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture(scope="module")
def projection(source: MemorySource) -> np.ndarray:
    hidden = source.tensors["token_embd.weight"].shape[0]
    return np.random.default_rng(5).normal(size=(hidden, 12)).astype(np.float32)


@pytest.fixture(scope="module")
def seeing(source: MemorySource, projection: np.ndarray) -> Callable[[str], MemorySource]:
    def make(architecture: str) -> MemorySource:
        metadata = {k.replace("llama.", f"{architecture}."): v for k, v in source.metadata.items()}
        metadata["general.architecture"] = architecture
        tensors = {n: (t.dtype, t.shape, bytes(source.data(n))) for n, t in source.tensors.items()}
        return MemorySource(metadata, {**tensors, "v.proj.weight": projection})

    return make


@pytest.fixture
def open_model(seeing: Callable[[str], MemorySource]) -> Iterator[Open]:
    opened: list[LoadedModel] = []

    def open_it(architecture: str = "glancer", **options: object) -> LoadedModel:
        given = {"kv_type": "f32", "flash_attention": "off", "context_length": 128, **options}
        model = ggmodel.load(seeing(architecture), models=MODELS, **given)
        opened.append(model)
        return model

    yield open_it
    for model in opened:
        model.close()


def rows_of(projection: np.ndarray, seed: int) -> np.ndarray:
    """The expected result of the vision graph for a picture, float64."""
    planes = np.asarray(picture(seed), np.float64).transpose(2, 0, 1) / 255
    patches = planes.reshape(3, 3, 2, 3, 2).transpose(1, 3, 0, 2, 4).reshape(ROWS, 12)
    return patches @ projection.astype(np.float64).T


def as_words(source: MemorySource, rows: np.ndarray) -> tuple[MemorySource, int]:
    """A llama with a word for each row of an image, and the first of these words."""
    table = source.tensors["token_embd.weight"]
    words = np.frombuffer(source.data("token_embd.weight"), np.float32).reshape(table.shape[::-1])
    tensors = {n: (t.dtype, t.shape, bytes(source.data(n))) for n, t in source.tensors.items()}
    more = np.concatenate([words, rows.astype(np.float32)])
    return MemorySource(source.metadata, {**tensors, "token_embd.weight": more}), len(words)


def test_rows_are_what_the_model_makes_of_pixels(open_model: Open, projection: np.ndarray):
    model = open_model()
    (found,) = model.encode_image(picture(1))
    assert isinstance(found, MultimodalEmbedding)
    assert found.rows.shape == (ROWS, projection.shape[0]) and found.rows.dtype == np.float32
    assert nmse(found.rows, rows_of(projection, 1)) < 1e-12
    pixels = np.asarray(picture(1), np.float32).transpose(2, 0, 1)[None] / 255
    (again,) = model.encode_image(pixels, marked="so")
    assert nmse(again.rows, found.rows) < 1e-12
    assert again.data == {"marked": "so"}


@pytest.mark.parametrize("batch_size", [512, 4, 1])
@pytest.mark.parametrize("text", [[], TEXT], ids=["at the start", "in the middle"])
def test_a_row_counts_as_the_word_that_has_it(
    open_model: Open, source: MemorySource, projection: np.ndarray, text: list[int], batch_size: int
):
    llama, first = as_words(source, rows_of(projection, 1))
    words = [*text, 5, *range(first, first + ROWS), 7, *TEXT]
    with ggmodel.load(llama, kv_type="f32", flash_attention="off") as plain:
        want = plain.logits(words)
        answer = plain.generate(words, max_tokens=8, temperature=0).tokens
    model = open_model(batch_size=batch_size)
    prompt = [*text, picture(1), *TEXT]
    assert nmse(model.logits(prompt), want) < EXACT
    assert model.generate(prompt, max_tokens=8, temperature=0).tokens == answer


@pytest.mark.parametrize("architecture", ["glancer", "gazer"])
def test_any_batch_split_gives_the_same(open_model: Open, architecture: str):
    prompt = [*TEXT, picture(1), 11, picture(2), *TEXT]
    whole = open_model(architecture)
    want = whole.logits(prompt)
    answer = whole.generate(prompt, max_tokens=8, temperature=0).tokens
    for batch_size in (64, 13, 3, 1):
        model = open_model(architecture, batch_size=batch_size)
        assert nmse(model.logits(prompt), want) < EXACT
        assert model.generate(prompt, max_tokens=8, temperature=0).tokens == answer


def test_what_sees_both_ways_differs_from_what_does_not(open_model: Open):
    prompt = [*TEXT, picture(1), *TEXT]
    one, other = open_model("gazer").logits(prompt), open_model("glancer").logits(prompt)
    assert nmse(one[: len(TEXT) + 1], other[: len(TEXT) + 1]) < EXACT  # before the image
    assert nmse(one[len(TEXT) + 1], other[len(TEXT) + 1]) > 1e-3  # its first row


def test_embeddings_laid_by_hand(open_model: Open):
    model = open_model("gazer")
    (found,) = model.encode_image(picture(1))
    by_hand = [
        *map(Input, TEXT),
        Input(5),
        Input(0, multimodal=MultimodalEmbedding(found.rows)),
        *[Input(0)] * (ROWS - 1),
        Input(7),
    ]
    want = model.logits([*TEXT, picture(1)])
    assert model.logits(by_hand).tobytes() == want.tobytes()


def test_an_image_is_encoded_once(open_model: Open, monkeypatch: pytest.MonkeyPatch):
    made: list[bytes] = []
    init = Encoded.__init__

    def counted(self: Encoded, *args) -> None:
        made.append(args[-2])  # the digest
        init(self, *args)

    model = open_model(batch_size=3)
    monkeypatch.setattr(Encoded, "__init__", counted)
    for prompt in ([picture(1), 3, picture(1)], [4, png(1)], [png(1), 9]):
        model.generate(prompt, max_tokens=2)
    assert len(made) == 1  # however it is given
    assert model.engine.images.nbytes == ROWS * HIDDEN * 4


def test_a_second_question_about_the_same_image_computes_only_the_question(open_model: Open):
    model = open_model(parallel=2)
    first = model.generate([picture(1), *TEXT], max_tokens=4, temperature=0)
    recorded = model.engine.graphs.recorded + model.engine.graphs.replayed
    slot = max(model.engine.sequences.all, key=lambda s: len(s.tokens))
    assert len(slot.tokens) == 1 + ROWS + 1 + len(TEXT) + 3
    again = model.generate([picture(1), *TEXT], max_tokens=4, temperature=0)
    assert again.tokens == first.tokens
    steps = model.engine.graphs.recorded + model.engine.graphs.replayed - recorded
    assert steps == 4  # the last token of the prompt, and three more
    other = model.generate([picture(2), *TEXT], max_tokens=4, temperature=0)
    alone = open_model().generate([picture(2), *TEXT], max_tokens=4, temperature=0)
    assert other.tokens == alone.tokens


@pytest.mark.parametrize("architecture", ["glancer", "gazer"])
@pytest.mark.parametrize("batch_size", [512, 5])
def test_users_with_different_images_at_once(open_model: Open, architecture: str, batch_size: int):
    def prompt(n: int) -> list:
        return [*TEXT[: n % 4], picture(n % 3), *TEXT[::-1][: n % 5]]

    alone = open_model(architecture)
    want = [alone.generate(prompt(n), max_tokens=6, temperature=0).tokens for n in range(9)]
    model = open_model(architecture, parallel=3, batch_size=batch_size)
    got: dict[int, list[int]] = {}

    def ask(n: int) -> None:
        got[n] = model.generate(prompt(n), max_tokens=6, temperature=0).tokens

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [got[n] for n in range(9)] == want
    assert all(slot.free for slot in model.engine.sequences.all)


def test_context_shift_keeps_groups_whole(open_model: Open):
    model = open_model("gazer", context_length=32)
    done = model.generate(
        [*TEXT, picture(1), *TEXT], max_tokens=60, context_shift=True, num_keep=8, temperature=0
    )
    assert len(done.tokens) == 60
    slot = max(model.engine.sequences.all, key=lambda s: len(s.tokens))
    assert sum(n < 0 for n in slot.tokens) in (0, ROWS)


def test_a_long_prompt_is_cut_around_images(open_model: Open):
    model = open_model("gazer", context_length=32)
    prompt = [*TEXT, picture(1), *range(20, 46)]
    with pytest.raises(PromptError, match=r"43 tokens, the context 32.*truncate=True"):
        model.generate(prompt)
    request = model.request(prompt, truncate=True, num_keep=4, max_tokens=1)
    # 11 have to go; the group of the image cannot be cut, so all of it goes.
    assert request.prompt.tolist() == [*TEXT[:4], 7, *range(20, 46)]
    request = model.request(prompt, truncate=True, num_keep=10, max_tokens=1)
    assert request.prompt.tolist()[:7] == [*TEXT, 5]  # what is kept does not end within it
    with pytest.raises(PromptError, match="nothing is left"):
        model.request(list(range(40)), truncate=True, num_keep=32)


def test_one_user_whose_image_cannot_be_encoded_fails_alone(
    open_model: Open, monkeypatch: pytest.MonkeyPatch
):
    model = open_model(parallel=2)
    want = model.generate([picture(2), *TEXT], max_tokens=12, temperature=0).tokens
    row = Encoded._row

    def fails(self: Encoded, i: int) -> np.ndarray:
        if self is bad:
            raise ComputeError("the tower fell")
        return row(self, i)

    monkeypatch.setattr(Encoded, "_row", fails)
    embeddings = model.embeddings(picture(3))
    bad = next(e for e in model.engine.images._items.values() if e.embeddings is embeddings)
    running = model.stream([picture(2), *TEXT], max_tokens=12, temperature=0)
    tokens = [next(running).token]
    with pytest.raises(ComputeError, match="the tower fell"):
        model.generate([*TEXT, embeddings])
    assert tokens + [piece.token for piece in running] == want
    assert all(slot.free for slot in model.engine.sequences.all)


def test_markers_say_where_images_belong(open_model: Open):
    model = open_model()
    parts: Any = model.prompts.with_items("a<image>b", {"images": [picture(1)]})
    assert [parts[0].text, parts[2].text] == ["a", "b"]
    assert model.prompts.with_items("a", {"images": [picture(1)]})[1:] == ["a"]
    with pytest.raises(PromptError, match="2 times for 1 images: image 2 is missing"):
        model.prompts.with_items("<image><image>", {"images": [picture(1)]})
    with pytest.raises(PromptError, match="goes with a text"):
        model.generate([1, 2], images=[picture(1)])


def test_what_cannot_be_laid(open_model: Open, source: MemorySource):
    model = open_model("gazer")
    (found,) = model.encode_image(picture(1))
    with pytest.raises(PromptError, match=r"9 rows and runs into the end.*8 more placeholders"):
        model.logits([Input(3), Input(0, found), Input(0)])
    with pytest.raises(PromptError, match="another one's rows"):
        model.logits([Input(0, found), Input(0, found), *[Input(0)] * 20])
    with pytest.raises(PromptError, match="must share a batch with the 3"):
        model.logits([Input(1), Input(1, same_batch=3), Input(1)])
    with pytest.raises(PromptError, match="rows of shape"):
        MultimodalEmbedding(np.zeros(3))
    with pytest.raises(Error, match="multimodal"):
        model.logits([Input(1, MultimodalEmbedding(np.ones((1, 3))))])
    with pytest.raises(PromptError, match=r"array \[2, 2\]; this model takes \[tiles, 3, height"):
        model.encode_image(np.zeros((2, 2)))
    with pytest.raises(PromptError, match="images have no log-probabilities"):
        model.score([*TEXT, picture(1)])
    with (
        ggmodel.load(source) as plain,
        pytest.raises(Unsupported, match=r"takes no images.*mmproj"),
    ):
        plain.generate([picture(1)])


def test_two_threads_see_two_images_while_a_third_generates(open_model: Open):
    model = open_model("gazer")
    (one,), (two,) = (
        model.engine.images.encode_media("image", picture(n)) for n in (1, 2)
    )  # not yet computed
    seen: dict[str, np.ndarray] = {}
    threads = [
        threading.Thread(target=lambda: seen.update(one=one.rows), daemon=True),
        threading.Thread(target=lambda: seen.update(two=two.rows), daemon=True),
        threading.Thread(target=lambda: model.generate([[two], *TEXT], max_tokens=2), daemon=True),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert seen["one"] is one.rows and seen["two"] is two.rows


def test_who_prepares_an_image_keeps_no_other_waiting(
    open_model: Open, monkeypatch: pytest.MonkeyPatch
):
    glancer: Any = find("glancer", MODELS)
    preprocess, large = glancer.preprocess, (9, 9)
    begun, over, prepared = threading.Event(), threading.Event(), []

    def slow(self: Any, image: Any) -> Pixels:
        prepared.append(image.size)
        if image.size == large:
            begun.set()
            assert over.wait(20)
        return preprocess(self, image)

    monkeypatch.setattr(glancer, "preprocess", slow)
    model = open_model()
    seen: list[Any] = []
    threads = [
        threading.Thread(target=lambda: seen.append(model.embeddings(picture(1, large))))
        for _ in range(2)
    ]
    try:
        for thread in threads:
            thread.start()
        assert begun.wait(20)
        small = threading.Thread(
            target=lambda: model.generate([picture(2)], max_tokens=1), daemon=True
        )
        small.start()
        small.join(20)
        assert not small.is_alive()
    finally:
        over.set()
        for thread in threads:
            thread.join(20)
    assert prepared.count(large) == 1  # two users gave the same picture
    assert len(seen) == 2 and seen[0] is seen[1]


def test_groups_are_computed_together(open_model: Open):
    model = open_model("gazer", batch_size=4)
    prompt = [*map(Input, TEXT), Input(8, same_batch=5), *map(Input, TEXT)]
    assert nmse(model.logits(prompt), model.logits([*TEXT, 8, *TEXT])) < EXACT
    sizes: list[int] = []
    run = model.engine.graphs.run
    model.engine.graphs.run = lambda step, meanwhile=None: (  # type: ignore[method-assign]
        sizes.append(len(step.tokens)) or run(step, meanwhile)
    )
    model.generate(prompt[:12], max_tokens=1)
    assert sizes == [4, 2, 6]


def test_images_that_nobody_needs_are_forgotten(open_model: Open, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ggmodel.runner.engine.images._KEPT", 2 * ROWS * HIDDEN * 4)
    model = open_model(parallel=1)
    waiting = model.request([picture(100), *TEXT], max_tokens=4, temperature=0)
    for seed in range(6):
        model.generate([picture(seed)], max_tokens=1)
    gc.collect()
    # Two are kept, one of them in the slot; another one is waited for, and not computed.
    assert len(model.engine.images._items) == 3
    assert model.engine.images.nbytes == 2 * ROWS * HIDDEN * 4
    fresh = open_model().generate([picture(100), *TEXT], max_tokens=4, temperature=0)
    assert waiting.run().tokens == fresh.tokens


def test_rows_that_are_read_while_others_generate(open_model: Open):
    model = open_model(parallel=2)
    want = model.generate([picture(1), *TEXT], max_tokens=20, temperature=0).tokens
    over = threading.Event()

    def look() -> None:
        seed = 10
        while not over.is_set():
            assert model.embeddings(picture(seed))[0].rows.shape == (ROWS, HIDDEN)
            seed += 1

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(8):
            done = model.generate([picture(1), *TEXT], max_tokens=20, temperature=0)
            assert done.tokens == want
    finally:
        over.set()
        thread.join()


def test_images_that_differ_in_their_data_are_two(open_model: Open):
    model, pixels = open_model(), np.zeros((1, 3, 6, 6), np.float32)
    mask = np.zeros(2000)
    mask[1000] = 1
    one, other = (model.embeddings(pixels, mask=m) for m in (mask, 0 * mask))
    assert one[0].key != other[0].key
    assert model.embeddings(pixels, mask=mask.copy()) is one


@pytest.mark.parametrize("rows", [True, False])
def test_data_alone_passes_through(open_model: Open, monkeypatch: pytest.MonkeyPatch, rows: bool):
    """A Multimodal without a tensor, beside one that has rows or as all that an image becomes."""
    glancer: Any = find("glancer", MODELS)
    encode, place = glancer.encode_multimodal, glancer.post_tokenize

    def labelled(self: Any, ctx: Any, image: Any) -> list[Multimodal]:
        return [Multimodal(data={"label": 23}), *(encode(self, ctx, image) if rows else ())]

    def placed(self: Any, inputs: list[Any]) -> Sequence[Input | str]:
        out: list[Any] = []
        for one in inputs:
            if isinstance(one, list):
                label, *one = one
                assert (len(label), label.rows.size) == (0, 0)
                out.append(Input(label.data["label"]))
            out += [one] if one else []
        return place(self, out)

    monkeypatch.setattr(glancer, "encode_multimodal", labelled)
    monkeypatch.setattr(glancer, "post_tokenize", placed)
    model = open_model()
    got = model.logits([*TEXT, picture(1)])
    seen = model.embeddings(picture(1))
    assert [len(one) for one in seen] == ([0, ROWS] if rows else [0])
    assert model.generate([picture(1), *TEXT], max_tokens=3, temperature=0).tokens
    monkeypatch.undo()
    plain = open_model()
    want = plain.logits([*TEXT, 23, *([picture(1)] if rows else [])])
    assert nmse(got, want) < EXACT
    with pytest.raises(PromptError, match="input 1: this embedding has no rows, only data"):
        plain.logits([3, Input(0, seen[0])])


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("wrong", ["one", "tensor", "tuple", "none", "empty", "unfit"])
def test_what_is_no_list_of_parts(
    open_model: Open, monkeypatch: pytest.MonkeyPatch, wrong: str, watched: bool
):
    """Refused where prompts are computed, and where `diff` and `trace` watch the image."""
    glancer: Any = find("glancer", MODELS)
    encode = glancer.encode_multimodal

    def encoded(self: Any, ctx: Any, image: Any) -> Any:
        (part,) = encode(self, ctx, image)
        unfit = Multimodal(ctx.input().from_floats([[1.0]]))
        return {
            "one": part,
            "tensor": part.tensor,
            "tuple": (part,),
            "none": None,
            "empty": [],
            "unfit": [part, unfit],
        }[wrong]

    model = open_model()
    pixels = np.zeros((1, 3, 6, 6), np.float32)
    monkeypatch.setattr(glancer, "encode_multimodal", encoded)
    shown = {"one": "not Multimodal$", "tuple": "not tuple$", "empty": "not an empty list$"}

    def never(recording: object) -> Any:
        pytest.fail(f"{recording} is not to be computed")

    match = rf"must return a list of Multimodal\(.*{shown.get(wrong, '')}"
    with pytest.raises(TensorError, match=match):
        watch_item(model, "image", Pixels(pixels), never) if watched else model.embeddings(pixels)


def test_inputs_are_checked(open_model: Open):
    model = open_model()
    for bad in (Input(-19), Input(1.5), Input("a"), Input(3, "x"), Input(3, same_batch=-3)):  # type: ignore[arg-type]
        with pytest.raises(PromptError, match="input 1"):
            model.logits([3, bad])
    with pytest.raises(PromptError, match="2147483647 is not in the vocabulary"):
        model.logits([3, Input((1 << 31) - 1)])
    for bad in (5, None, picture(1), np.array(3), Path("a.png"), b"PNG"):
        with pytest.raises(PromptError, match="a prompt is text, or a list"):
            model.generate(bad)  # type: ignore[arg-type]
    for bad in (5, "a.png", None):
        with pytest.raises(PromptError, match="images is a list"):
            model.generate("text", images=bad)  # type: ignore[arg-type]


def test_memory_of_vision(open_model: Open, seeing: Callable[[str], MemorySource]):
    model = open_model("gazer")
    vision = model.encoder_memory["image"]
    assert (vision.weights, vision.rows) == (12 * HIDDEN * 4, ROWS * HIDDEN * 4)
    result = ggmodel.estimate(seeing("gazer"), models=MODELS, kv_type="f32", context_length=128)
    assert result.encoders == model.encoder_memory


def test_a_batch_that_is_smaller_than_an_image_reserves_for_it(open_model: Open):
    model = open_model("gazer", batch_size=2, parallel=3)
    before = model.memory.size()
    model.generate([*TEXT, picture(1), *TEXT], max_tokens=4)
    assert model.memory.size() == before
    assert model.engine.cache.max_batch == ROWS + 2


def test_an_item_that_is_closed_while_it_is_measured():
    """As by the engine's thread, between any two looks at it."""
    left: list[Any] = [Pixels(np.zeros(4, np.float32))]

    class Closing(Encoded):
        @property
        def prepared(self) -> Any:  # type: ignore[override]
            return left.pop() if left else None

        _recorded = None  # type: ignore[assignment]
        embeddings = ()  # type: ignore[assignment]

    one: Encoded = object.__new__(Closing)
    assert one.held == 16 and one.held == 0
