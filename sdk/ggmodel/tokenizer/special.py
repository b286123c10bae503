"""Special tokens: finds those in a text, and those that end a generation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from .encoder import is_text
from .vocabulary import TokenType, Vocabulary

if TYPE_CHECKING:
    import tokenizers

# Tokens that end a turn or a text by convention; files rarely name more than one.
_ENDS = frozenset(
    "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> "
    "<|endoftext|> <|eom_id|> <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> "
    "<eos> <turn|> <|tool_response> <｜end▁of▁sentence｜> [e~[".split()
)
# Fill-in-the-middle tokens after which a model only writes the next file.
_FIM_ENDS = frozenset(
    "<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD] <|fim_repo|> <|repo_name|> <fim-repo> <REPO> "
    "<reponame> <|file_sep|>".split()
)
# White space as Unicode has it (Python's own notion adds four control characters).
_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)

# Characters that a search for special tokens reads at once.
_FIRST_WINDOW, _LARGEST_WINDOW = 1 << 8, 1 << 14


def end_tokens(vocab: Vocabulary) -> frozenset[int]:
    """The ids after which generation stops, by the metadata and by name."""
    ends = {vocab.ids[name] for name in _ENDS & vocab.ids.keys()}
    # Several vocabularies have these as plain text: gemma has "</s>" as an HTML tag.
    by_type = [vocab.ids[name] for name in (_FIM_ENDS | {"</s>"}) & vocab.ids.keys()]
    ends |= {i for i in by_type if vocab.types[i] == TokenType.CONTROL}
    # In the harmony format a message ends with <|end|>, the turn with <|return|> or <|call|>.
    names = {vocab.tokens[i] for i in ends}
    if {"<|return|>", "<|call|>"} <= names or {"<|flush|>", "<|calls|>"} <= names:
        ends.discard(vocab.ids.get("<|end|>", -1))
    for name in ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep"):
        default = 2 if name == "eos" and vocab.model == "llama" else None
        token = vocab.token_id(name, default)
        if token is not None:
            ends.add(token)
    return frozenset(ends)


def stripping(vocab: Vocabulary) -> tuple[frozenset[str], frozenset[str]]:
    """Special tokens that swallow the white space on their left, and on their right.

    A GGUF does not say so: it follows from the family of the model, as in llama.cpp.
    """
    name = vocab.keys.get("general.name", str, "").lower()
    architecture = vocab.keys.get("general.architecture", str, "")
    pre = vocab.keys.get("tokenizer.ggml.pre", str, "")
    if vocab.model == "llama" and (architecture == "phi3" or "phi-3" in name or "phi3" in name):
        special = (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)
        right = {text for text, i in vocab.ids.items() if vocab.types[i] in special}
        return frozenset(), frozenset(right - {"<unk>", "<s>", "<|endoftext|>"})
    if pre in ("jina-v2-de", "jina-v2-es", "jina-v2-code"):
        return frozenset({"<mask>"}), frozenset()
    if pre == "modern-bert" or "modern-bert" in name:
        return frozenset({"[MASK]"}), frozenset()
    return frozenset(), frozenset()


class Splitter:
    """Cuts a text at special tokens: at the leftmost first, and at the longest that begins there.

    An automaton of the `tokenizers` package finds them, in a time that grows with the text alone,
    whatever the tokens. It reads a window at a time, so that Ctrl-C comes through.
    """

    def __init__(
        self,
        tokens: Mapping[str, int],
        strip_left: frozenset[str] = frozenset(),
        strip_right: frozenset[str] = frozenset(),
    ):
        self._tokens = tokens
        self._left = strip_left
        self._right = strip_right
        # Surrogates stand for the bytes of damaged tokens, and no text holds them.
        self._names = [text for text in tokens if is_text(text)]
        self._longest = max(map(len, self._names), default=0)

    def split(self, text: str) -> Iterator[str | int]:
        """The pieces of `text` in order: ids of special tokens, and the texts between them."""
        done = at = 0
        size = _FIRST_WINDOW
        while self._names and at < len(text):
            end = at + max(size, self._longest)
            size = min(2 * size, _LARGEST_WINDOW)
            for start, name in self._find(text, at, end + self._longest):
                if start >= end:
                    break
                if start < done:  # in white space that was swallowed: look again behind that
                    end, size = done, _FIRST_WINDOW
                    break
                before = text[done:start]
                if name in self._left:
                    before = before.rstrip(_SPACE)
                if before:
                    yield before
                yield self._tokens[name]
                done = start + len(name)
                while name in self._right and done < len(text) and text[done] in _SPACE:
                    done += 1
            at = max(end, done)
        if done < len(text):
            yield text[done:]

    def _find(self, text: str, start: int, end: int) -> Iterator[tuple[int, str]]:
        """The special tokens in a part of a text, each with its place in the text."""
        encoding = self._automaton.encode(text[start:end], add_special_tokens=False)
        for (begin, stop), id in zip(encoding.offsets, encoding.ids, strict=True):
            if id:
                yield start + begin, text[start + begin : start + stop]

    @cached_property
    def _automaton(self) -> tokenizers.Tokenizer:
        """Gives everything between special tokens the id 0."""
        from tokenizers import AddedToken, Tokenizer, models

        built = Tokenizer(models.WordLevel({"": 0}, unk_token=""))
        built.add_tokens([AddedToken(name, normalized=False) for name in self._names])
        return built
