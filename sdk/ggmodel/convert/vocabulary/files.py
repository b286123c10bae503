"""The files of a Hugging Face directory that describe a vocabulary, read and checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from ...errors import ConfigError, FormatError

# Some twenty times the largest known vocabulary.
_MOST_TOKENS = 1 << 24


class Files:
    """A directory, and the `config.json` of its model.

    Reading raises `FormatError` for a file that cannot be read, or is no UTF-8, no JSON or no
    object.

    Attributes:
        folder: the directory.
        rows: of the embedding, None if unknown.
        config: the config, `text_config` merged into it.
        families: the `model_type` of the model and of its text part, such as "gemma3".
    """

    def __init__(self, folder: Path, config: Mapping[str, Any], rows: int | None = None):
        self.folder, self.rows = folder, rows
        text = config.get("text_config")
        self.config = {**config, **text} if isinstance(text, Mapping) else dict(config)
        kinds = config.get("model_type"), self.config.get("model_type")
        self.families = {k.removesuffix("_text") for k in kinds if isinstance(k, str)}

    @cached_property
    def tokenizer(self) -> dict[str, Any] | None:
        """tokenizer.json."""
        return self.json("tokenizer.json")

    @cached_property
    def settings(self) -> dict[str, Any] | None:
        """tokenizer_config.json."""
        return self.json("tokenizer_config.json")

    @property
    def vocab_size(self) -> int | None:
        """The number of tokens, if the config has it; the embedding may have more rows.

        Raises:
            ConfigError: it is no number of tokens.
        """
        size = self.config.get("vocab_size")
        if size is None:
            return None
        if not isinstance(size, int) or isinstance(size, bool) or not 0 < size <= _MOST_TOKENS:
            raise ConfigError(
                f"config.json: vocab_size should be a number of tokens from 1 to {_MOST_TOKENS:,}, "
                f"but is {size!r:.80}; correct the file"
            )
        return size

    def size_for(self, last: int, known: int) -> int:
        """The number of tokens of a vocabulary: the config's, or more if the last id is beyond it
        and the embedding has a row for that.

        Args:
            known: the number of tokens where the config has none.
        """
        size = self.vocab_size or known
        return last + 1 if self.rows is not None and size <= last < self.rows else size

    def path(self, name: str) -> Path | None:
        """The file of this name, or None."""
        path = self.folder / name
        return path if path.is_file() else None

    def bytes(self, name: str) -> bytes | None:
        """A whole file, or None without it."""
        path = self.path(name)
        if path is None:
            return None
        try:
            return path.read_bytes()
        except OSError as error:
            raise FormatError(f"{path} cannot be read: {error.strerror or error}") from error

    def text(self, name: str) -> str | None:
        """A text file, or None without it."""
        data = self.bytes(name)
        try:
            return None if data is None else data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise FormatError(
                f"{self.folder / name} is no UTF-8 at byte {error.start}; get the file again"
            ) from error

    def json(self, name: str) -> dict[str, Any] | None:
        """A JSON object, or None without the file."""
        text = self.text(name)
        if text is None:
            return None
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise FormatError(
                f"{self.folder / name} is no JSON: {error}; get the file again"
            ) from error
        if not isinstance(value, dict):
            raise FormatError(f"{self.folder / name} should hold an object, not {value!r:.80}")
        return value

    def damaged(self, name: str, what: str) -> FormatError:
        """The error for damage in the file of that name."""
        return FormatError(f"{self.folder / name}: {what}; get the file again")
