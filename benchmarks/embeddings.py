"""Time embeddings of texts of unequal lengths: ours beside torch, llama.cpp, onnxruntime, OpenVINO.

    python benchmarks/embeddings.py FOLDER [--texts 512] [--batch 64 1] [--threads 2]
        [--types f16 q8_0] [--torch-python PYTHON] [--llama-server PROGRAM] [--onnx MODEL.onnx]
        [--openvino MODEL.onnx] [--layers 24 --width 1024 [--int8]]

FOLDER is a checkpoint of transformers with its tokenizer, of an encoder whose rows are a mean.
Its files for ggmodel and llama.cpp are written first. With `--layers` and `--width` it gives the
tokenizer alone, to a BERT of that shape with random weights, which torch's PYTHON writes: bge-small
has 12 and 384, bge-m3 24 and 1024. With `--int8` torch and onnxruntime write it in INT8, too, for
onnxruntime and OpenVINO; both Pythons need onnx and onnxruntime. All sides take turns, the best of
`--runs` counts. Texts are drawn with a seed, from 3 to 60 words; a batch is as many of them as are
given at once, of which a step of ours and of llama.cpp's takes 2048 tokens. A side without its
option is left out. The last column is the least cosine to the first side's rows, torch's in
float32.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import ggmodel
from ggmodel.convert.export import convert

WORDS = (
    "the a small old red fox forest baker bread river they it was in of and with lived found baked "
    "carried under over before after because weather stadium question answer number city"
).split()
Side = Callable[[Sequence[str], int], np.ndarray]
Infer = Callable[[dict[str, np.ndarray]], np.ndarray]

# Reads a line of JSON (texts, batch), writes rows; mean of the last hidden states, length 1.
_TORCH = """
import json, sys, torch
from transformers import AutoModel, AutoTokenizer
torch.set_num_threads(int(sys.argv[2]))
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModel.from_pretrained(sys.argv[1]).eval().float()
print("ready", flush=True)
for line in sys.stdin:
    texts, batch = json.loads(line)
    order, rows = sorted(range(len(texts)), key=lambda i: -len(texts[i])), {}
    with torch.inference_mode():
        for start in range(0, len(order), batch):
            some = order[start : start + batch]
            given = tokenizer([texts[i] for i in some], padding=True, return_tensors="pt")
            states, mask = model(**given).last_hidden_state, given["attention_mask"][..., None]
            pooled = (states * mask).sum(1) / mask.sum(1)
            rows |= zip(some, torch.nn.functional.normalize(pooled).tolist())
    print(json.dumps([rows[i] for i in range(len(texts))]), flush=True)
"""

_RANDOM = """
import shutil, sys, torch
from transformers import AutoTokenizer, BertConfig, BertModel
folder, out, layers, width = *sys.argv[1:3], *map(int, sys.argv[3:])
torch.manual_seed(0)
shutil.copytree(folder, out, ignore=shutil.ignore_patterns("*.safetensors"))
words = len(AutoTokenizer.from_pretrained(folder))
sizes = dict(hidden_size=width, intermediate_size=4 * width, num_attention_heads=width // 64)
if width < 768:
    sizes["num_attention_heads"] = width // 32
BertModel(BertConfig(vocab_size=words, num_hidden_layers=layers, **sizes)).save_pretrained(out)
"""

# Writes the last hidden states as a model of ONNX with weights in INT8.
_ONNX = """
import sys, torch
from onnxruntime.quantization import quantize_dynamic
from transformers import AutoModel
folder, out = sys.argv[1:]
names = ["input_ids", "attention_mask", "token_type_ids"]

class States(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()

    def forward(self, *inputs):
        return self.model(**dict(zip(names, inputs))).last_hidden_state

torch.onnx.export(
    States(), tuple(torch.ones(2, 8, dtype=torch.int64) for _ in names), out + ".f32",
    input_names=names, output_names=["states"], dynamo=False,
    dynamic_axes={name: {0: "texts", 1: "tokens"} for name in [*names, "states"]},
)
quantize_dynamic(out + ".f32", out)
"""


def main() -> None:
    text = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=text)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--batch", nargs="+", type=int, default=[64, 1])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--types", nargs="+", default=["f16", "q8_0"])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--torch-python")
    parser.add_argument("--llama-server")
    parser.add_argument("--onnx")
    parser.add_argument("--openvino")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--width", type=int)
    parser.add_argument("--int8", action="store_true")
    options = parser.parse_args()
    texts = drawn(options.texts)
    with tempfile.TemporaryDirectory() as made:
        if options.layers and options.width:
            shape = [str(options.layers), str(options.width)]
            random = str(Path(made) / "random")
            command = [options.torch_python, "-c", _RANDOM, str(options.folder), random, *shape]
            subprocess.run(command, check=True)
            options.folder = Path(random)
            if options.int8:
                options.onnx = options.openvino = str(Path(made) / "int8.onnx")
                command = [options.torch_python, "-c", _ONNX, random, options.onnx]
                subprocess.run(command, check=True)
        sides, closing = started(options, Path(made))
        try:
            compare(sides, texts, options)
        finally:
            for close in closing:
                close()


def drawn(count: int) -> list[str]:
    choose = random.Random(0)
    return [" ".join(choose.choices(WORDS, k=choose.randint(3, 60))) for _ in range(count)]


def started(
    options: argparse.Namespace, folder: Path
) -> tuple[dict[str, Side], list[Callable[[], object]]]:
    """The sides by name, and what ends them."""
    sides: dict[str, Side] = {}
    closing: list[Callable[[], object]] = []
    if options.torch_python:
        program = [options.torch_python, "-W", "ignore", "-c", _TORCH, options.folder]
        side, close = by_lines([*map(str, program), str(options.threads)])
        sides["torch f32"], closing = side, [*closing, close]
    for kind in options.types:
        path = folder / f"{kind}.gguf"
        convert(options.folder, path, kind)
        model = ggmodel.load(path, threads=options.threads, batch_size=2048)
        closing.append(model.close)
        sides[f"ggmodel {kind}"] = of_ours(model)
        if options.llama_server:
            side, close = of_llama_cpp(options.llama_server, path, options.threads)
            sides[f"llama.cpp {kind}"], closing = side, [*closing, close]
    for name, path in (("onnxruntime", options.onnx), ("OpenVINO", options.openvino)):
        if path:
            start = onnxruntime_of if name == "onnxruntime" else openvino_of
            sides[name] = of_onnx(*start(path, options.threads), options.folder)
    return sides, closing


def compare(sides: dict[str, Side], texts: list[str], options: argparse.Namespace) -> None:
    table = Table("side", "batch", "texts/s", "÷ torch", "least cosine")
    for batch in options.batch:
        times: dict[str, float] = {}
        rows: dict[str, np.ndarray] = {}
        some = texts if batch > 1 else texts[: max(1, len(texts) // 8)]
        for run in range(options.runs + 1):
            for name, side in sides.items():
                began = time.perf_counter()
                rows[name] = side(some, batch)
                if run:  # the first warms up
                    taken = time.perf_counter() - began
                    times[name] = min(taken, times.get(name, taken))
        first = next(iter(sides))
        for name, taken in times.items():
            cosine = float((rows[name] * rows[first]).sum(1).min())
            ratio = f"{times[first] / taken:.2f}" if first.startswith("torch") else ""
            table.add_row(name, str(batch), f"{len(some) / taken:.0f}", ratio, f"{cosine:.6f}")
    Console().print(table)


def of_ours(model: ggmodel.LoadedModel) -> Side:
    def embed(texts: Sequence[str], batch: int) -> np.ndarray:
        parts = (texts[i : i + batch] for i in range(0, len(texts), batch))
        return np.concatenate([model.embed(part, pooling="mean", normalize=True) for part in parts])

    return embed


def by_lines(command: list[str]) -> tuple[Side, Callable[[], object]]:
    """A process that answers lines of JSON."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    reading, writing = process.stdout, process.stdin
    assert reading and writing
    if reading.readline().strip() != "ready":
        sys.exit("the process of torch did not start")

    def embed(texts: Sequence[str], batch: int) -> np.ndarray:
        writing.write(json.dumps([list(texts), batch]) + "\n")
        writing.flush()
        return np.array(json.loads(reading.readline()), np.float32)

    return embed, process.terminate


def of_llama_cpp(program: str, path: Path, threads: int) -> tuple[Side, Callable[[], object]]:
    """llama-server with as many slots as pay, at a port of its own choice."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [program, "-m", path, "--embeddings", "--pooling", "mean", "-t", threads]
    command += ["-ub", 2048, "-b", 2048, "-np", 32, "-c", 8192, "--port", port, "--no-webui"]
    process = subprocess.Popen([*map(str, command)], stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    for _ in range(600):
        try:
            urllib.request.urlopen(f"{url}/health")
            break
        except OSError:
            time.sleep(0.1)

    def embed(texts: Sequence[str], batch: int) -> np.ndarray:
        found: list[Any] = []
        for start in range(0, len(texts), batch):
            body = json.dumps({"content": list(texts[start : start + batch])}).encode()
            ask = urllib.request.Request(f"{url}/embeddings", body)
            with urllib.request.urlopen(ask) as answer:
                found += [one["embedding"][0] for one in json.load(answer)]
        return np.array(found, np.float32)

    return embed, process.terminate


def onnxruntime_of(path: str, threads: int) -> tuple[Infer, list[str]]:
    import onnxruntime  # pyright: ignore[reportMissingImports]

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, settings)
    names = [one.name for one in session.get_inputs()]
    return lambda inputs: session.run(None, inputs)[0], names


def openvino_of(path: str, threads: int) -> tuple[Infer, list[str]]:
    import openvino  # pyright: ignore[reportMissingImports]

    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    model = openvino.Core().compile_model(path, "CPU", settings)
    return lambda inputs: model(inputs)[0], [one.any_name for one in model.inputs]


def of_onnx(infer: Infer, names: list[str], folder: Path) -> Side:
    """A model in ONNX whose first result is the last hidden states, with inputs of these names."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding()

    def embed(texts: Sequence[str], batch: int) -> np.ndarray:
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        rows: dict[int, np.ndarray] = {}
        for start in range(0, len(order), batch):
            some = order[start : start + batch]
            encoded = tokenizer.encode_batch([texts[i] for i in some])
            mask = np.array([one.attention_mask for one in encoded])
            inputs = {
                "input_ids": np.array([one.ids for one in encoded]),
                "attention_mask": mask,
                "token_type_ids": np.zeros_like(mask),
            }
            states = infer({name: inputs[name] for name in names})
            pooled = (states * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
            pooled /= np.linalg.norm(pooled, axis=1, keepdims=True)
            rows |= dict(zip(some, pooled, strict=True))
        return np.stack([rows[i] for i in range(len(texts))])

    return embed


if __name__ == "__main__":
    main()
