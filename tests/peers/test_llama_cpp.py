"""A second oracle: log-probabilities of llama.cpp on the same file, whoever converted it.

Goldens are those of transformers, which can be wrong itself. llama.cpp runs in a process of its own
(`python tests/peers/test_llama_cpp.py FILE SIZE PROMPTS TOKEN` prints what it says).
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

TESTS = Path(__file__).parents[1]
PROMPTS = [[2, 11, 12, 13, 14], [*range(30, 47)], [*range(3, 63), *range(40, 20, -1)]]

# Files by llama.cpp's converter.
THEIRS = [
    "fixtures/llama-converter-plain-f32.gguf",
    "fixtures/llama-converter-llama3-f32.gguf",
    "golden/gemma3/converted/text.gguf",
    "golden/llama4/converted/text.gguf",
]
# Checkpoints of goldens, converted here.
# llama.cpp's GELU reads a table in F16; ours is computed, or reads the table after other sums.
EXACT, TABLE = 1e-9, 1e-6
GELU = ("bloom", "gemma", "gemma3", "gemma4", "gpt2", "starcoder2")
OURS = [
    ("llama", "plain_gqa"),
    ("llama", "llama3_rope"),
    ("llama", "experts"),
    ("gemma3", "images"),
    ("gemma4", "published"),
    ("gemma4", "dense"),
    ("gemma4", "experts"),
    ("arcee", "published"),
    ("nemotron", "published"),
    ("gemma", "published"),
    ("granite", "tied"),
    ("granitemoe", "published"),
    ("granitemoe", "shared"),
    ("apertus", "plain"),
    ("glm4", "wide"),
    ("glm_ocr", "published"),
    ("glm_ocr", "partial"),
    ("smollm3", "plain"),
    ("seed_oss", "plain"),
    ("exaone4", "plain"),
    ("ernie4_5", "plain"),
    ("hunyuan_dense", "plain"),
    ("hunyuan_moe", "plain"),
    ("bloom", "plain"),
    ("bloom", "three_heads"),
    ("starcoder2", "plain"),
    ("stablelm", "plain"),
    ("gpt2", "plain"),
    ("olmo", "plain"),
    ("qwen3", "plain"),
    ("qwen3", "experts"),
    ("cohere2", "published"),
    ("command_r", "published"),
    ("lfm2", "published"),
    ("lfm2", "experts"),
    ("granitehybrid", "dense"),
    ("falcon_h1", "published"),
    ("nemotron_h", "published"),
    ("nemotron_h", "experts"),
    ("kimi_linear", "published"),
    ("laguna", "published"),
    ("qwen3next", "published"),
    ("jamba", "published"),
    ("afmoe", "published"),
    ("muse_glimmer", "published"),
    ("bailingmoe2", "published"),
    ("dots1", "published"),
    ("ernie4_5_moe", "published"),
    ("exaone_moe", "published"),
    ("minimax_m2", "published"),
    ("deepseek2", "lite"),
    ("deepseek2", "v3"),
    ("glm4moe", "groups"),
    ("olmoe", "published"),
    ("qwen2moe", "published"),
    ("mamba", "published"),
    ("mamba2", "published"),
    ("qwen35", "published"),
    ("qwen35", "experts"),
    ("rwkv7", "published"),
    ("rwkv7", "heads"),
]


def agree(file: Path, bound: float = EXACT) -> None:
    import ggmodel

    with ggmodel.load(file, kv_type="f32", threads=1, context_length=128) as model:
        rows = [model.logits(prompt)[-1].astype(np.float64) for prompt in PROMPTS]
        texts = ((i, model.detokenize([i]).strip()) for i in range(rows[0].size))
        said = next(i for i, text in texts if text.isascii() and text.isalnum())
    ours = np.array([row - np.log(np.exp(row - row.max()).sum()) - row.max() for row in rows])
    command = [sys.executable, __file__, file, str(ours.shape[1]), json.dumps(PROMPTS), str(said)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = np.array(json.loads(done.stdout.splitlines()[-1]))
    assert theirs.shape == ours.shape
    # F32 on both sides, sums in other orders.
    error = np.square(ours - theirs).sum() / np.square(theirs - theirs.mean()).sum()
    assert error < bound


@pytest.mark.parametrize("name", THEIRS)
def test_a_file_of_the_converter(name: str):
    agree(TESTS / name, TABLE if "gemma3" in name else EXACT)


@pytest.mark.parametrize(("architecture", "case"), OURS)
def test_a_file_of_ours(architecture: str, case: str, tmp_path: Path):
    from ggmodel.convert.export import convert
    from tests.convert.folders import write_golden

    folder = write_golden(tmp_path / "hf", architecture, case)[0]
    mmproj = tmp_path / "mmproj.gguf" if case == "images" or architecture == "glm_ocr" else None
    convert(folder, tmp_path / "a.gguf", "f32", mmproj=mmproj)
    agree(tmp_path / "a.gguf", TABLE if architecture in GELU else EXACT)


def run(file: str, size: int, prompts: list[list[int]], said: int) -> None:
    """Prints llama.cpp's log-probabilities [prompts, size] of the token after each prompt; it then
    says the token `said`."""
    xllamacpp: Any = importlib.import_module("xllamacpp")  # of the extra `peers`

    parameters = xllamacpp.CommonParams()
    parameters.model.path = file
    parameters.n_ctx, parameters.n_parallel, parameters.warmup = 128, 1, False
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    parameters.cache_type_k = parameters.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    parameters.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(parameters)
    rows = np.full((len(prompts), size), np.nan)
    for row, prompt in zip(rows, prompts, strict=True):
        # An end of text or a part of a character has no log-probabilities in the answer. The bias
        # forces another token; it comes after the log-probabilities.
        asked = {"prompt": prompt, "n_predict": 1, "n_probs": size, "logit_bias": [[said, 100.0]]}
        asked |= {"temperature": 0.0, "cache_prompt": False, "stream": False}
        answer = server.handle_completions(asked)
        answer = json.loads(answer) if isinstance(answer, (str, bytes)) else answer
        for found in answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]:
            row[found["id"]] = found["logprob"]
    assert np.isfinite(rows).all()
    print(json.dumps(rows.tolist()))


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]), int(sys.argv[4]))
