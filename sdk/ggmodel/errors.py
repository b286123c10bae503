"""The error family: every error ggmodel raises on purpose derives from `Error`.

A message says what is wrong and what to do next. Classes that replace a built-in kind of error
also derive from it, so that `except ValueError` keeps working for callers who know only Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Error(Exception):
    """Base class of all errors raised by ggmodel."""


class FormatError(Error, ValueError):
    """A file is not what its format promises; the message names the file and the byte offset."""


class ConfigError(Error, ValueError):
    """A hyperparameter or metadata key is missing, has the wrong type or an impossible value."""


class LoadError(Error):
    """The tensors of a file do not fit the declaration of the model; carries the load report.

    Attributes:
        report: the `LoadReport` that lists missing, unused and wrongly shaped tensors, or None.
    """

    def __init__(self, message: str, report: object | None = None):
        super().__init__(message)
        self.report = report


class ArchitectureError(Error, LookupError):
    """No registered architecture has this name (the message lists those that exist), or the code
    of its model fails (the message names the line; the original error is the cause)."""


class TokenizerError(Error, ValueError):
    """A vocabulary cannot be built, or a token id lies outside it."""


class TemplateError(Error, ValueError):
    """A chat template is missing, wrong, refuses the messages, or costs too much."""


class NativeError(Error, RuntimeError):
    """ggml, its headers or the compiled binding are missing or do not belong together."""


class TensorError(Error, ValueError):
    """An op got operands it cannot take; names op, operands, shapes and the model's line."""


class GraphError(Error, RuntimeError):
    """A tensor, context or model is used where it does not belong (other graph, closed, …)."""


class ArgumentError(TensorError, GraphError, ConfigError, TypeError):
    """A function or method of `ggmodel.ml` got arguments of a wrong number, type or size; it counts
    as an error of each part of that interface."""


class ComputeError(Error, RuntimeError):
    """A computation failed or gave a useless result, such as NaN logits."""


class OutOfMemory(Error, MemoryError):
    """An allocation failed; carries the memory report with the attempted size.

    Attributes:
        memory: the `BackendMemory` at the time of the failure, or None before a backend exists.
    """

    def __init__(self, message: str, memory: object | None = None):
        super().__init__(message)
        self.memory = memory


class DeviceLost(ComputeError):
    """The process that holds a model's devices has ended, mostly because a worker went away; names
    the worker. The model is of no use any more, but can be loaded again."""


class ImageError(Error, ValueError):
    """A picture cannot be read, is too large, or does not suit the step it is given to."""


class AudioError(Error, ValueError):
    """A sound cannot be read, is too long, or does not suit the step it is given to."""


class VideoError(Error, ValueError):
    """A video cannot be read, has no frames, is too large, or does not suit the step it is given
    to."""


class PromptError(Error, ValueError):
    """A prompt is empty, too long for the context, or holds something that is no input."""


class PromptTooLong(PromptError):
    """A prompt has more tokens than the context.

    Attributes:
        tokens: of the prompt, at least. context: positions that it may take. Both 0 where unknown.
    """

    def __init__(self, message: str = "", tokens: int = 0, context: int = 0):
        super().__init__(message)
        self.tokens, self.context = tokens, context


class GrammarError(Error, ValueError):
    """A schema, pattern or grammar is broken, unsupported, or nothing can satisfy it."""


class KvCacheFull(Error, RuntimeError):
    """The key/value cache has no room for the batch."""


class Busy(Error, RuntimeError):
    """All sequences of a loaded model are in use."""


class BatchError(Error):
    """Some prompts of a batch failed; the others were answered all the same.

    Attributes:
        completions: a `Completion` for each prompt in order, None where one failed.
        errors: the error of each prompt that failed, by its index.
    """

    def __init__(
        self,
        message: str,
        completions: Sequence[str | None] = (),
        errors: Mapping[int, Error] | None = None,
    ):
        super().__init__(message)
        self.completions, self.errors = completions, errors or {}


class Cancelled(Error, RuntimeError):
    """A caller cancelled its own call."""


class ModelNotFound(Error, FileNotFoundError):
    """No file and no model has this name; the message offers near ones."""


class DownloadError(Error, OSError):
    """A model cannot be downloaded: the hub refuses it, cannot be reached, or the disk is full."""


class WriteError(Error, OSError):
    """A file cannot be written: it exists, its folder does not, or the disk is full."""


class Unsupported(Error, NotImplementedError):
    """An unsupported feature; the message says which ones are supported."""


class NotInstalled(Unsupported):
    """A library beside ggmodel cannot be imported; the message names it."""
