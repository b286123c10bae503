"""Pictures, sounds and videos that commands show to a model."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import ggmodel
from ggmodel.convert.quantize import decode
from ggmodel.gguf_file import MemorySource, open_gguf
from ggmodel.ml import DType

MODELS = Path(__file__).parents[1] / "runner" / "models"
STORIES = Path(__file__).parents[2] / "examples" / "assets" / "stories.gguf"
TEMPLATE = """{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}
{%- else %}{% for part in m.content %}
{%- if part.type == 'image' %}<image>{% elif part.type == 'audio' %}<sound>
{%- elif part.type == 'video' %}<video>{% else %}{{ part.text }}{% endif %}
{%- endfor %}{% endif %}{% endfor %}"""


@pytest.fixture(scope="module")
def path(write_gguf: Any, tmp_path_factory: Any) -> Path:
    with open_gguf(STORIES) as file:
        metadata = {k.replace("llama.", "sensor."): v for k, v in file.metadata.items()}
        metadata |= {"general.architecture": "sensor", "tokenizer.chat_template": TEMPLATE}
        tensors: dict[str, Any] = {
            name: (DType.F32, t.shape, decode(file.data(name), t.dtype, t.n_elements).tobytes())
            for name, t in file.tensors.items()
        }
        random = np.random.default_rng(5)
        for name in ("s.rows.weight", "s.deep.weight"):
            tensors[name] = random.normal(size=(192, 12)).astype(np.float32)
        source = MemorySource(metadata, tensors)
    return write_gguf(tmp_path_factory.mktemp("sensor") / "sensor.gguf", source)


@pytest.fixture(scope="module")
def files(tmp_path_factory: Any) -> dict[str, Path]:
    """A picture, a sound and the frames of a video."""
    folder, random = tmp_path_factory.mktemp("items"), np.random.default_rng(1)
    Image.fromarray(random.integers(0, 256, (4, 4, 3), np.uint8)).save(folder / "a.png")
    with wave.open(str(folder / "a.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(1000)
        file.writeframes(random.integers(-9999, 9999, 24, np.int16).tobytes())
    (folder / "frames").mkdir()
    for n in range(2):
        frame = Image.fromarray(random.integers(0, 256, (2, 2, 3), np.uint8))
        frame.save(folder / "frames" / f"{n}.png")
    return {"image": folder / "a.png", "audio": folder / "a.wav", "video": folder / "frames"}


def test_run_shows_items_of_each_kind(program: Any, path: Path, files: dict[str, Path]):
    given = [argument for kind, file in files.items() for argument in (f"--{kind}", file)]
    options = ("--models", MODELS, "--temperature", 0, "-n", 8, "--raw", "--no-echo")
    ran = program("run", path, "a<sound>b", *given, *options)
    assert ran.returncode == 0, ran.stderr
    with ggmodel.load(path, models=MODELS) as model:
        items: Any = {"images": [files["image"]], "audio": [files["audio"]]}
        said = model.generate(
            "a<sound>b", **items, videos=[files["video"]], max_tokens=8, temperature=0
        )
    assert ran.stdout.rstrip("\n") == str(said).rstrip("\n")
    ran = program("run", path, "b", "--audio", files["image"], *options)
    assert ran.returncode == 1
    assert "a.png is no WAV" in ran.stderr


@pytest.mark.slow
def test_chat_shows_items_of_each_kind(program: Any, path: Path, files: dict[str, Path]):
    options = ("--models", MODELS, "--temperature", 0, "-n", 6)
    lines = "".join(f"/{kind} {file}\n" for kind, file in files.items()) + "who\n"
    ran = program("chat", path, *options, stdin=lines)
    assert ran.returncode == 0, ran.stderr
    given = [argument for kind, file in files.items() for argument in (f"--{kind}", file)]
    asked = program("chat", path, "who", *given, *options)
    assert asked.stdout == ran.stdout
    with ggmodel.load(path, models=MODELS) as model:
        parts = [{"type": kind, kind: file} for kind, file in files.items()]
        content = [*parts, {"type": "text", "text": "who"}]
        said = model.chat([{"role": "user", "content": content}], max_tokens=6, temperature=0)
    assert ran.stdout == f"{said}\n"
    for kind in files:
        ran = program("chat", path, *options, stdin=f"/{kind}\n")
        assert f"give /{kind} FILE" in ran.stderr


def test_trace_looks_into_the_encoder_of_each_kind(
    program: Any, path: Path, files: dict[str, Path]
):
    for kind in ("audio", "video"):
        ran = program("trace", path, "--models", MODELS, f"--{kind}", files[kind], "--json")
        assert ran.returncode == 0, ran.stderr
        assert f'"part": "{kind}"' in ran.stdout
    ran = program("trace", path, "--audio", files["audio"], "--video", files["video"])
    assert "give one of --image, --audio and --video" in ran.stderr
    ran = program("trace", path, "--audio", files["audio"], "--tokens", "1,2")
    assert "--audio goes with --prompt" in ran.stderr


def test_the_estimate_has_a_line_for_each_kind(program: Any, path: Path):
    ran = program("estimate", path, "--models", MODELS)
    assert ran.returncode == 0, ran.stderr
    for line in ("weights see; an image takes", "weights hear; a sound", "weights watch; a video"):
        assert line in ran.stdout
