"""Images, sounds and videos in prompts: one way for all, texts and parts among their rows."""

from __future__ import annotations

import base64
import io
import threading
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import ggmodel
from ggmodel import Input
from ggmodel.audio import Audio
from ggmodel.convert.quantize import decode
from ggmodel.errors import AudioError, PromptError, Unsupported, VideoError
from ggmodel.gguf_file import MemorySource, open_gguf
from ggmodel.ml import DType
from ggmodel.model import Prepared, find
from ggmodel.runner import LoadedModel

MODELS = Path(__file__).parents[1] / "models"
STORIES = Path(__file__).parents[3] / "examples" / "assets" / "stories.gguf"
EXACT = 1e-8  # float32 sums in another order
RATE = 1000
TEMPLATE = """{% for m in messages %}{{ m.role }}:{% for part in m.content %}
{%- if part.type == 'image' %}<image>{% elif part.type == 'audio' %}<sound>
{%- elif part.type == 'video' %}<video>{% else %}{{ part.text }}{% endif %}
{%- endfor %}{% endfor %}"""

Open = Callable[..., LoadedModel]


def picture(seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (4, 4, 3), np.uint8))


def sound(seed: int, rows: int = 2) -> Audio:
    samples = np.random.default_rng(seed).uniform(-1, 1, 12 * rows)
    levels = (samples * 32767).astype(np.int16)
    return Audio((levels / 32768).astype(np.float32), RATE)


def video(seed: int, frames: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (frames, 2, 2, 3), np.uint8)


def watched(seed: int, frames: int = 2) -> dict[str, Any]:
    return {"type": "video", "video": video(seed, frames)}


def png(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def wav(audio: Audio) -> bytes:
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(audio.rate)
        file.writeframes((audio.samples * 32768).astype("<i2").tobytes())
    return stream.getvalue()


@pytest.fixture(scope="module")
def projections() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(5)
    one, two = random.normal(size=(2, 192, 12)).astype(np.float32)
    return one, two


@pytest.fixture(scope="module")
def make(projections: tuple[np.ndarray, np.ndarray]) -> Callable[..., MemorySource]:
    def source(architecture: str, **tensors: Any) -> MemorySource:
        with open_gguf(STORIES) as file:
            metadata = {
                k.replace("llama.", f"{architecture}."): v for k, v in file.metadata.items()
            }
            metadata |= {"general.architecture": architecture, "tokenizer.chat_template": TEMPLATE}
            found = {
                name: (DType.F32, t.shape, decode(file.data(name), t.dtype, t.n_elements).tobytes())
                for name, t in file.tensors.items()
            }
            return MemorySource(metadata, {**found, **tensors})

    return source


@pytest.fixture
def open_model(
    make: Callable[..., MemorySource], projections: tuple[np.ndarray, np.ndarray]
) -> Iterator[Open]:
    opened: list[LoadedModel] = []
    rows, deep = projections

    def open_it(**options: object) -> LoadedModel:
        given = {"kv_type": "f32", "flash_attention": "off", "context_length": 128, **options}
        source = make("sensor", **{"s.rows.weight": rows, "s.deep.weight": deep})
        opened.append(ggmodel.load(source, models=MODELS, **given))
        return opened[-1]

    yield open_it
    for model in opened:
        model.close()


def shown(model: LoadedModel, prompt: Any) -> list[int | str]:
    """A prompt's inputs: token ids, and the kinds of rows."""
    table, found = model.engine.inputs, list[int | str]()
    for number in model.prompts.numbers(prompt):
        embedding = table[number].embedding if number < 0 else None
        found.append(int(number) if embedding is None else embedding.kind)
    return found


def split(model: LoadedModel, *parts: str | list[str]) -> list[int | str]:
    """The inputs that texts become with rows between them; the first one begins the prompt."""
    found: list[int | str] = []
    for i, part in enumerate(parts):
        found += part if isinstance(part, list) else model.tokenize(part, add_special=i == 0)
    return found


def test_texts_are_one_string_with_what_stands_beside_them(open_model: Open):
    model = open_model()
    seen = ["image"] * 4
    want = split(model, "Once upon a[", seen, "] there was")
    assert model.tokenize(" there") != model.tokenize(" the") + model.tokenize("re")
    assert shown(model, ["Once upon a", picture(1), "re was"]) == want
    assert (
        shown(
            model,
            model.prompts.with_items("Once upon a<image>re was", {"images": [png(picture(1))]}),
        )
        == want
    )
    # At the beginning the special tokens come first; ids are no text.
    assert shown(model, [picture(1), "re"]) == split(model, "[", seen, "] there")
    assert shown(model, [7, picture(1), 9]) == [7, *split(model, "[", seen, "] the")[1:], 9]
    # Two items in a row: the text of one goes on in that of the other.
    both = shown(model, [picture(1), picture(2), "re"])
    assert both == split(model, "[", seen, "] the[", seen, "] there")
    assert shown(model, ["a", sound(1), "b"]) == split(model, "a", ["audio"] * 2, "b")
    assert shown(model, ["a", watched(1), "b"]) == split(
        model, "a0.0s", ["video"], "0.0s", ["video"], "b"
    )


def test_a_model_that_lays_out_the_whole_prompt_may_return_texts(
    open_model: Open, monkeypatch: pytest.MonkeyPatch
):
    sensor = find("sensor", MODELS)

    def placed(self: Any, inputs: list[Any]) -> list[Input | str]:
        first, *rest = inputs
        out: list[Input | str] = [first]  # of "Once upon", whose text is joined all the same
        for one in rest:
            out += self.seen(one) if isinstance(one, list) else [one]
        return [*out, "re"]

    monkeypatch.setattr(sensor, "post_tokenize", placed)
    model = open_model()
    found = shown(model, ["Once upon", picture(1)])
    assert found == split(model, "Once upon[", ["image"] * 4, "] there")

    monkeypatch.setattr(sensor, "post_tokenize", lambda self, inputs: [*inputs[0:1], "x", 5])
    with pytest.raises(ggmodel.Error, match="must return a list of Input, and of texts"):
        model.generate(["a", picture(1)])


def words(
    make: Callable[..., MemorySource],
    values: np.ndarray,
    projections: tuple[np.ndarray, np.ndarray],
) -> tuple[MemorySource, int]:
    """A model with a word for each of these rows float32 [rows, 12], and the first word."""
    with open_gguf(STORIES) as file:
        info = file.tensors["token_embd.weight"]
        table = decode(file.data("token_embd.weight"), info.dtype, info.n_elements)
        head = file.tensors.get("output.weight")
    table = table.reshape(info.shape[::-1])
    rows, deep = (values @ p.T for p in projections)
    more = np.concatenate([table, rows]).astype(np.float32)
    parts = np.concatenate([np.zeros_like(table), deep]).astype(np.float32)
    tensors: dict[str, Any] = {"token_embd.weight": more, "s.deep.weight": parts}
    if head is None:
        tensors["output.weight"] = (DType.F32, info.shape, table.astype(np.float32).tobytes())
    return make("sensed", **tensors), len(table)


@pytest.mark.parametrize("batch_size", [512, 4, 1])
def test_parts_are_added_where_the_model_wants_them(
    open_model: Open,
    make: Callable[..., MemorySource],
    projections: tuple[np.ndarray, np.ndarray],
    batch_size: int,
):
    model = open_model(batch_size=batch_size)
    values = np.random.default_rng(3).normal(size=(5, 12)).astype(np.float32)
    prompt = ["Once upon", {"type": "audio", "audio": values}, "there was"]
    source, first = words(make, values, projections)
    with ggmodel.load(
        source, models=MODELS, kv_type="f32", flash_attention="off", context_length=128
    ) as said:
        by_words = [
            *model.tokenize("Once upon"),
            *range(first, first + 5),
            *model.tokenize("there was", add_special=False),
        ]
        want = said.logits(by_words)
    got = model.logits(prompt)
    assert float(((got - want) ** 2).sum() / (want**2).sum()) < EXACT
    (rows,) = model.encode_media("audio", values)
    assert rows.parts[0].shape == (5, 192) and rows.widths == (192,)
    np.testing.assert_allclose(rows.parts[0], values @ projections[1].T, rtol=1e-4, atol=1e-4)


def test_rows_without_parts_beside_rows_with_them(open_model: Open):
    """Both in one batch: those without add nothing."""
    model = open_model()
    (rows,) = model.encode_media("image", picture(1))
    bare = ggmodel.MultimodalEmbedding(rows.rows)
    zero = ggmodel.MultimodalEmbedding(rows.rows, parts=[np.zeros_like(rows.parts[0])])

    def laid(embedding: ggmodel.MultimodalEmbedding) -> list[Input]:
        return [Input(0, embedding), *[Input(0)] * 3]

    one, other = (
        model.logits([Input(3), *laid(rows), Input(4), *laid(second), Input(5)])
        for second in (bare, zero)
    )
    assert one.tobytes() == other.tobytes()
    with pytest.raises(PromptError, match=r"parts of \[3\] rows for 4 rows"):
        ggmodel.MultimodalEmbedding(rows.rows, parts=[np.zeros((3, 2))])


def test_rows_of_another_width_are_refused_before_they_meet_others(open_model: Open):
    model = open_model()
    rows = np.ones((1, 192), np.float32)
    for wrong in (np.ones((1, 3)), rows):
        parts = [np.ones((1, 5))] if wrong is rows else []
        with pytest.raises(PromptError, match=r"input 1: this multimodal embedding has rows"):
            model.generate([Input(3), Input(0, ggmodel.MultimodalEmbedding(wrong, parts=parts))])
    assert model.generate([Input(3), Input(0, ggmodel.MultimodalEmbedding(rows))], max_tokens=1)


PROMPTS: list[Callable[[int], list[Any]]] = [
    lambda n: [picture(n), "who is there"],
    lambda n: ["Once upon", sound(n), "a time"],
    lambda n: ["the", watched(n), "end", sound(n)],
    lambda n: [picture(n), picture(n + 1), "a dog", watched(n)],
]


@pytest.mark.parametrize("batch_size", [512, 5])
def test_users_of_all_kinds_at_once(open_model: Open, batch_size: int):
    asked = [PROMPTS[n % 4](n % 3) for n in range(12)]
    alone = open_model()
    want = [alone.generate(prompt, max_tokens=6, temperature=0).tokens for prompt in asked]
    model = open_model(parallel=4, batch_size=batch_size)
    got: dict[int, list[int]] = {}

    def ask(n: int) -> None:
        got[n] = model.generate(asked[n], max_tokens=6, temperature=0).tokens

    threads = [threading.Thread(target=ask, args=(n,), daemon=True) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [got.get(n) for n in range(12)] == want
    assert all(slot.free for slot in model.engine.sequences.all)


def test_content_is_encoded_once_however_it_is_given(open_model: Open, tmp_path: Path):
    model, one = open_model(), sound(1)
    (tmp_path / "one.wav").write_bytes(wav(one))
    url = "data:audio/wav;base64," + base64.b64encode(wav(one)).decode()
    found = [
        model.embeddings(given, "audio")[0].key
        for given in (one, (one.samples, RATE), wav(one), tmp_path / "one.wav", url)
    ]
    assert len(set(found)) == 1
    others = [
        model.embeddings(Audio(one.samples, RATE + 1), "audio")[0].key,
        model.embeddings(Prepared(one.samples.reshape(-1, 12)), "audio")[0].key,
        model.embeddings(Prepared(one.samples.reshape(-1, 12)), "image")[0].key,
        model.embeddings(one.samples.reshape(-1, 12), "audio", mark=1)[0].key,
    ]
    assert len({*found, *others}) == 5
    frames = video(1)
    keys = {
        model.embeddings(given, "video")[0].key
        for given in (frames, [*frames], [Image.fromarray(f) for f in frames], (frames, 24))
    }
    assert len(keys) == 1


def test_a_prompt_tells_kinds_apart(open_model: Open, tmp_path: Path):
    model = open_model()
    (tmp_path / "one").write_bytes(wav(sound(1)))
    (tmp_path / "two").write_bytes(png(picture(1)))
    (tmp_path / "frames").mkdir()
    Image.fromarray(video(1)[0]).save(tmp_path / "frames" / "1.png")
    seen, heard, frame = ["image"] * 4, ["audio"] * 2, ["video"]

    def kinds(*items: Any) -> list[str]:
        return [x for x in shown(model, [*items, "a"]) if isinstance(x, str)]

    assert kinds(tmp_path / "one", tmp_path / "two") == heard + seen
    assert kinds(tmp_path / "frames", wav(sound(1))) == frame + heard
    assert (
        kinds(sound(1), picture(1), {"type": "video", "video": video(1)})
        == heard + seen + 2 * frame
    )
    for ambiguous in (np.zeros((2, 12), np.float32), video(1)):
        with pytest.raises(PromptError, match=r"may be of several kinds; give \{'type': 'image'"):
            model.generate([ambiguous, "a"])
    with pytest.raises(PromptError, match="not of float"):
        model.generate([1.5, "a"])


def test_options_and_markers(open_model: Open):
    model = open_model()
    both = {"images": [picture(1)], "audio": [sound(1)]}
    seen, heard = ["image"] * 4, ["audio"] * 2
    found = shown(model, model.prompts.with_items("a<sound>b<image>re", both))
    assert found == split(model, "a", heard, "b[", seen, "] there")
    # An item without a marker precedes the text, the others stand in their places.
    found = shown(model, model.prompts.with_items("a<sound>b", both))
    assert found == split(model, "[", seen, "] thea", heard, "b")
    want = model.generate(["a", sound(1), "b"], max_tokens=5, temperature=0).tokens
    said = model.generate("a<sound>b", audio=[wav(sound(1))], max_tokens=5, temperature=0)
    assert said.tokens == want
    pieces = list(model.stream("a<video>b", videos=[video(1)], max_tokens=3, temperature=0))
    assert len(pieces) == 3


@pytest.mark.parametrize(
    ("text", "given", "message"),
    [
        ("<image><image>", {"images": [1]}, "'<image>' 2 times for 1 images: image 2 is missing"),
        ("<sound>", {"audio": [1, 2]}, "'<sound>' 1 times for 2 sounds: audio 2 has no place"),
        ("<video><video>", {"videos": [1]}, "'<video>' 2 times for 1 videos: video 2 is missing"),
        ("a", {"audio": b"abc"}, "audio is a list of sounds, not bytes"),
        ("a", {"videos": 5}, "videos is a list of videos, not int"),
        ([1, 2], {"audio": [1]}, "audio= goes with a text"),
    ],
)
def test_markers_that_do_not_match(open_model: Open, text: Any, given: Any, message: str):
    """Refused before an item is looked at."""
    with pytest.raises(PromptError, match=message):
        open_model().generate(text, **given)


def test_messages_with_parts_of_all_kinds(open_model: Open):
    model = open_model()
    coded = base64.b64encode(wav(sound(1))).decode()
    url = "data:audio/wav;base64," + coded
    seen, heard, frame = ["image"] * 4, ["audio"] * 2, ["video"]

    def asked(*content: Any, **more: Any) -> list[int | str]:
        return shown(model, model.chat_prompt([{"role": "user", "content": [*content], **more}]))

    text = {"type": "text", "text": "re"}
    image = {"type": "image", "image": picture(1)}
    want = split(model, "user:[", seen, "] there")
    assert asked(image, text) == want
    assert (
        asked({"type": "image", "base64": base64.b64encode(png(picture(1))).decode()}, text) == want
    )
    assert asked(text, images=[picture(1)]) == want
    for part in (
        {"type": "audio", "audio": sound(1)},
        {"type": "audio", "audio": sound(1).samples, "sampling_rate": RATE},
        {"type": "audio", "url": url},
        {"type": "input_audio", "input_audio": {"data": coded, "format": "wav"}},
        {"type": "audio_url", "audio_url": {"url": url}},
    ):
        assert asked(part, text) == split(model, "user:", heard, "re")
    for part in (
        {"type": "video", "video": video(1), "fps": 2},
        {"type": "video", "video": [*video(1)], "fps": 2.0},
    ):
        assert asked(part, text) == split(model, "user:0.0s", frame, "0.5s", frame, "re")
    mixed = asked(image, {"type": "audio", "audio": sound(1)}, text, audio=[sound(2, rows=1)])
    assert mixed == split(model, "user:", ["audio"], "[", seen, "] the", heard, "re")
    said = model.chat([{"role": "user", "content": [image, text]}], max_tokens=4, temperature=0)
    assert isinstance(said, ggmodel.Completion) and len(said.tokens) == 4
    # OpenAI's API describes a sound that the model made under the same name: it is no item.
    spoken = {"role": "assistant", "content": [text], "audio": {"id": "audio_1"}}
    assert shown(model, model.chat_prompt([spoken])) == split(model, "assistant:re")


def test_pictures_of_a_long_conversation_count(open_model: Open):
    model = open_model()
    text = {"type": "text", "text": "re"}
    turns = [
        {"role": "user", "content": [{"type": "image", "image": picture(i)}, text]}
        for i in range(20)
    ]
    kept = model.fitting(turns, max_tokens=8)
    assert 1 < len(kept) < len(turns) and kept == turns[-len(kept) :]
    assert len(shown(model, model.chat_prompt(kept))) <= 128 - 8
    assert len(shown(model, model.chat_prompt(turns[-len(kept) - 1 :]))) > 128 - 8
    blind = model.fitting([{**turn, "content": "re"} for turn in turns], max_tokens=8)
    assert len(blind) == len(turns)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "audio"}, "'audio' holds no audio"),
        ({"type": "video_url", "video_url": {}}, "'video_url' holds no video"),
        ({"type": "input_audio", "input_audio": {"data": "%%"}}, "audio of a message is no base64"),
        ({"type": "image", "base64": "a"}, "image of a message is no base64"),
    ],
)
def test_parts_without_an_item(open_model: Open, part: Any, message: str):
    with pytest.raises(PromptError, match=message):
        open_model().chat([{"role": "user", "content": [part]}])


def test_the_marker_of_a_sound_in_a_text_is_no_sound(open_model: Open):
    model = open_model()
    said = [{"type": "text", "text": "<sound>"}, {"type": "audio", "audio": sound(1)}]
    with pytest.raises(PromptError, match="message 0 holds the text '<sound>', which stands for"):
        model.chat([{"role": "user", "content": said}])


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"audio": [Audio(np.zeros(0, np.float32), RATE)]}, AudioError, "no samples"),
        ({"audio": [np.zeros(24, np.float32)]}, AudioError, "has no rate"),
        ({"audio": [sound(1, rows=6)]}, PromptError, r"at most 0\.06 s are heard"),
        ({"audio": [np.full((2, 12), np.nan, np.float32)]}, PromptError, r"holds nan at \[0, 0\]"),
        (
            {"images": [np.zeros((0, 12), np.float32)]},
            PromptError,
            r"\[0, 12\]: it holds no numbers",
        ),
        ({"images": [np.zeros((2, 5), np.float32)]}, PromptError, r"values \[2, 5\]"),
        (
            {"images": [Prepared([1.0])]},  # type: ignore[arg-type]
            PromptError,
            "values of this image are list; give an array",
        ),
        (
            {"audio": [Prepared(np.array(["a"]))]},
            PromptError,
            "of this audio are <U1; give an array",
        ),
        ({"videos": [[]]}, VideoError, "no frames"),
        ({"images": [Image.new("RGB", (1, 100_000))]}, ggmodel.Error, "image_side"),
    ],
)
def test_bad_items_are_refused_and_others_go_on(
    open_model: Open, given: Any, error: type[Exception], message: str
):
    model = open_model(parallel=2)
    want = model.generate("Once upon", max_tokens=8, temperature=0).tokens
    running = model.stream("Once upon", max_tokens=8, temperature=0)
    tokens = [next(running).token]
    with pytest.raises(error, match=message):
        model.generate("look", **given)
    assert tokens + [piece.token for piece in running] == want
    assert not model.engine.images._items


def test_kinds_that_a_model_does_not_take(open_model: Open):
    with ggmodel.load(STORIES) as plain:
        with pytest.raises(Unsupported, match="takes no audio: the file holds no audio tensors"):
            plain.generate("a", audio=[sound(1)])
        with pytest.raises(Unsupported, match="takes no videos"):
            plain.encode_media("video", [picture(1)])
        with pytest.raises(Unsupported, match="takes no audio"):
            plain.chat([{"role": "user", "content": [{"type": "audio", "audio": sound(1)}]}])
    with pytest.raises(Unsupported, match="no 'smell'; besides text it takes images and audio"):
        open_model().encode_media("smell", 1)


def test_memory_is_reserved_for_the_largest_of_each_kind(
    open_model: Open,
    make: Callable[..., MemorySource],
    projections: tuple[np.ndarray, np.ndarray],
):
    model = open_model(batch_size=16, parallel=2)
    each = {kind: memory.rows for kind, memory in model.encoder_memory.items()}
    row = 2 * 192 * 4  # with its part
    assert each == {"image": 4 * row, "audio": 5 * row, "video": 3 * row}
    assert {m.weights for m in model.encoder_memory.values()} == {2 * 12 * 192 * 4}
    before = model.memory.size()
    model.generate(["a", sound(1, rows=5), picture(1), watched(1, 9), "b"], max_tokens=4)
    assert model.memory.size() == before
    rows, deep = projections
    source = make("sensor", **{"s.rows.weight": rows, "s.deep.weight": deep})
    assert ggmodel.estimate(source, models=MODELS).encoders == model.encoder_memory
