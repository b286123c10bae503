"""The former place of the file format, now `gguf_file`; `ggmodel.gguf` is the tag of fields."""

from .errors import Renamed

raise Renamed(
    "the package ggmodel.gguf is now called ggmodel.gguf_file; import that (the function "
    "ggmodel.gguf, which tags fields, keeps its name)",
    name=__name__,
)
