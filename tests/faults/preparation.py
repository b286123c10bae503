"""Seeds faults into the preparation of pictures and sounds, and asks the goldens about each.

    python -m tests.faults.preparation [PART] [--write]

A fault is one change of a source file. Each is tried in a process of its own, which reads the
changed file in the true one's place; PART tries those whose file has it in its path. `--write`
puts the table into docs/diff.md. No torch is needed: the goldens hold what processors make.
"""

from __future__ import annotations

import importlib.machinery
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "diff.md"
BEGIN, END = "<!-- preparation: begin -->\n", "<!-- preparation: end -->\n"
LONGEST = 600  # seconds that a fault may take


@dataclass(frozen=True)
class Fault:
    """A change of one text of a file.

    Attributes:
        golden: the folder of goldens that is asked.
        path: of the file, below sdk/ggmodel.
        before, after: the text, which the file has once.
        step: of the preparation that should be named; "" for one that only logits show.
    """

    description: str
    golden: str
    path: str
    before: str
    after: str
    step: str


def _of_models(golden: str, file: str, *faults: tuple[str, str, str, str]) -> list[Fault]:
    folder = {"qwen3vl": "qwen"}.get(golden, golden)
    return [Fault(s, golden, f"models/{folder}/{file}", b, a, step) for s, b, a, step in faults]


def _shared(golden: str, path: str, *faults: tuple[str, str, str, str]) -> list[Fault]:
    return [Fault(s, golden, path, b, a, step) for s, b, a, step in faults]


_NORMALIZED = "h.image_mean, h.image_std"
FAULTS = [
    *_of_models(
        "qwen2vl",
        "model.py",
        ("bilinear for bicubic", "h.resample)", '"bilinear")', "resampling"),
        ("half the most pixels", "h.max_pixels)", "h.max_pixels // 2)", "size"),
        ("twice the least pixels", "h.min_pixels, h.max", "2 * h.min_pixels, h.max", "size"),
        ("mean and deviation swapped", _NORMALIZED, "h.image_std, h.image_mean", "normalisation"),
        (
            "blue first",
            "twice = np.stack([pixels, pixels])",
            "pixels = pixels[::-1]\n        twice = np.stack([pixels, pixels])",
            "order",
        ),
        (
            "rows for columns",
            "height // h.patch, width // h.patch)",
            "width // h.patch, height // h.patch)",
            "numbers",
        ),
        ("sizes in patches, not squares", "h.cell, h.min_pixels", "h.patch, h.min_pixels", "size"),
        (
            "no token before a picture",
            "return [start, Input(pad_input.token, one)",
            "return [Input(pad_input.token, one)",
            "prompt",
        ),
    ),
    *_of_models(
        "qwen2vl",
        "video.py",
        ("patches not in squares", "h.patch, h.merge)", "h.patch, 1)", "order"),
        (
            "frames before channels",
            "for x in frames], axis=2)",
            "for x in frames], axis=1)",
            "order",
        ),
    ),
    *_of_models(
        "gemma3",
        "model.py",
        ("bicubic for bilinear", "h.resample)", '"bicubic")', "resampling"),
        (
            "each channel with the first mean",
            _NORMALIZED,
            "h.image_mean[0], h.image_std",
            "normalisation",
        ),
        (
            "cropped, not stretched",
            "scaled = resize(composite(image), self.largest_image",
            "side = min(image.size)\n        scaled = resize(composite(image).crop((0, 0, side, "
            "side)), self.largest_image",
            "resampling",
        ),
        ("a line break less", "*rows, end, newlines]", "*rows, end]", "prompt"),
    ),
    *_of_models(
        "gemma4",
        "config.py",
        ("preemphasis", "preemphasis=0,", "preemphasis=0.97,", "spectrum"),
        ("another floor", "floor=1e-3)", "floor=1e-5)", "spectrum"),
        ("the floor as a least value", "added=True", "added=False", "spectrum"),
        ("no silence before", "early=True", "early=False", "spectrum"),
        ("a longer window", "frame=320", "frame=400", "spectrum"),
        ("another lowest pitch", "low=0,", "low=125,", "spectrum"),
    ),
    *_of_models(
        "gemma4",
        "model.py",
        (
            "a square is a patch",
            "factor = math.sqrt(h.soft_tokens * side**2",
            "factor = math.sqrt(h.soft_tokens * h.patch**2",
            "size",
        ),
        (
            "sides rounded, not cut",
            "across, down = int(factor * width / side), int(factor * height / side)",
            "across, down = round(factor * width / side), round(factor * height / side)",
            "size",
        ),
        (
            "narrow pictures of half the rows",
            "across, down = 1, min(height // width, h.soft_tokens)",
            "across, down = 1, min(height // width, h.soft_tokens // 2)",
            "size",
        ),
        ("no token behind an item", "both_ways), end)", "both_ways))", "prompt"),
    ),
    *_of_models(
        "mistral3",
        "vision.py",
        ("sizes rounded, not cut", "math.floor(n / ratio)", "round(n / ratio)", "size"),
        ("small pictures enlarged", "ratio = max(1, *(", "ratio = max(0, *(", "size"),
        ("the last patch cut off", "-(-width // h.unit)", "max(1, width // h.unit)", "size"),
        ("pixels of 256 levels", f"{_NORMALIZED})", f"{_NORMALIZED}, 1 / 256)", "normalisation"),
    ),
    *_of_models(
        "mistral3",
        "model.py",
        ("a row's end too much", "*inputs[:-1], end]", "*inputs, end]", "prompt"),
    ),
    *_of_models(
        "idefics3",
        "vision.py",
        (
            "the canvas cut, not rounded up",
            "math.ceil(int(width / ratio) / side)",
            "max(1, int(width / ratio) // side)",
            "size",
        ),
        ("odd shorter sides", "short + short % 2)", "short)", "resampling"),
        (
            "tiles column by column",
            "split_tiles(pixels(image), rows, columns), whole",
            "split_tiles(pixels(image), rows, columns).reshape(rows, columns, 3, h.side, h.side)"
            ".swapaxes(0, 1).reshape(-1, 3, h.side, h.side), whole",
            "order",
        ),
        (
            "the whole view first",
            "[split_tiles(pixels(image), rows, columns), whole]",
            "[whole, split_tiles(pixels(image), rows, columns)]",
            "order",
        ),
        ("resized as torchvision does", ", pillow=True", "", "resampling"),
    ),
    *_of_models(
        "idefics3",
        "model.py",
        ("one break behind the tiles", 'inputs += ["\\n"] if len(image) > 1 else []', "", "prompt"),
    ),
    *_of_models(
        "paddleocr",
        "vision.py",
        (
            "narrow pages not enlarged",
            "    if width < h.cell:\n        width, height = h.cell, "
            "round(height * h.cell / width)\n",
            "",
            "size",
        ),
        ("flat pages cut", "round(width * h.cell / height), h.cell", "width, h.cell", "size"),
    ),
    *_of_models(
        "glm_ocr",
        "vision.py",
        ("narrow pages not enlarged", "if min(size) < h.cell:", "if False:", "size"),
    ),
    *_of_models(
        "glm_ocr",
        "config.py",
        ("pixels of both frames", "return pixels // FRAMES", "return pixels", "size"),
    ),
    *_of_models(
        "internvl",
        "vision.py",
        ("no view of the whole", "if len(tiles) > 1:", "if len(tiles) > 99:", "size"),
        (
            "the view first",
            "[tiles, pixels((side, side))[None]]",
            "[pixels((side, side))[None], tiles]",
            "order",
        ),
        ("a tile less", "h.least_tiles, h.most_tiles)", "h.least_tiles, h.most_tiles - 1)", "size"),
        (
            "rows and columns swapped",
            "rows, columns = nearest",
            "columns, rows = nearest",
            "resampling",
        ),
    ),
    *_of_models(
        "lfm2vl",
        "vision.py",
        ("no view of the whole", "or h.thumbnail:", "or False:", "size"),
        ("always a view of the whole", "or h.thumbnail:", "or True:", "size"),
        ("tiles of all pictures", "h.most_rows * h.cell**2 * h.tolerance:", "0:", "size"),
        ("narrow pictures enlarged", "smallest=h.cell)", "smallest=0)", "size"),
    ),
    *_of_models(
        "lfm2vl",
        "model.py",
        ("tiles without names", "if named else []", "if False else []", "prompt"),
    ),
    *_of_models(
        "llama4",
        "image.py",
        (
            "stretched, not padded",
            "pictures.resize(image, size, h.resample), canvas",
            "pictures.resize(image, canvas, h.resample), canvas",
            "resampling",
        ),
        ("not rounded to bfloat16", "bfloat16=True", "bfloat16=False", "normalisation"),
        ("enlarged to the canvas", "min(max(n, side), most)", "most", "resampling"),
    ),
    *_shared(
        "llama4",
        "image/prepare.py",
        (
            "padding with grey",
            'Image.new("RGB", size)',
            'Image.new("RGB", size, (99, 99, 99))',
            "resampling",
        ),
        (
            "padding left and above",
            "canvas.paste(image)",
            "canvas.paste(image, (size[0] - image.width, size[1] - image.height))",
            "order",
        ),
    ),
    *_shared(
        "gemma3n",
        "image/prepare.py",
        ("no antialias", "wide = max(scale, 1.0)", "wide = 1.0", "resampling"),
        ("centres at corners", "np.arange(count) + 0.5)", "np.arange(count))", "resampling"),
        ("levels cut, not rounded", "0.5**self.bits + 0.5", "0.5**self.bits", "resampling"),
    ),
    *_shared(
        "qwen3vl",
        "nn/vision/grids.py",
        (
            "pixels from 0 to 255",
            "normalize(picture, h.image_mean, h.image_std)",
            "normalize(picture, h.image_mean, h.image_std, 1.0)",
            "normalisation",
        ),
        (
            "most pixels in squares",
            "h.least_pixels, h.most_pixels)",
            "h.least_pixels, h.most_pixels // 4 + 512)",
            "size",
        ),
    ),
    *_shared(
        "whisper",
        "audio/mel.py",
        (
            "log of e",
            "np.log10(np.maximum(power @ filters, 1e-10))",
            "np.log(np.maximum(power @ filters, 1e-10))",
            "spectrum",
        ),
        (
            "amplitudes for powers",
            "np.abs(np.fft.rfft(frames * window)) ** 2",
            "np.abs(np.fft.rfft(frames * window))",
            "spectrum",
        ),
        (
            "no clamp to the loudest",
            "result.max(initial=-10.0) - 8.0",
            "result.max(initial=-10.0) - 80.0",
            "spectrum",
        ),
        ("ends not mirrored", 'n_fft // 2, "reflect")', 'n_fft // 2, "constant")', "spectrum"),
        ("htk's pitches", "rate, 0.0, 8000.0)", 'rate, 0.0, 8000.0, "htk")', "spectrum"),
        (
            "triangles of equal heights",
            "rate, 0.0, 8000.0)",
            "rate, 0.0, 8000.0, equal_areas=False)",
            "spectrum",
        ),
        ("a symmetric window", "dtype=dtype) / size)", "dtype=dtype) / (size - 1))", "spectrum"),
    ),
    *_of_models(
        "voxtral",
        "model.py",
        (
            "windows apart",
            "mel = whisper_mel(samples, h.mels, length=length)",
            "mel = np.concatenate([whisper_mel(samples[i : i + window], h.mels, length=window) for "
            "i in range(0, length, window)], axis=1)",
            "spectrum",
        ),
        (
            "a window too much",
            "length = -(-len(samples) // window) * window",
            "length = (len(samples) // window + 1) * window + window",
            "spectrum",
        ),
    ),
    *_of_models(
        "qwen2audio",
        "model.py",
        (
            "frames cut, not rounded up",
            "frames = -(-len(samples) // HOP)",
            "frames = len(samples) // HOP // 2",
            "prompt",
        ),
        (
            "rows of silence",
            'length=self.audio_samples), {"frames": frames}',
            'length=self.audio_samples), {"frames": self.config.frames}',
            "prompt",
        ),
    ),
    *_of_models(
        "qwen3asr",
        "model.py",
        (
            "a short sound left as it is",
            "max(0, SHORTEST - len(samples))",
            "max(0, SHORTEST // 2 - len(samples))",
            "spectrum",
        ),
        (
            "rows of silence in a sound's last second",
            "min(h.frames, total - begin) for begin in range(0, total, h.frames)]\n        mel",
            "h.frames for begin in range(0, total, h.frames)]\n        mel",
            "prompt",
        ),
    ),
    *_of_models(
        "mllama",
        "image.py",
        ("stretched, not padded", "fit(image.size, (width, height))", "canvas", "resampling"),
        (
            "enlarged to the canvas",
            "(min(max(n, side), m) for n, m in zip(image.size, canvas, strict=True))",
            "canvas",
            "resampling",
        ),
        (
            "the number of the next grid",
            "index((rows, columns)) + 1",
            "index((rows, columns))",
            "numbers",
        ),
    ),
    *_shared(
        "gemma3n",
        "audio/mel.py",
        (
            "another hop",
            "hop: int = 160,\n    n_fft: int = 1024",
            "hop: int = 170,\n    n_fft: int = 1024",
            "spectrum",
        ),
        (
            "preemphasis by the sample itself",
            "preemphasis * frames[:, :-2]",
            "preemphasis * frames[:, 1:-1]",
            "spectrum",
        ),
        ("padding by twice as much", "multiple: int = 128", "multiple: int = 1024", "spectrum"),
    ),
]


def tried(fault: Fault) -> dict[str, Any]:
    """The verdict of the goldens on a fault, in this process: "case" and "verdict", empty where all
    are equal. Nothing of ggmodel may have been imported."""
    file = (ROOT / "sdk" / "ggmodel" / fault.path).resolve()
    text = file.read_text("utf-8")
    assert text.count(fault.before) == 1, f"{fault.path} has {fault.before!r} not once"
    changed = text.replace(fault.before, fault.after, 1)
    load = importlib.machinery.SourceFileLoader.get_data

    def get_data(self: Any, path: str) -> bytes:
        name = re.sub(r"\.cpython-[0-9.a-z-]*pyc$", ".py", path.replace("__pycache__/", ""))
        if Path(name).resolve() != file:
            return load(self, path)
        if path.endswith(".pyc"):
            raise OSError("the changed source is read")
        return changed.encode()

    importlib.machinery.SourceFileLoader.get_data = get_data  # type: ignore[method-assign]
    from ggmodel.workbench import golden

    cases = golden.Cases(ROOT / "tests" / "golden" / fault.golden)
    loading = golden.Loading(cases, None, {"kv_type": "f32", "flash_attention": "off"})
    for case in cases.module.FILES:
        whole = cases.load(case)
        assert isinstance(whole, golden.Golden)
        try:
            bound = cases.bounds.get(case, golden.EXACT)
            wrong = [o for o in golden._prepared(loading, whole, case, bound) if not o.ok]
        except Exception as error:  # the command ends with it
            key = re.search(r"key +(\w+:[\w.]+)", str(error))
            refusal = f"preparation, key {key[1]}: refused" if key else f"{type(error).__name__}"
            return {"case": case, "verdict": f"{refusal}: {error}".replace("\n", " ")}
        if wrong:
            return {
                "case": wrong[0].case,
                "verdict": wrong[0].differs or f"NMSE {wrong[0].nmse:.0e}",
            }
    return {"case": "", "verdict": ""}


def verdict(index: int) -> dict[str, Any]:
    """`tried` in a process of its own."""
    command = [sys.executable, "-B", "-m", "tests.faults.preparation", "--one", str(index)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST)
    if done.returncode:
        raise RuntimeError(f"{FAULTS[index].description}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


# The key of the processor that a fault contradicts, or code that cannot prepare at all.
_OTHERWISE = ("preparation, key ", "preparation, preparing fails")


def named(fault: Fault, text: str) -> bool:
    """Whether a verdict names the fault's step, or its place otherwise."""
    return bool(fault.step) and text.startswith((f"preparation, {fault.step}", *_OTHERWISE))


def main() -> None:
    if "--one" in sys.argv:
        print(json.dumps(tried(FAULTS[int(sys.argv[-1])])))
        return
    part = next((a for a in sys.argv[1:] if not a.startswith("-")), "")
    chosen = [i for i, fault in enumerate(FAULTS) if part in f"{fault.golden} {fault.path}"]
    rows, right, caught = "| golden | fault | named |\n|---|---|---|\n", 0, 0
    for i in chosen:
        fault, outcome = FAULTS[i], verdict(i)
        text = outcome["verdict"]
        caught, right = caught + bool(text), right + named(fault, text)
        short = text.removeprefix("preparation, ").partition(":")[0] or "missed"
        rows += f"| {fault.golden} | {fault.description} | {short} |\n"
        mark = "" if named(fault, text) else f"   WRONG, {fault.step} expected"
        print(
            f"{fault.golden}: {fault.description}: {outcome['case']}: {text[:150]}{mark}",
            flush=True,
        )
    total = f"{caught} of {len(chosen)} are caught, {right} named by their step."
    print(total)
    if "--write" in sys.argv and len(chosen) == len(FAULTS):
        page = PAGE.read_text("utf-8")
        begin, end = page.index(BEGIN) + len(BEGIN), page.index(END)
        PAGE.write_text(f"{page[:begin]}{total}\n\n{rows}{page[end:]}", "utf-8")


if __name__ == "__main__":
    main()
