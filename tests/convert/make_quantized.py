"""Make quantized.json: what llama.cpp's own quantiser chooses for the models in quantized.py.

From the root of the repository, with the folder of a build of llama.cpp that has libllama.so:

    python -m tests.convert.make_quantized FOLDER
"""

import argparse
import ctypes
import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

from ggmodel.gguf_file import open_gguf
from tests.convert import quantized


class Parameters(ctypes.Structure):
    """llama_model_quantize_params of llama.h."""

    _fields_ = (
        ("nthread", ctypes.c_int32),
        ("ftype", ctypes.c_int),
        ("output_tensor_type", ctypes.c_int),
        ("token_embedding_type", ctypes.c_int),
        *((name, ctypes.c_bool) for name in "requantize output copy pure keep_split dry".split()),
        *((f"pointer_{i}", ctypes.c_void_p) for i in range(4)),
        ("max_buf_size", ctypes.c_size_t),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("build", type=Path, help="the folder of libllama.so")
    options = parser.parse_args()
    for name in ("libggml-base.so", "libggml-cpu.so", "libggml.so", "libllama.so"):
        lib = ctypes.CDLL(str(options.build / name), mode=ctypes.RTLD_GLOBAL)
    lib.llama_model_quantize_default_params.restype = Parameters
    lib.llama_version.restype = ctypes.c_char_p
    found: dict[str, Any] = {"llama.cpp": lib.llama_version().decode()}
    with tempfile.TemporaryDirectory() as scratch:
        for name in quantized.MODELS:
            source = quantized.write(Path(scratch, "in.gguf"), name)
            found[name] = {}
            for kind, number in quantized.FILE_TYPES.items():
                target = Path(scratch, "out.gguf")
                parameters = lib.llama_model_quantize_default_params()
                parameters.ftype, parameters.nthread = number, 1
                names = (str(source).encode(), str(target).encode())
                if lib.llama_model_quantize(*names, ctypes.byref(parameters)):
                    raise SystemExit(f"{name}: {kind} failed")
                with open_gguf(target) as made:
                    whole = hashlib.sha256(target.read_bytes()).hexdigest()[:32]
                    found[name][kind] = {**quantized.summary(made), "file": whole}
    quantized.REFERENCE.write_text(_lines(found), encoding="utf-8")


def _lines(found: dict[str, Any]) -> str:
    """JSON with a line for each model and type."""
    parts = [f'"llama.cpp": {json.dumps(found["llama.cpp"])}']
    for name in quantized.MODELS:
        kinds = (f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in found[name].items())
        parts.append(f"{json.dumps(name)}: {{\n" + ",\n".join(kinds) + "\n}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    main()
