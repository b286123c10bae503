"""Every model that sees, asked by several users at once: each gets what it would get alone.

A model joins by an entry in `SUBJECTS`. Logits are compared, not texts: answers are given, so that
near ties of random weights decide nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import ggmodel
from ggmodel.audio import Audio
from ggmodel.convert import from_hf
from ggmodel.gguf_file import MemorySource
from ggmodel.model import find, find_hf
from ggmodel.models.idefics3.video import introduction, moment
from ggmodel.runner import LoadedModel
from ggmodel.runner.engine.scoring import Scoring
from ggmodel.video import Video
from ggmodel.workbench.golden import nmse
from tests.golden.files import load_golden
from tests.golden.gemma3 import cases as gemma3
from tests.golden.gemma3n import cases as gemma3n
from tests.golden.gemma4 import cases as gemma4
from tests.golden.glm_ocr import cases as glm_ocr_cases
from tests.golden.idefics3 import cases as idefics3
from tests.golden.internvl import cases as internvl
from tests.golden.lfm2vl import cases as lfm2vl_cases
from tests.golden.paddleocr import cases as paddleocr_cases
from tests.golden.qwen2audio import cases as qwen2audio
from tests.golden.qwen2vl import cases as qwen2vl
from tests.golden.qwen3asr import cases as qwen3asr
from tests.golden.qwen3vl import cases as qwen3vl
from tests.golden.voxtral import cases as voxtral
from tests.models.forced import answers
from tests.models.words import Words

MODELS = Path(__file__).parents[1] / "runner" / "models"
SLOTS = 4
# Float32 sums in another order. Wrong positions, cells or rows make 1e-4 and more of it.
EXACT = 1e-9
# ggml's GELUs read tables in F16: a bit that falls the other way makes 1e-8.
TABLE = 1e-7
SEVERAL = 1e-5  # of them behind one another, between norms
TILES = {f"<row_{r}_col_{c}>": 50 + 5 * r + c for r in range(1, 5) for c in range(1, 5)}
TEXT = [3, 17, 40, 9, 22, 31, 12, 8]
ANSWER = [11, 4, 33, 20, 6]


def picture(number: int, size: tuple[int, int]) -> Image.Image:
    pixels = np.random.default_rng(number).integers(0, 256, (*size[::-1], 3), np.uint8)
    return Image.fromarray(pixels)


def video(number: int, frames: int) -> Video:
    """Frames of which two a second are seen."""
    pixels = np.random.default_rng(number).integers(0, 256, (frames, 16, 8 + 8 * number, 3))
    return Video(pixels.astype(np.uint8), np.arange(frames) / (1 + number))


def sound(number: int, samples: int = 6400) -> Audio:
    time = np.arange(samples) / 16_000
    return Audio(np.sin(2 * np.pi * 300 * number * time * (time + 1)).astype(np.float32), 16_000)


@dataclass(frozen=True)
class Subject:
    """A tiny model.

    Attributes:
        source: made of the number of its text layers; None is as many as it has.
        things: makes what may stand in a prompt, such as a picture, of a number: equal ones of
            equal numbers, and of another size where the model takes any.
        bound: NMSE of the same in another batch.
        shifted: NMSE after a shift of a model of one layer to the shortened text; None if its
            layers cannot shift.
        resumes: whether a text can go on anywhere; else where a piece of a prompt ended.
        options: of `load`.
        words: ids of texts that the model asks its vocabulary for.
        most: things that fit into a prompt; further ones are left out.
    """

    source: Callable[[int | None], MemorySource]
    things: Callable[[int], Any]
    bound: float = EXACT
    shifted: float | None = EXACT
    resumes: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    words: dict[str, int] = field(default_factory=dict)
    most: int = 2

    def fitting(self, prompt: list[Any]) -> list[Any]:
        things = [part for part in prompt if not isinstance(part, int)]
        return [part for part in prompt if isinstance(part, int) or part in things[: self.most]]

    def load(self, layers: int | None = None, **options: Any) -> LoadedModel:
        given = {"kv_type": "f32", "flash_attention": "off", "threads": 1, "context_length": 256}
        model = ggmodel.load(self.source(layers), **{**given, **self.options, **options})
        if self.words:
            model.model.tokenizer = Words(self.words)
        return model


def golden(
    architecture: str, case: str, depth: str = "text_config.num_hidden_layers", **changes: Any
) -> Callable[[int | None], MemorySource]:
    """The model of a golden.

    Args:
        depth: the key in config.json that has the number of text layers.
        changes: other keys beside it.
    """

    def source(layers: int | None) -> MemorySource:
        found = load_golden(architecture, case)
        part, _, key = depth.rpartition(".")
        config, weights = found.config, found.weights()
        changed = {**config.get(part, config), **changes}
        if layers is not None:
            changed[key] = layers
            weights = {n: w for n, w in weights.items() if _within(n, layers)}
        return from_hf(find(architecture), {**config, part: changed} if part else changed, weights)

    return source


def _within(name: str, layers: int) -> bool:
    """Whether a tensor is none of later text layers."""
    parts = name.split(".")
    tower = any(word in name for word in ("visual", "vision", "audio", ".encoder."))
    return tower or "layers" not in parts or int(parts[parts.index("layers") + 1]) < layers


def strider(layers: int | None) -> MemorySource:
    """A llama whose positions have components."""
    llama = golden("llama", "plain_gqa", "num_hidden_layers")(layers)
    metadata = {k.replace("llama.", "strider."): v for k, v in llama.metadata.items()}
    metadata["general.architecture"] = "strider"
    tensors = {n: (t.dtype, t.shape, bytes(llama.data(n))) for n, t in llama.tensors.items()}
    projection = np.random.default_rng(5).normal(size=(64, 12)).astype(np.float32)
    return MemorySource(metadata, {**tensors, "v.proj.weight": projection})


def grids(case: str) -> Callable[[int | None], MemorySource]:
    """A golden of Qwen3-VL's tower, for small pictures."""

    def source(layers: int | None) -> MemorySource:
        found, size = load_golden("qwen3vl", case), {"shortest_edge": 128, "longest_edge": 1024}
        prepared = {"size": size, "patch_size": qwen3vl.PATCH, "merge_size": qwen3vl.MERGE}
        config = {**found.config, "preprocessor:": prepared}
        return from_hf(find_hf(config["architectures"]), config, found.weights())

    return source


def qwen(case: str, bound: float, things: Callable[[int], Any] | None = None) -> Subject:
    """Pictures of different sizes have different numbers of rows, and of positions."""
    made, sizes = golden("qwen2vl", case, "num_hidden_layers"), ((24, 16), (16, 16), (40, 16))
    least = dict.fromkeys((f"qwen2vl.vision.{n}_min_pixels" for n in ("image", "video")), 64)

    def source(layers: int | None) -> MemorySource:
        found = made(layers)
        found.metadata = {**found.metadata, **least}
        return found

    things = things or (lambda n: picture(n, sizes[n % 3]))
    return Subject(source, things, bound, bound, words=qwen2vl.SPECIAL)


# Times that a Qwen3-VL writes before frames, by one token each.
MOMENTS = {f"<{tenth / 10:.1f} seconds>": 40 + tenth % 20 for tenth in range(60)}


# SmolVLM's text before a video and before each frame.
SPOKEN = {introduction(n, s): 10 + 6 * n + s for n in range(1, 6) for s in range(6)}
SPOKEN |= {moment(s): 50 + s for s in range(6)}
NUMBERED = {"\nFrame4: ": 10}  # a frame of InternVL, besides those of the goldens


def glm_ocr(layers: int | None) -> MemorySource:
    source = golden("glm_ocr", "published")(layers)
    source.metadata = {**source.metadata, "glm_ocr.vision.image_min_pixels": 64}
    return source


def paddleocr(layers: int | None) -> MemorySource:
    found = golden("paddleocr", "pages", "num_hidden_layers")(layers)
    found.metadata = {**found.metadata, "paddleocr.vision.image_min_pixels": 64}
    return found


def lfm2vl(layers: int | None) -> MemorySource:
    """For small pictures, and tiles of 24 × 24 pixels."""
    found = load_golden("lfm2vl", "published")
    prepared = {"min_image_tokens": 2, "max_image_tokens": 9, "max_tiles": 4, "tile_size": 24}
    prepared["encoder_patch_size"] = 4
    config = {**found.config, "preprocessor:": prepared}
    return from_hf(find("lfm2vl"), config, found.weights())


SUBJECTS = {
    "strider": Subject(strider, lambda n: picture(n, (6, 6)), options={"models": MODELS}),
    "gemma3": Subject(
        golden("gemma3", "images", sliding_window=256),  # else a prefix is soon out of reach
        lambda n: picture(n, (24, 24)),
        TABLE,
        TABLE,
        words=gemma3.SPECIAL,
    ),
    "gemma3n": Subject(
        golden("gemma3n", "sounds_ahead", sliding_window=256),
        lambda n: sound(n).part(0, 0.2 + 0.05 * (n % 3)),
        TABLE,
        None,  # one table has the embeddings of all layers
        words=gemma3n.SPECIAL,
    ),
    "gemma3n-images": Subject(
        golden("gemma3n", "images", sliding_window=256),
        lambda n: picture(n, (24, 24)),
        SEVERAL,
        None,
        words=gemma3n.SPECIAL,
    ),
    "gemma4": Subject(
        golden("gemma4", "sounds", sliding_window=256),
        lambda n: sound(n).part(0, 0.2 + 0.05 * (n % 3)),
        TABLE,
        None,  # as Gemma 3n's
        words=gemma4.SPECIAL,
    ),
    "idefics3": Subject(
        golden("idefics3", "tiles"),
        lambda n: picture(n, (24, 60 * n + 1)),  # other grids of tiles
        TABLE,
        TABLE,
        options={"context_length": 768},
        words={**TILES, **idefics3.SPECIAL},
    ),
    "internvl": Subject(
        golden("internvl", "qwen2"),
        lambda n: picture(n, (16, 16 * n)),  # other grids of tiles
        words=internvl.SPECIAL,
    ),
    "lfm2vl": Subject(
        lfm2vl,
        lambda n: picture(n, (24 * n, 24 + 8 * n)),  # whole, and in tiles
        TABLE,
        None,  # its states cannot shift
        resumes=False,
        options={"context_length": 384},
        words=lfm2vl_cases.SPECIAL,
    ),
    "whisper": Subject(
        golden("whisper", "published", "decoder_layers"),
        sound,
        shifted=None,  # positions are learned
        options={"context_length": 64},
        most=1,
    ),
    "moonshine": Subject(
        golden("moonshine", "published", "decoder_num_hidden_layers"),
        lambda n: sound(n, 1500 * (n % 3) + 1000),
        options={"context_length": 64},
        most=1,
    ),
    "qwen3vl": Subject(
        grids("images"),
        lambda n: picture(n, (24, 8 + 8 * (n % 3))),
        TABLE,
        None,  # of three layers two take rows of the tower
        words=qwen3vl.SPECIAL,
    ),
    "qwen35": Subject(
        grids("qwen35"),
        lambda n: picture(n, (24, 8 + 8 * (n % 3))),
        TABLE,
        None,  # its states cannot shift
        resumes=False,
        words=qwen3vl.SPECIAL,
    ),
    "voxtral": Subject(
        golden("voxtral", "published"),
        lambda n: sound(n, 6400 * (n % 3) + 100),  # of one window to three
        words=voxtral.SPECIAL,
    ),
    "qwen2audio": Subject(
        golden("qwen2audio", "published"),
        lambda n: sound(n, 1800 * (n % 3) + 1000),
        words=qwen2audio.SPECIAL,
    ),
    "qwen3asr": Subject(
        golden("qwen3asr", "published"),
        lambda n: sound(n, 15_000 * (n % 3) + 7000),  # of one window and two
        words=qwen3asr.SPECIAL,
    ),
    "qwen2vl": qwen("qwen2", TABLE),
    "qwen25vl": qwen("qwen25", EXACT),
    "qwen25vl-videos": qwen("qwen25", EXACT, lambda n: video(n % 3, 4 + n % 2)),
    "qwen3vl-videos": Subject(
        grids("images"),
        lambda n: video(n % 3, 4 + n % 2),
        TABLE,
        None,
        words={**MOMENTS, **qwen3vl.SPECIAL},
    ),
    "smolvlm-videos": Subject(
        golden("idefics3", "smolvlm"),
        lambda n: replace(video(n % 3, 3 + n % 2), times=np.arange(3.0 + n % 2)),
        TABLE,
        TABLE,
        words={**SPOKEN, **idefics3.SPECIAL},
    ),
    "internvl-videos": Subject(
        golden("internvl", "qwen2"),
        lambda n: video(n % 3, 3 + n % 2),
        words={**NUMBERED, **internvl.SPECIAL},
    ),
    "glm_ocr": Subject(
        glm_ocr,
        lambda n: picture(n, (24, 8 + 8 * (n % 3))),
        TABLE,
        TABLE,
        words=glm_ocr_cases.SPECIAL,
    ),
    "paddleocr": Subject(
        paddleocr,
        lambda n: picture(n, (24, 8 + 8 * (n % 3))),
        TABLE,
        TABLE,
        words=paddleocr_cases.SPECIAL,
    ),
}


@pytest.fixture(scope="module", params=SUBJECTS)
def subject(request: pytest.FixtureRequest) -> Subject:
    return SUBJECTS[request.param]


@pytest.fixture(scope="module", params=[512, 5], ids=["whole", "pieces"])
def shared(subject: Subject, request: pytest.FixtureRequest) -> Iterator[LoadedModel]:
    """Several slots; prompts are computed at once, or in pieces, of which images are some."""
    with subject.load(parallel=SLOTS, batch_size=request.param) as model:
        yield model


def alone(model: LoadedModel, prompt: list[Any], tokens: list[int]) -> np.ndarray:
    """The logits after a prompt and after each token, in a cache of their own."""
    return model.logits([*prompt, *tokens])[-len(tokens) - 1 :]


def same(subject: Subject, got: np.ndarray, want: np.ndarray) -> None:
    assert nmse(got, want) < subject.bound


def test_same_and_different_things_in_turn(subject: Subject, shared: LoadedModel):
    one, other = subject.things(1), subject.things(2)
    prompts = [
        [*TEXT, one, *TEXT[:3]],
        [*TEXT, other, *TEXT[:3]],
        [*TEXT, one, *TEXT[3:]],
        TEXT[::-1],
        [one, 5, other, 7],
        [*TEXT[:2], other, *TEXT],
        [*TEXT, one, *TEXT[:3], other, 9],
        [other, 5, one, 7],
    ]
    fitting = map(subject.fitting, prompts)
    asked = [(prompt, ANSWER[i % 3 :] * 2) for i, prompt in enumerate(fitting)]
    wanted = [alone(shared, *one) for one in asked]
    for got, want in zip(answers(shared, asked), wanted, strict=True):
        same(subject, got, want)


def test_things_change_what_follows(subject: Subject, shared: LoadedModel):
    first, second = ([*TEXT, subject.things(n), 5] for n in (1, 2))
    assert nmse(alone(shared, first, ANSWER), alone(shared, second, ANSWER)) > 1e-4


def test_a_second_question_computes_only_the_question(subject: Subject):
    with subject.load(parallel=SLOTS) as model:
        seen = [*TEXT, subject.things(1)]
        answers(model, [([*seen, *TEXT[:4]], ANSWER)])
        steps: list[int] = []
        start = model.engine.cache.start_forward

        def noted(step: Any, reserve: bool = False) -> None:
            steps.append(len(step.tokens))
            start(step, reserve)

        model.engine.cache.start_forward = noted  # type: ignore[method-assign]
        question = [*seen, *TEXT[4:]]
        (got,) = answers(model, [(question, ANSWER)])
        # States are kept behind the last row; what a model lays behind it is computed again.
        numbers = model.prompts.read(seen)
        behind = 0 if subject.resumes else len(numbers) - 1 - max(np.flatnonzero(numbers < 0))
        assert steps[0] == behind + len(TEXT[4:])
        same(subject, got, alone(model, question, ANSWER))


def test_a_prefix_is_shared_while_its_owner_goes_on(subject: Subject):
    with subject.load(parallel=SLOTS) as model:
        seen = subject.fitting([*TEXT, subject.things(1), 5, subject.things(2)])
        asked = [([*seen, n], [*ANSWER, n]) for n in range(4, 10)]
        answers(model, asked[:1])  # one slot holds the beginning, and is asked again
        for got, one in zip(answers(model, asked), asked, strict=True):
            same(subject, got, alone(model, *one))


def conversation(subject: Subject, n: int) -> tuple[list[Any], list[int]]:
    """A prompt with two things, and an answer that takes it beyond the context."""
    prompt = [*TEXT, subject.things(n), *TEXT[:5], subject.things(n + 1), *TEXT]
    prompt = subject.fitting(prompt)
    return prompt, [int(t) for t in np.random.default_rng(n).integers(3, 40, 60)]


def longest(model: LoadedModel, subject: Subject) -> int:
    """A context that is full in the middle of either conversation's answer."""
    return 30 + max(model.length(conversation(subject, n)[0]) for n in (1, 2))


def test_a_shift_in_a_conversation_with_things(subject: Subject):
    """Several users' contexts are shifted at different times; each is as if it were alone."""
    with subject.load() as probe:
        context = longest(probe, subject)
    options: dict[str, Any] = {"context_length": context, "batch_size": 512}
    talks = [conversation(subject, n) for n in (1, 2, 1, 2)]
    shift: dict[str, Any] = {"context_shift": True, "num_keep": 10}
    with subject.load(**options) as model:
        wanted = [answers(model, [talk], **shift)[0] for talk in talks[:2]] * 2
    with subject.load(parallel=SLOTS, **options) as model:
        # As other users' requests come and go, so that slots are reused with what shifts left.
        for _ in range(2):
            for got, want in zip(answers(model, talks, **shift), wanted, strict=True):
                assert nmse(got, want) < subject.bound


def test_after_a_shift_one_layer_equals_the_shortened_text(subject: Subject):
    if subject.shifted is None:
        return
    with subject.load(1) as probe:
        context = longest(probe, subject)
    with subject.load(1, context_length=context, batch_size=512) as model:
        prompt, tokens = conversation(subject, 1)
        numbers = model.prompts.read(prompt)
        room = context - len(numbers)
        (got,) = answers(model, [(prompt, tokens)], context_shift=True, num_keep=10)
        inputs, whole = model.engine.inputs, [*numbers.tolist(), *tokens]
        keep = inputs.before_image(whole, 10)
        end = inputs.after_image(whole[:context], keep + (context - keep) // 2)
        left = np.array(whole[:keep] + whole[end:], np.int32)
        want = Scoring(model.engine).all_logits(model.engine.keep(left))
        # The token that found the context full has the first row behind the shift. The context is
        # full again when as many tokens have come as were forgotten.
        got, want = got[room + 1 :], want[context - (end - keep) :]
        n = min(len(got), end - keep)
        assert n > 5
        assert nmse(got[:n], want[:n]) < subject.shifted
