"""The tokenizer and the chat templates of a file beside those of its checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...chat.template import KEY, ChatTemplate
from ...errors import ConfigError, Error, TemplateError, TokenizerError
from ...tokenizer import Tokenizer
from ...tokenizer.vocabulary import PREFIX
from .report import Certificate
from .texts import CONVERSATIONS, TEXTS, conversations, texts

_ARRAYS = ("tokens", "merges", "scores", "token_type")
_ENDS = ("bos", "eos", "add_bos", "add_eos")
_NAMES = {"bos": "bos_token_id", "eos": "eos_token_id", "add_bos": "add_bos_token"}
_NAMES |= {"add_eos": "add_eos_token"}
Encode = Callable[[str, bool], list[int]]


def compare_tokenizers(
    file: Mapping[str, Any], original: Mapping[str, Any], found: Certificate
) -> tuple[Tokenizer | None, Tokenizer | None]:
    """Compares the `tokenizer.*` keys, then the ids of all texts.

    Args:
        original: made from the checkpoint's tokenizer; empty without one.

    Returns:
        the file's tokenizer and the checkpoint's; None where there is none.
    """
    if not original or f"{PREFIX}model" not in original:
        found.unchecked.append("the tokenizer: the checkpoint has none")
        return None, None
    theirs = Tokenizer.from_metadata(original)
    if file.get(f"{PREFIX}model", "no_vocab") == "no_vocab":
        found.add("tokenizer", "missing", f"{PREFIX}model", "the file has no vocabulary")
        return None, theirs
    try:
        ours = Tokenizer.from_metadata(file)
    except (ConfigError, TokenizerError) as error:
        found.add("tokenizer", "unreadable", PREFIX + "tokens", str(error))
        return None, theirs
    if same_vocabulary(file, original):
        found.checked["tokenizer"] = f"{ours.size} tokens; every key is the same, so are all ids"
        return ours, theirs
    _keys(file, original, found)
    for name in _ENDS:
        mine, other = getattr(ours, name), getattr(theirs, name)
        if mine != other:
            key = PREFIX + _NAMES[name]
            found.add("tokenizer", _NAMES[name], key, f"it is {mine}; the checkpoint's is {other}")
    if ours.eog != theirs.eog:
        spelled = [sorted(_spelled(t, t.eog)) for t in (ours, theirs)]
        note = f"answers end at {spelled[0]}; the checkpoint's at {spelled[1]}"
        found.add("tokenizer", "ends of answers", PREFIX + "eot_token_id", note)
    compare_encodings(_encoder(ours), theirs, found)
    return ours, theirs


def same_vocabulary(file: Mapping[str, Any], original: Mapping[str, Any]) -> bool:
    """Whether all keys are equal that a tokenizer is made of."""
    keys = {key for key in (*file, *original) if key.startswith(PREFIX)}
    return all(_listed(file.get(key)) == _listed(original.get(key)) for key in keys)


def _spelled(tokenizer: Tokenizer, ids: Any) -> list[str]:
    return [tokenizer.token(i) for i in ids]


def _encoder(tokenizer: Tokenizer) -> Encode:
    return lambda text, special: tokenizer.encode(text, add_special=special)


def compare_encodings(encode: Encode, original: Tokenizer, found: Certificate) -> None:
    """Compares the ids of all texts, with tokens around them and without."""
    pieces = _pieces(original)
    differing, first = 0, ""
    for i, text in enumerate(texts(pieces)):
        special = i % 2 == 0
        ours, theirs = encode(text, special), original.encode(text, add_special=special)
        if ours != theirs:
            first = first or f"{text[:60]!r} is {ours[:12]}, and {theirs[:12]} in the checkpoint"
            differing += 1
    found.checked["tokenizer"] = f"ids of {TEXTS} texts"
    if differing:
        note = f"{differing} of {TEXTS} texts have other ids: {first}"
        found.add("tokenizer", "encoding", PREFIX + "model", note)


def _pieces(tokenizer: Tokenizer) -> list[str]:
    """Texts of a sample of tokens, and of all special ones."""
    step = max(1, tokenizer.size // 4000)
    ids = range(0, tokenizer.size, step)
    own = (tokenizer.token_bytes(i).decode("utf-8", "ignore") for i in ids)
    special = (text for text in tokenizer.special if text)
    return [
        *(text for text in own if text),
        *(t for _, t in zip(range(500), special, strict=False)),
    ]


def _keys(file: Mapping[str, Any], original: Mapping[str, Any], found: Certificate) -> None:
    for name in _ARRAYS:
        mine, other = (_listed(m.get(PREFIX + name)) for m in (file, original))
        if mine and other and mine != other:
            found.add("tokenizer", name, PREFIX + name, _difference(mine, other))
        elif bool(mine) != bool(other):
            who = "the file" if mine else "the checkpoint"
            found.add("tokenizer", name, PREFIX + name, f"only {who} has them", fault=False)
    for name in ("model", "pre", "add_space_prefix", "remove_extra_whitespaces"):
        mine, other = file.get(PREFIX + name), original.get(PREFIX + name)
        if mine != other:
            # The ids of texts show an effect.
            note = f"it is {mine!r}; the checkpoint's is {other!r}"
            found.add("tokenizer", name, PREFIX + name, note, fault=name == "model")


def _listed(values: Any) -> list[Any]:
    if values is None:
        return []
    if isinstance(values, str | int | float):
        return [values]
    return list(values.tolist() if hasattr(values, "tolist") else values)


def _difference(mine: Sequence[Any], other: Sequence[Any]) -> str:
    if len(mine) != len(other):
        return f"there are {len(mine):,}; the checkpoint has {len(other):,}"
    wrong = [i for i, (a, b) in enumerate(zip(mine, other, strict=True)) if a != b]
    i = wrong[0]
    return (
        f"{len(wrong):,} of {len(mine):,} differ, the first is number {i}: {mine[i]!r:.40}, and "
        f"{other[i]!r:.40} in the checkpoint"
    )


def compare_templates(
    file: Mapping[str, Any],
    original: Mapping[str, Any],
    tokenizers: tuple[Tokenizer | None, Tokenizer | None],
    found: Certificate,
) -> None:
    """Compares the chat templates: their texts, and where these differ what they write."""
    names = sorted(k for k in {*file, *original} if k == KEY or k.startswith(f"{KEY}."))
    if not names:
        found.unchecked.append("the chat template: neither has one")
        return
    ours, theirs = tokenizers
    for key in names:
        mine, other = file.get(key), original.get(key)
        if mine is None or other is None:
            who = "the checkpoint" if mine is None else "the file"
            found.add("template", "missing", key, f"only {who} has it", fault=mine is None)
            continue
        same = mine == other
        if same and same_vocabulary(file, original):
            found.checked.setdefault("template", "the same text for the same vocabulary")
            continue
        left = Rendered(lambda m, k=str(mine): ChatTemplate(k, ours or theirs).render(**m))
        right = Rendered(lambda m, k=str(other): ChatTemplate(k, theirs).render(**m))
        compare_rendering(left, right, key, found, same)


class Rendered:
    """A template that writes its error where it refuses a conversation."""

    def __init__(self, render: Callable[[dict[str, Any]], str]):
        self._render = render

    def __call__(self, conversation: dict[str, Any]) -> str:
        try:
            return self._render(conversation)
        except TemplateError:
            return "\0refused"
        except Error as error:
            return f"\0{type(error).__name__}"


def compare_rendering(
    ours: Rendered, theirs: Rendered, key: str, found: Certificate, same: bool | None = None
) -> None:
    """Compares the texts of all conversations.

    Args:
        same: whether the templates' texts are equal; None if that is unknown, as of a server's.
    """
    differing, first, refused = 0, "", 0
    for conversation in conversations():
        mine, other = ours(conversation), theirs(conversation)
        refused += other.startswith("\0")
        if mine != other:
            differing += 1
            first = first or _first_difference(mine, other)
    kept = CONVERSATIONS - refused
    found.checked["template"] = f"{CONVERSATIONS} conversations, of which it takes {kept}"
    if differing:
        kind = "special tokens" if same else "template"
        note = f"{differing} of {CONVERSATIONS} conversations are written otherwise: {first}"
        found.add("template", kind, key, note)
    elif same is False:
        note = "another text that writes all conversations alike"
        found.add("template", "spelling", key, note, fault=False)


def _first_difference(mine: str, other: str) -> str:
    if mine.startswith("\0") or other.startswith("\0"):
        who = "the file" if mine.startswith("\0") else "the checkpoint"
        return f"{who} refuses one"
    at = next((i for i, (a, b) in enumerate(zip(mine, other, strict=False)) if a != b), 0)
    at = max(0, at - 10)
    return f"{mine[at : at + 40]!r} in place of {other[at : at + 40]!r}"
