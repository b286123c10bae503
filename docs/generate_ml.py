"""Writes docs/ml.md: every item of the tensor interface and its name in Python.

    python docs/generate_ml.py

The descriptions are the docstrings, the ggml functions those that an op's emitter calls. This file
only maps items of the interface to Python names; a missing name is an error.
"""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any

from ggmodel import errors, ml
from ggmodel.ml.ggml.emitters import EMITTERS
from ggmodel.native import ffi, lib

_OPS_ARE_IN = "ggmodel.ml.ops."
_EMITTERS_ARE_IN = "ggmodel.ml.ggml.emitters"

PATH = Path(__file__).with_name("ml.md")

HEAD = """# The tensor interface

<!-- Written by docs/generate_ml.py out of the code: `python docs/generate_ml.py`. -->

Look up an op or a type here: its name in Python (in `ggmodel.ml`), its shapes, and the functions of
ggml behind it.

The first column has the names of Ollama's Go package `ml`: the interface that this package was
given to implement. Both run the same models on ggml, so each name leads a port from there to its
counterpart; the Python spelling follows from the name (`RMSNorm` is `rms_norm`). Names that Ollama
has dropped since are marked as in older versions. The last section lists names that only exist
here.

- Shapes are in ggml order: dim 0 is the fastest, so a numpy array has the reversed shape. […] is
  any shape. Where the kernels need it, operands of other float dtypes are converted and scattered
  ones made contiguous.
- Ops take no context: an op joins the graph of its first operand that has one, else the graph
  being traced. Only `copy`, `set_rows` and `set_inplace` write to their operands.
- The receiver of a product or a convolution is the weight.
- Operands that do not fit are refused with `TensorError` when the op is recorded, indices out of
  range with `ComputeError` before the graph runs.
- Caches are in `ggmodel.kvcache`. Those behind the interface move keys and values together
  ("defragmentation") when no free range is long enough. Caches here do not: a batch takes any free
  cells, so gaps refuse none. Attention reads the window from the first to the last cell of the
  sequences in the batch, or lists of their own cells ([requests.md](requests.md#cells)).
"""

OLDER = "in older versions of the interface"
PROTOCOL = "a protocol, which `ggmodel.ml.process.RunnerProcess` fulfils"


@dataclass(frozen=True)
class Item:
    """An item of the interface and its place in Python.

    Attributes:
        name: the interface's spelling.
        path: below `ggmodel.ml`, or `errors.…`; blanks separate several.
    """

    name: str
    path: str
    note: str = ""


def under(owner: str, python: str, names: str, note: str = "", **other: str) -> Iterator[Item]:
    """Items `owner.Name` that are `python.name`, or `python.other[Name]`."""
    for name in names.split():
        yield Item(f"{owner}.{name}", f"{python}.{other.get(name) or snake(name)}", note)


def snake(name: str) -> str:
    """CachePadding → cache_padding, MulmatID → mulmat_id, RMSNorm → rms_norm."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


_OPS = """
    Add Sub Mul Div Scale Neg Sqr Sqrt Exp Sin Cos Tanh Sigmoid SigmoidOut Softplus Clamp Fill
    GELU GELU_ERF QuickGELU SILU RELU SILUAlphaLimit Cast
    Mulmat MulmatFullPrec MulmatID AddID
    Softmax LayerNorm RMSNorm L2Norm SumRows Mean Variance Stddev CumSum
    Reshape View Permute Contiguous Copy Duplicate Slice Chunk ChunkSections Pad Repeat Repeat4D
    Concat Stack SetInplace
    Rows SetRows TopK Argsort Diag Tri
    Conv2D Conv3D IM2Col AvgPool2D Interpolate
    SSMConv SSMScan SolveTri
"""

SECTIONS: dict[str, list[Item]] = {
    "Tensors": [
        Item("Tensor", "Tensor"),
        *under(
            "Tensor", "Tensor", "Dim Stride Shape DType Bytes Floats FromBytes FromFloats FromInts",
            DType="dtype",
        ),
        Item("DType", "DType"),
    ],
    "Ops": [
        *under(
            "Tensor", "Tensor", _OPS, GELU_ERF="gelu_erf", CumSum="cumsum", Repeat4D="repeat_4d",
            Conv2D="conv_2d", Conv3D="conv_3d", IM2Col="im2col", AvgPool2D="avg_pool_2d",
        ),
        Item("Tensor.Set", "Tensor.set", OLDER),
        Item("ScaledDotProductAttention", "Tensor", "every tensor has it"),
        Item(
            "ScaledDotProductAttention.ScaledDotProductAttention",
            "Tensor.scaled_dot_product_attention",
        ),
        Item("SamplingMode", "SamplingMode"),
        Item("SamplingModeNearest", "SamplingMode.NEAREST"),
        Item("SamplingModeBilinear", "SamplingMode.BILINEAR"),
    ],
    "Contexts": [
        Item("Context", "Context"),
        *under(
            "Context", "Context",
            "Input Layer Empty Zeros FromBytes FromFloats FromInts Arange Forward Compute "
            "ComputeWithNotify Reserve SetBatchSize MaxGraphNodes Close",
        ),
        Item("Context.FromFloatSlice", "Context.from_floats", OLDER),
        Item("Context.FromIntSlice", "Context.from_ints", OLDER),
    ],
    "Backends": [
        Item("RegisterBackend", "register_backend"),
        Item("NewBackend", "new_backend"),
        Item("Backend", "Backend"),
        *under(
            "Backend", "Backend",
            "Load Config Get NewContext NewContextSize BackendMemory BackendDevices Close",
        ),
        Item("BackendParams", "BackendParams"),
        *under("BackendParams", "BackendParams", "AllocMemory NumThreads GPULayers FlashAttention",
               GPULayers="gpu_layers"),
        *(
            Item(f"BackendParams.{name}", "gpu_layers_from_split", f"`{snake(name)}`; {OLDER}")
            for name in ("MainGPU", "NumGPULayers", "TensorSplit")
        ),
        Item("FlashAttentionType", "FlashAttention"),
        Item("FlashAttentionAuto", "FlashAttention.AUTO"),
        Item("FlashAttentionDisabled", "FlashAttention.OFF"),
        Item("FlashAttentionEnabled", "FlashAttention.ON"),
        Item("FlashAttentionType.String", "FlashAttention", "`.name`"),
        Item("FlashAttentionType.LogValue", "FlashAttention", "`.name`"),
        Item("BackendCacheConfig", "Backend", "every backend has it"),
        Item("BackendCacheConfig.CacheConfig", "Backend.cache_config"),
        Item("CacheConfig", "CacheConfig"),
        *under(
            "CacheConfig", "CacheConfig", "CachePadding PermutedV MaskDType",
            CachePadding="padding", MaskDType="mask_dtype",
        ),
        Item("CacheConfig.MaskBatchPadding", "CacheConfig.mask_batch_padding", OLDER),
    ],
    "Memory": [
        Item("BackendMemory", "BackendMemory"),
        *under("BackendMemory", "BackendMemory", "InputWeights CPU GPUs Log", GPUs="gpus"),
        Item("BackendMemory.LogValue", "BackendMemory", "`str()`"),
        Item("DeviceMemory", "DeviceMemory"),
        *under("DeviceMemory", "DeviceMemory", "DeviceID Name Weights Cache Graph Size",
               DeviceID="device"),
        Item("DeviceMemory.UUID", "DeviceMemory.device", OLDER),
        Item("DeviceMemory.LogValue", "DeviceMemory", "`str()`"),
        Item("Memory", "DeviceMemory", f"{OLDER}; a figure is an int"),
        Item("Memory.Size", "DeviceMemory.size", OLDER),
        Item("Memory.Status", "DeviceMemory.status", f"{OLDER}; one a device"),
        Item("AllocationStatus", "AllocationStatus", OLDER),
        *(Item(name, f"AllocationStatus.{name.upper()}", OLDER)
          for name in ("Unallocated", "Failed", "Allocated")),
        Item("ErrNoMem", "errors.OutOfMemory"),
        Item("ErrNoMem.BackendMemory", "errors.OutOfMemory.memory"),
    ],
    "Devices": [
        Item("DeviceID", "DeviceID"),
        *under("DeviceID", "DeviceID", "ID Library"),
        Item("DeviceInfo", "DeviceInfo"),
        *under(
            "DeviceInfo", "DeviceInfo",
            "DeviceID Name Description FilterID Integrated PCIID TotalMemory FreeMemory "
            "ComputeMajor ComputeMinor DriverMajor DriverMinor LibraryPath Compute Driver "
            "MinimumMemory Compare IsBetter PreferredLibrary NeedsInitValidation AddInitValidation",
            PCIID="pci_id",
        ),
        Item("DeviceComparison", "DeviceComparison"),
        Item("UniqueDevice", "DeviceComparison.UNIQUE"),
        Item("SameBackendDevice", "DeviceComparison.SAME_BACKEND"),
        Item("DuplicateDevice", "DeviceComparison.DUPLICATE"),
        *(Item(name, snake(name)) for name in ("ByLibrary", "ByPerformance", "ByFreeMemory")),
        *(Item(f"ByFreeMemory.{name}", "by_free_memory", "Python sorts")
          for name in ("Len", "Less", "Swap")),
        Item("FlashAttentionSupported", "flash_attention_supported"),
        Item("GetVisibleDevicesEnv", "get_visible_devices_env"),
        Item("LibraryPaths", "library_paths"),
        Item("LibOllamaPath", "library_paths", "ggml says where it was loaded from"),
        Item("GPULayers", "GPULayers"),
        Item("GPULayers.FirstLayer", "GPULayers.first_layer"),
        Item("GPULayersList", "GPULayersList"),
        *under("GPULayersList", "GPULayersList", "Sum Hash"),
        Item("GPULayersList.String", "GPULayersList", "`str()`"),
        Item("GPULayersList.Len", "GPULayersList", "`len()`"),
        Item("GPULayersList.Less", "GPULayersList.in_order"),
        Item("GPULayersList.Swap", "GPULayersList.in_order"),
        Item("SystemInfo", "SystemInfo system_info"),
        *under("SystemInfo", "SystemInfo", "ThreadCount TotalMemory FreeMemory FreeSwap"),
    ],
    "Discovery by a runner": [
        Item("BaseRunner", "BaseRunner", PROTOCOL),
        *under("BaseRunner", "BaseRunner", "GetPort HasExited", PROTOCOL),
        Item("RunnerDiscovery", "RunnerDiscovery", PROTOCOL),
        Item("RunnerDiscovery.BaseRunner", "RunnerDiscovery", PROTOCOL),
        Item("RunnerDiscovery.GetDeviceInfos", "RunnerDiscovery.get_device_infos",
             PROTOCOL),
        Item("FilteredRunnerDiscovery", "FilteredRunnerDiscovery", PROTOCOL),
        Item("FilteredRunnerDiscovery.RunnerDiscovery", "FilteredRunnerDiscovery",
             PROTOCOL),
        Item("FilteredRunnerDiscovery.GetActiveDeviceIDs",
             "FilteredRunnerDiscovery.get_active_device_ids", PROTOCOL),
        Item("GetDevicesFromRunner", "get_devices_from_runner",
             "`refresh_free_memory(devices, runners)` renews what is free"),
    ],
    "Dump": [
        Item("Dump", "dump"),
        Item("DumpOptions", "dump", "keywords"),
        *(Item(f"DumpWith{name}", "dump", f"`{snake(name)}=`")
          for name in ("Precision", "Threshold", "EdgeItems")),
    ],
}  # fmt: skip


def find(path: str) -> tuple[Any, str]:
    """The object at a path (None for an attribute of instances) and its description.

    Raises:
        LookupError: the object or its description is missing.
    """
    owner: Any = ml
    thing: Any = ml
    for part in path.split("."):
        owner, thing = thing, errors if part == "errors" else getattr(thing, part, None)
    if isinstance(owner, enum.EnumMeta):
        return None, f"= {thing.value}"
    if thing is None or not (callable(thing) or isinstance(thing, property)):
        return None, described_attribute(owner, path.rpartition(".")[2])
    text = summary(thing)
    if not text:
        raise LookupError(f"{path} has no docstring, or is missing")
    return thing, text


def summary(thing: Any) -> str:
    """The first paragraph of a docstring, and the second where only that one has the shapes."""
    first, *rest = re.split(r"\n\s*\n", inspect.getdoc(thing) or "")
    if "→" not in first and rest and "→" in rest[0] and not rest[0].startswith("With"):
        first = f"{first} {rest[0]}"
    return " ".join(first.split())


def described_attribute(owner: Any, name: str) -> str:
    """The description of an attribute in the docstrings of a class and its bases."""
    for cls in inspect.getmro(owner):
        _, _, section = inspect.cleandoc(cls.__doc__ or "").partition("Attributes:\n")
        section = re.split(r"^\S", section, maxsplit=1, flags=re.MULTILINE)[0]
        # "ne: all four dims. weights, cache: one figure a layer": names, text, names, text …
        parts = re.split(
            r"(?:^|(?<=\.)) ((?:[a-z_]+, )*[a-z_]+): ", f" {' '.join(section.split())}"
        )
        for names, text in zip(parts[1::2], parts[2::2], strict=True):
            if name in names.split(", "):
                return text[:1].upper() + text[1:]
    raise LookupError(f"{owner.__name__} has no attribute {name!r}, or does not describe it")


def codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code and that of the functions within."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def recorded_ops(function: Any) -> list[str]:
    """The ops of the table that a method, or a method that it calls, may record."""
    found: list[str] = []
    seen: set[Any] = set()

    def visit(function: Any) -> None:
        if not isinstance(function, FunctionType) or function in seen:
            return
        seen.add(function)
        function = inspect.unwrap(function)
        if not (
            function.__module__.startswith(_OPS_ARE_IN)
            or function is inspect.unwrap(ml.Context.arange)
        ):
            return
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        for code in codes(function.__code__):
            words = (*code.co_consts, *cells)
            found.extend(word for word in words if isinstance(word, str) and word in ml.OPS)
            for name in code.co_names:
                visit(function.__globals__.get(name) or getattr(ml.Tensor, name, None))

    visit(function)
    return list(dict.fromkeys(found))


def ggml_functions(op: str) -> list[str]:
    """The tensor-making functions of ggml that an op's emitter calls."""
    found: list[str] = []

    def visit(function: Any) -> None:
        if isinstance(function, BuiltinFunctionType):
            found.append(function.__name__)
        elif isinstance(function, FunctionType):
            for cell in function.__closure__ or ():
                visit(cell.cell_contents)
            for name in (n for code in codes(function.__code__) for n in code.co_names):
                if name.startswith("ggml_"):
                    found.append(name)
                elif getattr(function.__globals__.get(name), "__module__", "") == _EMITTERS_ARE_IN:
                    visit(function.__globals__[name])

    visit(EMITTERS[op])
    return [f for f in dict.fromkeys(found) if _makes_a_tensor(f)]


def _makes_a_tensor(function: str) -> bool:
    return ffi.typeof(getattr(lib, function)).result.cname == "struct ggml_tensor *"


def spelled(path: str, thing: Any) -> str:
    """`Tensor.repeat(dim, n)`: a callable with its arguments."""
    name = path.removeprefix("errors.")
    if not inspect.isfunction(thing):
        return f"`{name}`"
    shown = []
    for p in inspect.signature(thing).parameters.values():
        if p.name == "self":
            continue
        star = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        if p.kind is p.KEYWORD_ONLY and not any(s.startswith("*") for s in shown):
            shown.append("*")
        optional = p.default is not p.empty
        shown.append(f"{star}{p.name}{'=' + default(p.default) if optional else ''}")
    return f"`{name}({', '.join(shown)})`"


def default(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    return repr(value.as_posix() if isinstance(value, Path) else value)


def row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def functions_of(thing: Any) -> str:
    """The functions of ggml behind a method, as a cell."""
    functions = [f for op in recorded_ops(thing) for f in ggml_functions(op)]
    return ", ".join(f.removeprefix("ggml_") for f in dict.fromkeys(functions))


def line(item: Item, told: set[str]) -> str:
    """The item's row. A note replaces a description that an earlier row has."""
    things = [(path, *find(path)) for path in item.path.split()]
    texts = [text for path, _, text in things if not (item.note and path in told)]
    told.update(path for path, *_ in things)
    note = ", ".join(ml.DType.__members__) if item.name == "DType" else item.note
    return row(
        item.name,
        ", ".join(spelled(path, thing) for path, thing, _ in things),
        " ".join(texts),
        ", ".join(filter(None, (functions_of(thing) for _, thing, _ in things))),
        note,
    )


def beyond() -> list[str]:
    """The rows of methods of tensors and contexts that the interface lacks."""
    named = {path for items in SECTIONS.values() for item in items for path in item.path.split()}
    rows = []
    for cls in (ml.Tensor, ml.Context):
        for name, thing in inspect.getmembers(cls, inspect.isfunction):
            path = f"{cls.__name__}.{name}"
            if not name.startswith("_") and path not in named:
                rows.append(row(spelled(path, thing), summary(thing), functions_of(thing)))
    return rows


def document() -> str:
    lines, told = [HEAD], set[str]()
    for title, items in SECTIONS.items():
        lines += [f"## {title}\n", row("interface", "Python", "what it does, shapes", "ggml_…", "")]
        lines += [row(*["---"] * 5), *(line(item, told) for item in items), ""]
    lines += ["## Beyond the interface\n", row("Python", "what it does, shapes", "ggml_…")]
    lines += [row(*["---"] * 3), *beyond(), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    PATH.write_text(document(), encoding="utf-8")
