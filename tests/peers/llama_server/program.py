"""Takes the place of llama-server in llama.cpp's tests: `ggmodel serve` with the flags that fit.

The models that the tests download are replaced by small files of this repository. Flags without a
counterpart are dropped: the tests that need them are among the failures that FAILURES tells.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
ASSETS = ROOT / "examples" / "assets"
STAND_INS = {
    "test-model-stories260K": ASSETS / "stories.gguf",
    "test-model-stories260K-infill": ASSETS / "stories.gguf",
    "stories15M_MOE": ASSETS / "stories.gguf",
    "tinygemma3-GGUF:Q8_0": ASSETS / "shapes.gguf",
}
INFILL = {
    f"tokenizer.ggml.fim_{name}_token_id": 300 + i
    for i, name in enumerate(("pre", "suf", "mid", "rep", "sep"))
}
TEMPLATE = "tokenizer.chat_template"
TEMPLATES = Path("../../../models/templates")  # of llama.cpp, from the folder of its tests
BUILT_IN = {"llama3": "meta-llama-Llama-3.1-8B-Instruct"}
VALUES = (
    "port host hf-repo hf-file model alias ctx-size parallel batch-size threads n-predict api-key "
    "media-path slot-save-path cors-origins chat-template chat-template-file reasoning temp tools "
    "seed pooling"
)
FLAGS = "kv-unified embedding verbose metrics no-slots"


def arguments(given: list[str]) -> list[str]:
    """The arguments of `ggmodel serve` for those of llama-server."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in VALUES.split():
        parser.add_argument(f"--{name}")
    for name in FLAGS.split():
        parser.add_argument(f"--{name}", action="store_true")
    asked, _ = parser.parse_known_args(given)
    found = ["serve"]
    if asked.model or asked.hf_repo:
        model = _model(asked)
        name = (asked.alias or model.stem).split(",")[0]
        found += [f"{name}={model}", "--pin", name]  # loaded at the start, as theirs
    found += ["--only", "--any-name", "--drain", "1", "--gpu-layers", "0"]
    parallel = int(asked.parallel or 4)
    if asked.ctx_size:  # llama-server shares it among the sequences
        each = int(asked.ctx_size) // (1 if asked.kv_unified or not asked.parallel else parallel)
        found += ["--context-length", str(each)]
    options = {
        "--port": asked.port,
        "--host": asked.host,
        "--parallel": str(parallel),
        "--threads": asked.threads or "1",
        "--batch-size": asked.batch_size,
        # Theirs is a default, ours a limit: only the short ones are meant as one.
        "--max-tokens": asked.n_predict if 0 < int(asked.n_predict or -1) < 64 else None,
        "--api-key": asked.api_key,
        "--media-path": asked.media_path,
        "--slot-save-path": asked.slot_save_path,
        "--seed": asked.seed,
        "--pooling": asked.pooling,
        "--cors-origin": asked.cors_origins or ("localhost" if asked.tools else "*"),
    }
    for option, value in options.items():
        found += [option, value] if value is not None else []
    flags = {"--verbose": asked.verbose, "--no-slots": asked.no_slots}
    flags["--no-metrics"] = not asked.metrics  # which llama-server shows only where asked to
    return [*found, *(flag for flag, given in flags.items() if given)]


def _model(asked: argparse.Namespace) -> Path:
    if asked.model:
        return Path(asked.model)
    repository = (asked.hf_repo or "").rpartition("/")[2]
    folder = Path(os.environ["GGMODEL_STAND_INS"])
    if repository == "models":
        encoder = made(folder / "encoder.gguf")
        ranks = "reranker" in (asked.hf_file or "")
        return encoder if ranks else changed(encoder, {"bert.pooling_type": 1}, folder)
    if repository not in STAND_INS:
        sys.exit(f"no file takes the place of {asked.hf_repo} {asked.hf_file}")
    file, changes = STAND_INS[repository], dict[str, Any]()
    if asked.temp:  # a default of the server, and here of the file
        changes["general.sampling.temp"] = float(asked.temp)
    if asked.chat_template:
        file_of = TEMPLATES / f"{BUILT_IN.get(asked.chat_template)}.jinja"
        changes[TEMPLATE] = file_of.read_text() if file_of.exists() else asked.chat_template
    if asked.chat_template_file:
        changes[TEMPLATE] = Path(asked.chat_template_file).read_text(encoding="utf-8")
    if asked.reasoning and TEMPLATE in changes:  # which is theirs for all requests
        value = "false" if asked.reasoning == "off" else "true"
        changes[TEMPLATE] = f"{{% set enable_thinking = {value} %}}" + changes[TEMPLATE]
    if repository.endswith("infill"):
        changes |= INFILL
    return changed(file, changes, folder) if changes else file


def made(path: Path) -> Path:
    """The encoder, written once."""
    from tests.peers.llama_server.encoder import write

    if not path.exists():
        write(path)
    return path


def changed(file: Path, changes: dict[str, Any], folder: Path) -> Path:
    """A copy of the file with other metadata in a folder, made once."""
    from ggmodel.convert.write import write_gguf
    from ggmodel.gguf_file import open_gguf

    digest = hashlib.sha256(json.dumps(changes).encode()).hexdigest()[:16]
    copy = folder / f"{file.stem}-{digest}.gguf"
    if not copy.exists():
        with open_gguf(file) as source:
            metadata = {**source.metadata, **changes}
            tensors = list(source.tensors.values())
            write_gguf(copy, metadata, tensors, lambda t: source.data(t.name), source.release)
    return copy


if __name__ == "__main__":
    program = [sys.executable, "-m", "ggmodel", *arguments(sys.argv[1:])]
    os.execv(sys.executable, program)
