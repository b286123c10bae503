"""Files that describe a vocabulary: read and checked, with their special tokens.

The rules of special tokens are those of llama.cpp's converter (gguf-py, class SpecialVocab):
`tokenizer.json` counts first, then `tokenizer_config.json`, then `config.json`. Field numbers and
defaults of a SentencePiece model are those of sentencepiece_model.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ...bounds import limits
from ...errors import ConfigError, FormatError
from ...reading import decoded, parse_json, read_file
from ...tokenizer.vocabulary import PREFIX, check_count
from ..from_hf import with_text

RWKV_WORLD = "rwkv_vocab_v20230424.txt"
_VOCABULARIES = (
    *("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.txt", "tekken.json", RWKV_WORLD),
    *("tiktoken.model", ".tiktoken"),
)


class Files:
    """A directory, and the `config.json` of its model.

    Reading raises `FormatError` for a file that cannot be read, exceeds its limit, or is no UTF-8,
    no JSON or no object.

    Attributes:
        folder: the directory.
        rows: of the embedding, None if unknown.
        config: the config, with the keys of `text_config` as `with_text` puts them.
        source: the file that `tokenizer` is made from, for messages.
        families: the `model_type` of the model and of its text part, such as "gemma3".
    """

    def __init__(self, folder: Path, config: Mapping[str, Any], rows: int | None = None):
        self.folder, self.rows = folder, rows
        self.source = "tokenizer.json"
        self.config = with_text(config)
        kinds = (c.get("model_type") for c in (config, config.get("text_config") or {}))
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

    def size_for(self, last: int, count: int) -> int:
        """The number of tokens of a vocabulary: the config's, or more if the last id is beyond it
        and the embedding has a row for that.

        Args:
            count: the number of tokens where the config has none.
        """
        size = self.vocab_size or count
        return last + 1 if self.rows is not None and size <= last < self.rows else size

    def path(self, name: str) -> Path | None:
        """The file of this name, or None."""
        path = self.folder / name
        return path if path.exists() else None

    def bytes(self, name: str) -> bytes | None:
        """A whole file, or None without it."""
        path = self.path(name)
        is_vocabulary = name.endswith(_VOCABULARIES)
        limit = "tokenizer_file_bytes" if is_vocabulary else "text_file_bytes"
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


# Keys in GGUF; "seperator" is misspelt in the format. It has no key for cls.
_KEYS = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "unk": "unknown_token_id",
    "sep": "seperator_token_id",
    "pad": "padding_token_id",
    "mask": "mask_token_id",
    "eot": "eot_token_id",
    "eom": "eom_token_id",
}
_ADDED = ("bos", "eos", "sep")
# Found in the whole vocabulary if tokenizer.json does not list them as added tokens.
_NEEDED = ("bos", "eos", "eot", "eom")
# As tokenizer_config.json and config.json name them: "bos_token", "bos_token_id".
NAMES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def special_tokens(files: Files, tokens: Sequence[str]) -> dict[str, Any]:
    """Ids of special tokens, and flags for those that `encode` adds.

    Args:
        tokens: the text of each id; larger ids are left out.

    Raises:
        FormatError: a file is damaged.
    """
    special = _Special(files, tokens)
    keys = {PREFIX + _KEYS[name]: id for name, id in special.ids.items() if name in _KEYS}
    if "whisper" in files.families:
        # They stand around what it says, not around a text; the sound brings the start.
        special.adds |= dict.fromkeys(("bos", "eos"), False)
    flags = {
        f"{PREFIX}add_{name}_token": special.adds[name] for name in _ADDED if name in special.adds
    }
    return {**keys, **flags, **_normalizer((files.tokenizer or {}).get("normalizer"))}


class _Special:
    def __init__(self, files: Files, tokens: Sequence[str]):
        self.files, self.tokens = files, tokens
        self.ids: dict[str, int] = {}
        self.adds: dict[str, bool] = {}
        self.names: list[str] = [*NAMES]
        # A copy, completed by the post-processor.
        self.settings = dict(files.settings) if files.settings else None
        if files.tokenizer is not None:
            self._read_post_processor(files.tokenizer)
        self._read_settings()
        self._read_config()

    def _read_post_processor(self, tokenizer: dict[str, Any]) -> None:
        settings = self.settings or {}
        for name, other in (("bos", "cls"), ("eos", "sep")):
            if not settings.get(f"{name}_token") and settings.get(f"{other}_token"):
                settings[f"{name}_token"] = settings[f"{other}_token"]
        self.around = {n: settings.get(f"{n}_token") for n in ("bos", "cls", "eos", "sep")}
        processor = tokenizer.get("post_processor") or {}
        try:
            for step in processor.get("processors", [processor]):
                kind = step.get("type")
                if kind == "ByteLevel":
                    self.adds.setdefault("bos", False)
                    self.adds.setdefault("eos", False)
                elif kind == "RobertaProcessing":
                    self.adds |= {"bos": True, "eos": True, "sep": True}
                    for name, other in (("cls", "bos"), ("sep", "eos")):
                        if not self.around[name] and self.settings is not None:
                            token = step.get(name, [self.around[other]])[0]
                            self.around[name] = self.settings[f"{name}_token"] = token
                elif kind == "TemplateProcessing":
                    self._read_template(step.get("single", []), step.get("pair", []))
        except (AttributeError, TypeError, IndexError, KeyError) as error:
            raise self.files.damaged(
                "tokenizer.json", f"the post_processor is none: {processor!r:.80}"
            ) from error

    def _read_template(self, single: list[Any], pair: list[Any]) -> None:
        """`single` is a text among special tokens: [CLS] A [SEP]; `pair`: [CLS] A [SEP] B [SEP]."""
        first = last = None
        if len(single) > 1:
            if first := _special(single[0]):
                self._begins(first)
            if last := _special(single[-1]):
                self._ends(last)
        if not pair:
            return
        start = 1 if first and _special(pair[0]) == first else 0
        stop = -1 if last and _special(pair[-1]) == last else None
        inner = pair[start:stop]
        if inner and _sequence(inner[0]) == "A" and _sequence(inner[-1]) == "B" and inner[1:-1]:
            self._separates(inner[1:-1], last)

    def _begins(self, token: str) -> None:
        around = self.around
        if self.settings is None:
            around["bos"] = token
        elif token not in (around["bos"], around["cls"]):
            for name in ("bos", "cls"):
                if not around[name]:
                    around[name] = self.settings[f"{name}_token"] = token
        self.adds["bos"] = token in (around["bos"], around["cls"])

    def _ends(self, token: str) -> None:
        """A last token other than `eos` is the real one; the other then ends only turns."""
        if self.settings is not None and token != self.around["eos"]:
            name = next((n for n in ("eot", "eom") if n not in self.names), None)
            if name is not None:
                self.names.append(name)
                self.settings[f"{name}_token"] = self.around["eos"]
            self.settings["eos_token"] = token
        self.around["eos"] = token
        self.adds["eos"] = True

    def _separates(self, between: list[Any], last: str | None) -> None:
        separators = (self.around["sep"], self.around["eos"])
        token = _special(between[0])
        adds = bool(token) and token in separators and not last
        if len(between) == 2 and (second := _special(between[1])):
            adds |= second in separators
        self.adds["sep"] = adds
        if adds and not self.around["sep"] and self.settings is not None:
            self.settings["sep_token"] = self.around["eos"]

    def _read_settings(self) -> None:
        settings = self.settings or {}
        for name in self.names:
            if isinstance(adds := settings.get(f"add_{name}_token"), bool):
                self.adds.setdefault(name, adds)
            token = settings.get(f"{name}_token")
            text = token.get("content") if isinstance(token, dict) else token
            if isinstance(text, str):
                id = next((id for id, content in self._added() if content == text), None)
                # Without its end a model never stops. The converter looks no further for any.
                if id is None and name in _NEEDED:
                    id = next((i for i, other in enumerate(self.tokens) if other == text), None)
                self._set(name, id)

    def _added(self) -> Iterator[tuple[Any, Any]]:
        added = (self.files.tokenizer or {}).get("added_tokens") or []
        if not isinstance(added, list) or not all(isinstance(item, dict) for item in added):
            raise self.files.damaged("tokenizer.json", "added_tokens is no list of tokens")
        return ((item.get("id"), item.get("content")) for item in added)

    def _read_config(self) -> None:
        for name in self.names:
            self._set(name, self.files.config.get(f"{name}_token_id"))
        # A list of several ends stands nowhere else; all but the first are known by their names.
        generation = self.files.json("generation_config.json") or {}
        for source in (generation, self.files.config):
            ends = source.get("eos_token_id")
            self._set("eos", ends[0] if isinstance(ends, list) and ends else ends)

    def _set(self, name: str, id: Any) -> None:
        """Sets a token once; -1 in configs stands for none."""
        if isinstance(id, int) and not isinstance(id, bool) and 0 <= id < len(self.tokens):
            self.ids.setdefault(name, id)


def _special(part: dict[str, Any]) -> str | None:
    return part.get("SpecialToken", {}).get("id")


def _sequence(part: dict[str, Any]) -> str | None:
    return part.get("Sequence", {}).get("id")


def _normalizer(normalizer: Any) -> dict[str, Any]:
    """Flags of a WordPiece vocabulary: case and accents are dropped."""
    if not isinstance(normalizer, Mapping):
        return {}
    if normalizer.get("type") == "Sequence":
        steps = normalizer.get("normalizers")
        each = map(_normalizer, steps) if isinstance(steps, list) else ()
        return {key: value for flags in each for key, value in flags.items()}
    drops = {"Lowercase": {"lowercase": True}, "StripAccents": {"strip_accents": True}}
    flags = {**drops, "BertNormalizer": normalizer}.get(str(normalizer.get("type")), {})
    kept = {name: flags.get(name) for name in ("lowercase", "strip_accents")}
    return {f"{PREFIX}normalizer.{k}": v for k, v in kept.items() if isinstance(v, bool)}


UNIGRAM, BPE = 1, 2

_VARINT, _BYTES, _FLOAT = 0, 2, 5  # wire types
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3  # ModelProto
_PIECE, _SCORE, _TYPE = 1, 2, 3  # ModelProto.SentencePiece
_MODEL_TYPE = 3  # TrainerSpec
_CHARSMAP, _ADD_DUMMY_PREFIX, _REMOVE_EXTRA_WHITESPACES = 2, 3, 4  # NormalizerSpec


@dataclass
class SentencePieceModel:
    """The content of the file.

    Attributes:
        kind: `UNIGRAM`, `BPE`, or one of two other kinds.
        pieces: text of each id.
        scores: score of each id, float32.
        types: type of each id: the numbers of `TokenType`.
        add_dummy_prefix: a space goes in front of a text.
        remove_extra_whitespaces: several spaces become one.
        charsmap: the compiled normalization of characters; empty for none.
    """

    kind: int = UNIGRAM
    pieces: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    types: list[int] = field(default_factory=list)
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    charsmap: bytes = b""


def read_sentencepiece(data: bytes, name: str) -> SentencePieceModel:
    """The model in `data`; `name` is the file's, for errors.

    Raises:
        FormatError: it is no SentencePiece model.
        TokenizerError: it has more pieces than the limit `vocabulary_tokens`.
    """
    reader = _Reader(data, name)
    model = SentencePieceModel()
    wires = {_PIECES: _BYTES, _TRAINER: _BYTES, _NORMALIZER: _BYTES}
    for number, start, end in reader.fields(0, len(data), wires):
        if number == _PIECES:
            _add_piece(model, reader, start, end)
        elif number == _TRAINER:
            for _, at, stop in reader.fields(start, end, {_MODEL_TYPE: _VARINT}):
                model.kind = reader.varint(at, stop)[0]
        else:
            _read_normalizer(model, reader, start, end)
    if not model.pieces:
        raise reader.wrong(0, "there are no pieces")
    return model


def _read_normalizer(model: SentencePieceModel, reader: _Reader, start: int, end: int) -> None:
    flags = {_ADD_DUMMY_PREFIX: _VARINT, _REMOVE_EXTRA_WHITESPACES: _VARINT}
    for number, at, stop in reader.fields(start, end, {_CHARSMAP: _BYTES, **flags}):
        if number == _CHARSMAP:
            model.charsmap = reader.data[at:stop]
        elif number == _ADD_DUMMY_PREFIX:
            model.add_dummy_prefix = bool(reader.varint(at, stop)[0])
        else:
            model.remove_extra_whitespaces = bool(reader.varint(at, stop)[0])


def _add_piece(model: SentencePieceModel, reader: _Reader, start: int, end: int) -> None:
    text, score, kind = "", 0.0, 1
    wires = {_PIECE: _BYTES, _SCORE: _FLOAT, _TYPE: _VARINT}
    for number, at, stop in reader.fields(start, end, wires):
        if number == _PIECE:
            try:
                text = reader.data[at:stop].decode()
            except UnicodeDecodeError as error:
                raise reader.wrong(at + error.start, "a piece is no UTF-8") from None
        elif number == _SCORE:
            score = struct.unpack_from("<f", reader.data, at)[0]
        else:
            kind = reader.varint(at, stop)[0]
    if not 1 <= kind <= 6:
        raise reader.wrong(start, f"piece {len(model.pieces)} has the unknown type {kind}")
    check_count(reader.name, len(model.pieces) + 1)
    model.pieces.append(text)
    model.scores.append(score)
    model.types.append(kind)


class _Reader:
    def __init__(self, data: bytes, name: str):
        self.data, self.name = data, name

    def wrong(self, at: int, what: str) -> FormatError:
        return FormatError(
            f"{self.name} is no SentencePiece model: byte {at}: {what}; get the file again"
        )

    def fields(self, start: int, end: int, wires: dict[int, int]) -> Iterator[tuple[int, int, int]]:
        """Number, first byte and the byte behind the last of each wanted field between two offsets.

        Args:
            wires: the wire types of fields by their numbers; others are left out.
        """
        at = start
        while at < end:
            key, begin = self.varint(at, end)
            number, wire = key >> 3, key & 7
            if wire == _VARINT:
                stop = self.varint(begin, end)[1]
            elif wire in (1, _FLOAT):
                stop = begin + (8 if wire == 1 else 4)
            elif wire == _BYTES:
                length, begin = self.varint(begin, end)
                stop = begin + length
            else:
                raise self.wrong(at, f"there is no wire type {wire}")
            if stop > end:
                raise self.wrong(at, f"field {number} goes {stop - end} bytes too far")
            if wires.get(number, wire) != wire:
                raise self.wrong(begin, f"a field has wire type {wire}, not {wires[number]}")
            if number in wires:
                yield number, begin, stop
            at = stop

    def varint(self, at: int, end: int) -> tuple[int, int]:
        """A number, seven bits a byte with the lowest first, and the offset behind it."""
        result = 0
        for i, byte in enumerate(self.data[at : min(at + 10, end)]):
            result |= (byte & 127) << 7 * i
            if byte < 128:
                return result, at + i + 1
        raise self.wrong(at, "a number does not end")
