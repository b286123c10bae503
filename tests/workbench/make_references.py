"""Make the saved activations that `ggmodel diff` is tested with.

    python -m tests.workbench.make_references [NAME]

Run it from the root of the repository, in an environment with what `ggmodel golden --update` needs
and ggmodel. Weights come from the names of tensors, as those of the goldens do.
"""

import sys
import tempfile
from importlib import import_module
from pathlib import Path

import numpy as np

import ggmodel
from ggmodel.convert import from_hf
from ggmodel.convert.declaration import pairs
from ggmodel.gguf_file import DType
from ggmodel.model import find
from ggmodel.workbench import golden, reference
from ggmodel.workbench.golden.reference import layout
from tests.golden import files
from tests.workbench.saved import CASES, HERE, Case


def make(name: str, case: Case) -> None:
    shapes, _ = layout(case.config)
    weight = golden.Cases(files.HERE / case.arch).weight
    weights = {key: weight(key, shape) for key, shape in shapes.items()}
    cases = import_module(f"tests.golden.{case.arch}.cases")
    pictures = [case.picture] if case.picture else []
    inputs = cases.model_inputs(case.config, case.ids, pictures) if pictures else {}
    with (
        tempfile.TemporaryDirectory() as folder,
        ggmodel.load(from_hf(find(case.arch), case.config, weights)) as model,
    ):
        files.checkpoint(Path(folder), case.config, weights)
        found = reference.run(
            folder,
            [pair.name for pair in pairs(model.model, shapes)],
            {"input_ids": np.array(case.ids, np.int32), **inputs},
            kind=case.picture.kind if case.picture else "",
            image=case.picture.data if case.picture else {},
            adjust=getattr(cases, "adjust", None),
            types=[DType.F32, DType.F16, DType.BF16, DType.Q8_0, DType.Q4_0],
        )
    path = HERE / f"{name}.npz"
    found.save(path)
    print(f"{name}: {len(found.order)} modules, {path.stat().st_size} bytes")


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        make(name, CASES[name])
