"""The files of a Hugging Face directory that describe a vocabulary, read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from ...bounds import limits
from ...errors import ConfigError, FormatError
from ...reading import decoded, parse_json, read_file

_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.txt", "tekken.json")


class Files:
    """A directory, and the `config.json` of its model.

    Reading raises `FormatError` for a file that cannot be read, exceeds its limit, or is no UTF-8,
    no JSON or no object.

    Attributes:
        folder: the directory.
        rows: of the embedding, None if unknown.
        config: the config, `text_config` merged into it.
        source: the file that `tokenizer` is made from, for messages.
        families: the `model_type` of the model and of its text part, such as "gemma3".
    """

    def __init__(self, folder: Path, config: Mapping[str, Any], rows: int | None = None):
        self.folder, self.rows = folder, rows
        self.source = "tokenizer.json"
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
        most = limits.vocabulary_tokens
        if not isinstance(size, int) or isinstance(size, bool) or not 0 < size <= most:
            raise ConfigError(
                f"config.json: vocab_size should be a number of tokens from 1 to {most:,} (the "
                f"limit vocabulary_tokens), but is {size!r:.80}; correct the file"
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
        return path if path.exists() else None

    def bytes(self, name: str) -> bytes | None:
        """A whole file, or None without it."""
        path = self.path(name)
        limit = "tokenizer_file_bytes" if name in _VOCABULARIES else "text_file_bytes"
        return None if path is None else read_file(path, limit)

    def text(self, name: str) -> str | None:
        """A text file, or None without it."""
        data = self.bytes(name)
        return None if data is None else decoded(data, str(self.folder / name))

    def json(self, name: str) -> dict[str, Any] | None:
        """A JSON object, or None without the file."""
        data = self.bytes(name)
        return None if data is None else parse_json(data, str(self.folder / name))

    def damaged(self, name: str, what: str) -> FormatError:
        """The error for damage in the file of that name."""
        return FormatError(f"{self.folder / name}: {what}; get the file again")
