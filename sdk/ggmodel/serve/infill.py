"""Prompts that ask for what is missing between two texts, as editors do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from .errors import Refused
from .requests import Runner, State, Tokenize

# How files name these tokens, and how vocabularies that name none spell them.
_KEYS = {
    "prefix": ("fim_pre", "prefix"),
    "suffix": ("fim_suf", "suffix"),
    "middle": ("fim_mid", "middle"),
    "repository": ("fim_rep",),
    "file": ("fim_sep",),
}
_SPELLINGS = {
    "prefix": "<|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> "
    "<|code_prefix|> <|prefix|>",
    "suffix": "<|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF> "
    "<|code_suffix|> <|suffix|>",
    "middle": "<|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID> "
    "<|code_middle|> <|middle|>",
    "repository": "<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>",
    "file": "<|file_sep|>",
}
NEEDED = ("prefix", "suffix", "middle")
# The names that llama-server gives, since nobody tells better ones.
_REPOSITORY, _FILE = "myproject\n", "filename\n"
_BETWEEN = "\n\n--- snippet ---\n\n"  # texts, where no token parts them
_SPARE = 4  # tokens besides those of the texts
_ANSWER = 4  # a share of the context, where no length of the answer is asked for
_MOST = 2  # the largest share that is kept for it


class Extra(Struct):
    """Another text that may help, such as a file that is open."""

    text: str
    filename: str = "tmp"


async def fill_prompt(
    runner: Runner,
    prefix: str,
    suffix: str,
    *,
    begun: str = "",
    extra: Sequence[Extra] = (),
    max_tokens: int | None = None,
) -> list[Any]:
    """The token ids of a prompt whose answer stands between two texts. Where the context is short,
    it has the end of the prefix, the beginning of the suffix, and of others what is left.

    Args:
        begun: the beginning of the answer.
        max_tokens: of the answer, for which up to half of the context is kept.

    Raises:
        Refused: the model has no tokens for that.
    """
    state = runner.state
    special = fill_tokens(state)
    lacking = [name for name in NEEDED if name not in special]
    if lacking:
        raise Refused(
            f"{runner.name} writes nothing before a suffix: its vocabulary has no token for "
            f"{lacking[0]}; take a model for code",
            param="suffix",
            code="unsupported",
        )

    async def ids(text: str) -> list[int]:
        tokens = await runner.tokenize(Tokenize(text, add_special=False, special=False))
        return tokens.ids

    first = (await runner.tokenize(Tokenize(""))).ids[:1]
    head, tail, start = await ids(prefix), await ids(suffix), await ids(begun)
    others: list[int] = []
    if "repository" in special:
        others += [special["repository"], *await ids(_REPOSITORY)]
    for one in extra:
        if "file" in special:
            others += [special["file"], *await ids(f"{one.filename}\n")]
        else:
            others += await ids(_BETWEEN)
        others += await ids(one.text)
    if "file" in special:
        others += [special["file"], *await ids(_FILE)]

    context = state.context_length
    answer = context // _ANSWER if max_tokens is None else min(max_tokens, context // _MOST)
    room = max(0, context - answer - len(start) - _SPARE)
    tail = tail[: max(room // 4, room - len(head))]
    head = _last(head, room - len(tail))
    others = _last(others, room - len(tail) - len(head))
    middle = [special["suffix"], *tail, special["middle"]]
    return [*others, *first, special["prefix"], *head, *start, *middle]


def fill_tokens(state: State) -> dict[str, int]:
    """The ids of the tokens that part such a prompt, by their meaning; those that there are."""
    return _found(state.metadata, state.special_ids)


def fills(metadata: Mapping[str, Any]) -> bool:
    """Whether the vocabulary of a file has the tokens that such a prompt needs."""
    spelled = {text for texts in _SPELLINGS.values() for text in texts.split()}
    tokens = enumerate(metadata.get("tokenizer.ggml.tokens", ()))
    ids = {text: id for id, text in tokens if text in spelled}
    return _found(metadata, ids).keys() >= set(NEEDED)


def _found(metadata: Mapping[str, Any], by_text: Mapping[str, int]) -> dict[str, int]:
    ids: dict[str, int] = {}
    for meaning, keys in _KEYS.items():
        named = [metadata.get(f"tokenizer.ggml.{key}_token_id") for key in keys]
        spelled = [by_text.get(text) for text in _SPELLINGS[meaning].split()]
        candidates = [id for id in (*named, *spelled) if isinstance(id, int)]
        if candidates:
            ids[meaning] = candidates[0]
    return ids


def _last(ids: list[int], count: int) -> list[int]:
    return ids[max(0, len(ids) - max(0, count)) :]
