"""Writes docs/reference.md: options of loading and of requests, and what authors of models use.

    python docs/generate_reference.py

Names, types and defaults are those of the code; descriptions are its docstrings. An option or a
field without a description is an error.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import runpy
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import ggmodel
from ggmodel.bounds import Limits
from ggmodel.kvcache import Part as StatePart
from ggmodel.kvcache import Recurrent
from ggmodel.model import (
    Batch,
    Input,
    Modality,
    Multimodal,
    MultimodalEmbedding,
    Prepared,
    Step,
    operations,
)
from ggmodel.model.multimodal import Span
from ggmodel.runner.options import LoadOptions
from ggmodel.runner.request_options import (
    CallOptions,
    ReplyOptions,
    RequestOptions,
    TemplateOptions,
    TextOptions,
)
from ggmodel.runner.requests.generation import Generation

PATH = Path(__file__).with_name("reference.md")
_ML = runpy.run_path(str(Path(__file__).with_name("generate_ml.py")))
row, default, summary, described = (
    _ML[name] for name in ("row", "default", "summary", "described_attribute")
)
_CASES = Path(ggmodel.__file__).parent / "workbench" / "golden" / "reference.py"

HEAD = """# Reference: options, and what a model file uses

<!-- Written by docs/generate_reference.py out of the code: `python docs/generate_reference.py`. -->
"""
OF_LOADING = """
`ggmodel.load(source, **options)` and `ggmodel.estimate(source, **options)` take these. `source` is
a GGUF file, of a split one the first part, or the folder of a Hugging Face model. Commands have the
same as options (`--context-length`), and `COMMAND --help` lists theirs.
"""
OF_REQUESTS = """
`generate`, `stream`, `batch`, `chat` and their kin take these, those of the sampler included. An
option that another library calls otherwise is refused with the name here. One without a default is
off.
"""
OF_TEMPLATES = (
    "\n`chat` takes these as well, for the template that makes a prompt of its messages.\n"
)
OF_REPLIES = "\nAnd these for the form of its reply.\n"
OF_BATCHES = """
A `forward` gets a `Batch`. The functions that it passes to `batch.feed` get the `Step` behind it,
the same as host arrays, before each run of the graph.
"""
OF_IMAGES = """
[models.md](models.md#models-that-see-and-hear) shows the methods that these go through.
"""
OF_WEIGHTS = """
`op=` takes an operation, `hf=` a name or sources
([models.md](models.md#operations-on-weights)). Shapes are numpy's, [out, in].
"""
OF_STATES = "\n[recurrent.md](recurrent.md) is the chapter about them.\n"
OF_LIMITS = """
Attributes of `ggmodel.limits`, which hold for the process. Assignment changes one
(`ggmodel.limits.grammar_seconds = 60`), as does an environment variable when Python starts
(`GGMODEL_LIMIT_GRAMMAR_SECONDS=60`). [security.md](security.md) tells what they are for.
"""
OF_CASES = """
`ggmodel golden NAME --update` reads `cases.py` in the folder of an architecture's goldens. Only
`CASES` is required.
"""


def options_of(cls: Any, defaults: dict[str, Any], *documented: Any) -> Iterator[str]:
    """Rows of options: name, type, default, meaning."""
    yield row("option", "type", "default", "meaning")
    yield row(*["---"] * 4)
    for name, kind in cls.__annotations__.items():
        text = next(filter(None, (_described(of, name) for of in documented)), "")
        if not text:
            raise LookupError(f"{cls.__name__}.{name} is not described")
        kind = getattr(kind, "__forward_arg__", kind)
        shown = f"`{default(defaults[name])}`" if name in defaults else ""
        yield row(f"`{name}`", f"`{kind}`", shown, text)


def _described(cls: type, name: str) -> str:
    """An attribute's or argument's description in the docstring of a class; "" without."""
    for section in ("Attributes:\n", "Args:\n"):
        _, _, doc = (cls.__doc__ or "").partition(section)
        try:
            text = described(type(cls.__name__, (), {"__doc__": f"\n    Attributes:\n{doc}"}), name)
        except LookupError:
            continue
        return re.sub(r"^(Int|Float)32\b", lambda found: found[0].lower(), text)
    return ""


def signature_defaults(function: Any) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def fields_of(*classes: type) -> Iterator[str]:
    """Rows of fields and properties of classes."""
    yield row("class", "field", "content")
    yield row(*["---"] * 3)
    for cls in classes:
        first, _, _ = (inspect.getdoc(cls) or "").partition("\n\n")
        yield row(f"`{cls.__name__}`", "", " ".join(first.split()))
        for name in _names(cls):
            text = _described(cls, name) or summary(inspect.getattr_static(cls, name, None))
            if not text:
                raise LookupError(f"{cls.__name__}.{name} is not described")
            yield row("", f"`{_spelled(cls, name)}`", text)


def _names(cls: type) -> list[str]:
    """The public fields of a class in order: those its docstring describes, properties, methods."""
    section = inspect.cleandoc(cls.__doc__ or "").partition("Attributes:\n")[2]
    listed = re.findall(r"^    ((?:[a-z_]+, )*[a-z_]+): ", section, re.M)
    names = [name for group in listed for name in group.split(", ")]
    if dataclasses.is_dataclass(cls):
        names = [f.name for f in dataclasses.fields(cls)] + names
    own = [n for n, v in vars(cls).items() if inspect.isfunction(v) or isinstance(v, property)]
    return list(dict.fromkeys([*names, *(n for n in own if not n.startswith("_"))]))


def _spelled(cls: type, name: str) -> str:
    thing = inspect.getattr_static(cls, name, None)
    if not inspect.isfunction(thing):
        return name
    given = list(inspect.signature(thing).parameters.values())[1:]
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return f"{name}({', '.join(stars.get(p.kind, '') + p.name for p in given)})"


def operations_on_weights() -> Iterator[str]:
    """Rows of the operations between checkpoints and files, and of the sources."""
    yield row("`op=` or `hf=`", "what it does")
    yield row(*["---"] * 2)
    for base in (operations.Operation, operations.Sources):
        for cls in _public(base):
            arguments = ", ".join(arguments_of(cls))
            yield row(f"`{cls.__name__}({arguments})`", " ".join(summary(cls).split()))


def arguments_of(cls: type) -> Iterable[str]:
    for p in inspect.signature(cls).parameters.values():
        yield p.name if p.default is p.empty else f"{p.name}={default(p.default)}"


def _public(base: type) -> Iterator[type]:
    for cls in vars(operations).values():
        known = isinstance(cls, type) and issubclass(cls, base) and cls is not base
        if known and not cls.__name__.startswith("_"):
            yield cls


def cases() -> str:
    """The names that a `cases.py` may have, from the docstring of the module that reads them: it
    needs torch, so it is not imported."""
    text = ast.get_docstring(ast.parse(_CASES.read_text(encoding="utf-8"))) or ""
    _, _, names = text.partition("Names in `cases.py` of an architecture:\n")
    names, _, _ = names.partition("\nNeeds torch")
    return f"```text\n{names.strip(chr(10))}\n```"


def document() -> str:
    loading = {f.name: f.default for f in dataclasses.fields(LoadOptions)}
    requests = {
        "max_tokens": None,
        **signature_defaults(ggmodel.Sampler),
        **signature_defaults(Generation),
    }
    parts: list[str | Iterable[str]] = [
        HEAD,
        "## Loading",
        OF_LOADING,
        options_of(LoadOptions, loading, LoadOptions),
        "\n## Requests",
        OF_REQUESTS,
        options_of(RequestOptions, requests, RequestOptions, ggmodel.Sampler),
        "\n## Chat templates",
        OF_TEMPLATES,
        options_of(TemplateOptions, {}, TextOptions, TemplateOptions),
        OF_REPLIES,
        options_of(ReplyOptions, {}, CallOptions, ReplyOptions),
        "\n## Limits",
        OF_LIMITS,
        options_of(Limits, {f.name: f.default for f in dataclasses.fields(Limits)}, Limits),
        "\n## A batch",
        OF_BATCHES,
        fields_of(Batch, Step, Span),
        "\n## Images, sounds and videos",
        OF_IMAGES,
        fields_of(Modality, Prepared, Multimodal, MultimodalEmbedding, Input),
        "\n## States of recurrent layers",
        OF_STATES,
        fields_of(Recurrent, StatePart),
        "\n## Operations on weights",
        OF_WEIGHTS,
        operations_on_weights(),
        "\n## Names in cases.py",
        OF_CASES,
        cases(),
    ]
    return "\n".join(p if isinstance(p, str) else "\n".join(p) for p in parts) + "\n"


if __name__ == "__main__":
    PATH.write_text(document(), encoding="utf-8")
