"""The tokens that begin, end and separate texts, and those that are put around a text.

The rules are those of llama.cpp's converter (gguf-py, class SpecialVocab), so that both write the
same keys: `tokenizer.json` counts first, then `tokenizer_config.json`, then `config.json`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...tokenizer.vocabulary import PREFIX
from .files import Files

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
    found = _Special(files, tokens)
    keys = {PREFIX + _KEYS[name]: id for name, id in found.ids.items() if name in _KEYS}
    if "whisper" in files.families:
        # They stand around what it says, not around a text; the sound brings the start.
        found.adds |= dict.fromkeys(("bos", "eos"), False)
    flags = {f"{PREFIX}add_{name}_token": found.adds[name] for name in _ADDED if name in found.adds}
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
                    id = next((i for i, known in enumerate(self.tokens) if known == text), None)
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
        found = map(_normalizer, steps) if isinstance(steps, list) else ()
        return {key: value for flags in found for key, value in flags.items()}
    drops = {"Lowercase": {"lowercase": True}, "StripAccents": {"strip_accents": True}}
    flags = {**drops, "BertNormalizer": normalizer}.get(str(normalizer.get("type")), {})
    kept = {name: flags.get(name) for name in ("lowercase", "strip_accents")}
    return {f"{PREFIX}normalizer.{k}": v for k, v in kept.items() if isinstance(v, bool)}
