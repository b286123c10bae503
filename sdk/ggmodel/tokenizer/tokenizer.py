"""The tokenizer of a GGUF: text to ids and back, at once or one token at a time.

It also has the names that users of transformers know: `__call__`, `apply_chat_template`, ….
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from operator import index
from typing import Any

from ..chat.template import KEY as CHAT_TEMPLATE
from ..errors import ConfigError, TokenizerError
from .encoder import Encoder, byte_alphabet, in_byte_alphabet, is_text
from .pretokenizers import PRE_TOKENIZERS
from .spans import cut_pair, trimmed
from .special import Splitter, end_tokens, stripping
from .trie import TrieEncoder, unescaped
from .vocabulary import BYTE_NAMES, PREFIX, SPACE, TokenType, Vocabulary, read_vocabulary


class Encoding(dict[str, list[Any]]):
    """Token ids as transformers returns them: a dict whose keys are attributes, too."""

    def __getattr__(self, name: str) -> list[Any]:
        if name in self:
            return self[name]
        raise AttributeError(name)


class TextStream:
    """Turns ids into text as they come; made by `Tokenizer.stream`.

    The joined results of `push` and `flush` equal `Tokenizer.decode` of all the ids. A character
    whose bytes are spread over several tokens is held back until it is complete.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool, strip: bool):
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._strip = strip
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id: int) -> str:
        """Adds one token, and returns the text that is complete now, maybe ""."""
        tokenizer = self._tokenizer
        data, starts_text = tokenizer.bytes_and_start(id)
        if starts_text:
            self._strip = tokenizer.hides_space
        if self._skip_special and tokenizer.is_special(id):
            data = b""
        elif self._strip and not starts_text:
            data = data[1:] if data.startswith(b" ") else data
            self._strip = False
        return self._utf8.decode(data)

    def flush(self) -> str:
        """Ends the text: an incomplete character becomes U+FFFD. The stream can be used again."""
        rest = self._utf8.decode(b"", final=True)
        self._strip = self._tokenizer.hides_space
        return rest


# Kinds of tokens after which text is encoded as at the beginning.
_STARTS = (TokenType.CONTROL, TokenType.USER_DEFINED)
# Characters of a run that is one token: unknown ones, or a word of BERT's. A guess that no text in
# earnest comes near.
_RUN = 1024


class Tokenizer:
    """A vocabulary that encodes and decodes; made by `from_metadata`.

    Methods that take an id raise TokenizerError if it lies outside the vocabulary.

    Attributes:
        size: number of tokens.
        bos: id of the token that begins a sequence, or None.
        eos: id of the token that ends one, or None.
        eog: ids after which generation stops (`eos`, ends of turns and messages).
        special: text → id of the tokens that `encode` recognises in a text.
        add_bos: `encode` puts `bos` first (with `add_special`).
        add_eos: `encode` puts the closing token last (with `add_special`): `eos`, or the
            separator of a bert vocabulary.
        hides_space: `decode` drops the space that `encode` put in front of a text.
    """

    size: int
    bos: int | None
    eos: int | None
    eog: frozenset[int]
    add_bos: bool
    add_eos: bool
    hides_space: bool
    _templates: dict[str, Any]  # chat templates by their keys

    def __init__(self, vocab: Vocabulary):
        self._encoder = TrieEncoder(vocab) if vocab.model == "rwkv" else Encoder(vocab)
        # Only the encoder needs the merges, and drops them once it is built.
        self._vocab = vocab = replace(vocab, merges=None)
        self._by_id: dict[int, tuple[bytes, bool]] = {}
        self.size = len(vocab.tokens)
        self._read_ends()
        # Only SentencePiece puts a space in front, though byte pair files have the key too.
        # Gemma's text takes none, even if its converter left the key out.
        gemma = vocab.keys.get("general.architecture", str, "").startswith("gemma")
        self._space_first = vocab.model == "llama" and vocab.keys.get(
            PREFIX + "add_space_prefix", bool, not gemma
        )
        # A unigram's encoder cuts words itself, and begins each with a space.
        self.hides_space = self._space_first or vocab.model in ("bert", "t5")
        self._escapes_space = vocab.model == "llama" or (
            vocab.pre is not None and not vocab.pre.byte_level
        )
        left, right = stripping(vocab)
        kinds = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
        self.special = vocab.of_type(kinds)
        self._with_special = Splitter(self.special, left, right)
        own = vocab.of_type([TokenType.USER_DEFINED])
        self._without_special = Splitter(own, left, right)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """Builds the tokenizer that the `tokenizer.ggml.*` keys describe.

        Arrays may be lists, numpy arrays or other objects with `tolist()`.

        Raises:
            ConfigError: a key is missing or has the wrong type, length or value.
            TokenizerError: the vocabulary's kind or pre-tokenizer is unknown, or its tokens and
                merges do not belong together.
        """
        tokenizer = cls(read_vocabulary(metadata))
        templates = [key for key in metadata if key.startswith(CHAT_TEMPLATE)]
        tokenizer._templates = {key: metadata[key] for key in templates}
        return tokenizer

    def _read_ends(self) -> None:
        vocab = self._vocab
        spm, bert = vocab.model == "llama", vocab.model == "bert"
        self.bos = vocab.token_id("bos", 1 if spm else None)
        self.eos = vocab.token_id("eos", {"llama": 2, "t5": 1}.get(vocab.model))
        closing = self.eos
        if bert:
            # The key is misspelt in the format.
            self.bos = vocab.token_id("bos", vocab.token_id("cls", 101))
            closing = vocab.token_id("seperator", 102)
        by_pre = vocab.pre is not None and vocab.pre.add_bos
        self.add_bos = self._flag("add_bos", self.bos, bert or spm or by_pre)
        if self.bos is not None and vocab.pre is PRE_TOKENIZERS["gemma4"]:
            self.add_bos = True  # early files say false, but the model needs it
        self.add_eos = self._flag("add_eos", closing, bert or vocab.model == "t5")
        self.eog = end_tokens(vocab)
        self._first = [self.bos] if self.add_bos and self.bos is not None else []
        self._last = [closing] if self.add_eos and closing is not None else []
        between = vocab.token_id("seperator", closing)
        # RoBERTa's family has two between texts; older files do not say so.
        roberta = vocab.model == "t5" and self.bos is not None
        roberta |= vocab.keys.get(PREFIX + "pre", str, "") == "roberta-bpe"
        doubled = self._flag("add_sep", between, roberta)
        self._between = [between] if doubled and between is not None else []

    def _flag(self, name: str, token: int | None, default: bool) -> bool:
        key = f"{PREFIX}{name}_token"
        flag = self._vocab.keys.get(key, bool, None)
        if flag and token is None:
            raise ConfigError(
                f"{key} is true but the file does not say which token that is; add "
                f"{key.replace('add_', '')}_id to the metadata you pass, or set {key} to false"
            )
        return (default and token is not None) if flag is None else flag

    @cached_property
    def longest(self) -> int:
        """The most characters of a text that one token stands for: a text of n characters has at
        least n / longest tokens."""
        vocab = self._vocab
        longest = max(map(len, vocab.ids), default=1)
        has_bytes = (vocab.pre is not None and vocab.pre.byte_level) or all(
            name in vocab.ids for name in BYTE_NAMES
        )
        shortens = vocab.model in ("bert", "t5")  # a normalizer does
        return longest if has_bytes and not shortens else max(longest, _RUN)

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """The ids of `text`.

        Characters without a token become the unknown token. A byte-level vocabulary without one
        drops such bytes, as its original tokenizer does (falcon and starcoder lack a few rare
        ones).

        Args:
            text: any text without lone surrogates.
            add_special: put `bos` before and `eos` after it where `add_bos` and `add_eos` say so.
                A text that spells them too gets them twice: encode the result of a chat template,
                which usually spells them, with False.
            parse_special: "<|eot_id|>" in the text becomes that token. With False it is plain
                text, as untrusted text should be. User-defined tokens are found either way.

        Raises:
            TokenizerError: no text, or one with a lone surrogate, which is no character.
        """
        try:
            self._text(text).encode()
        except UnicodeEncodeError as error:
            raise TokenizerError(
                f"the text holds the lone surrogate U+{ord(text[error.start]):04X} at index "
                f"{error.start}; repair it, as in text.encode('utf-16', 'surrogatepass')"
                f".decode('utf-16', 'replace')"
            ) from None
        splitter = self._with_special if parse_special else self._without_special
        parts = self._spelled(splitter.split(text))
        encoded = iter(self._encoder.encode([part for part in parts if isinstance(part, str)]))
        ids = list(self._first) if add_special else []
        for part in parts:
            ids += [part] if isinstance(part, int) else next(encoded)
        if add_special:
            ids += self._last
        return ids

    def encode_pair(
        self, first: str, second: str, most: int | None = None
    ) -> tuple[list[int], list[int]]:
        """The ids of two texts as one, with the tokens that the vocabulary wants around and
        between them, and the text that each id belongs to, 0 or 1.

        Special tokens in the texts are plain text.

        Args:
            most: ids in all, no fewer than those around and between; the longer text loses ids at
                its end, both where they are equally long.

        Raises:
            TokenizerError: as for `encode`, or the vocabulary ends no text, and so joins none.
        """
        if not self._last:
            raise TokenizerError(
                "the vocabulary has no token that ends a text, so two texts cannot be told apart"
            )
        one, two = (
            self.encode(text, add_special=False, parse_special=False) for text in (first, second)
        )
        if most is not None:
            around = len(self._first) + len(self._between) + 2 * len(self._last)
            one, two = cut_pair(one, two, max(most - around, 0))
        begin = [*self._first, *one, *self._last, *self._between]
        end = [*two, *self._last]
        return begin + end, [0] * len(begin) + [1] * len(end)

    def encode_spans(self, text: str) -> tuple[list[int], list[tuple[int, int] | None]]:
        """The ids of a text with the tokens around it, and the place of each in the text, in
        characters, without blanks around it; None for tokens that are not of the text.

        Special tokens in the text are plain text.

        Raises:
            TokenizerError: as for `encode`.
        """
        if not is_text(self._text(text)):
            self.encode(text)  # raises
        ids, places, at = list(self._first), list[tuple[int, int] | None](), 0
        places += [None] * len(ids)
        for part in self._without_special.split(text):
            given = part if isinstance(part, str) else self._vocab.tokens[part]
            at = text.index(given, at)
            if isinstance(part, int):
                ids.append(part)
                places.append((at, at + len(given)))
            else:
                [spelled] = self._spelled([part]) or [""]
                shift = len(str(spelled)) - len(part)  # a space in front
                for id, start, end in self._encoder.spans(str(spelled)):
                    ids.append(id)
                    places.append(trimmed(text, at + max(start - shift, 0), at + end - shift))
            at += len(given)
        return ids + self._last, places + [None] * len(self._last)

    def _spelled(self, parts: Iterable[str | int]) -> list[str | int]:
        """Spells the texts between special tokens as the vocabulary does."""
        spelled: list[str | int] = []
        begins = True
        for part in parts:
            if isinstance(part, str):
                if begins and self._space_first:
                    part = " " + part
                if self._escapes_space:
                    part = part.replace(" ", SPACE)
            begins = isinstance(part, int)
            spelled.append(part)
        return spelled

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """The text of `ids`.

        The space that SentencePiece puts in front of a text is dropped again. Bytes that are no
        UTF-8 become U+FFFD. Spaces are never "cleaned up": what was encoded comes back.

        Args:
            ids: token ids.
            skip_special: leave out special tokens (see `is_special`). They show by default, as in
                llama.cpp and transformers; user-defined tokens show always.

        Raises:
            TokenizerError: they are no list of integers, or one lies outside the vocabulary.
        """
        stream = self.stream(skip_special=skip_special)
        try:
            return "".join([stream.push(id) for id in ids]) + stream.flush()
        except TypeError as error:
            raise TokenizerError(f"token ids are a list of integers: {error}") from None

    def stream(self, *, skip_special: bool = False, after: int | None = None) -> TextStream:
        """A stream that gives text out token by token; all of it together is `decode`'s.

        Args:
            skip_special: as for `decode`.
            after: the last token of the prompt that the text continues: then a leading space
                belongs to the text and stays.

        Raises:
            TokenizerError: `after` lies outside the vocabulary.
        """
        begins = after is None or self.starts_text(self._checked(after))
        return TextStream(self, skip_special, begins and self.hides_space)

    def token_bytes(self, id: int) -> bytes:
        """The raw bytes of one token; special tokens give their own text."""
        entry = self._by_id.get(id := self._checked(id))
        return _token_bytes(self._vocab, id) if entry is None else entry[0]

    def bytes_and_start(self, id: int) -> tuple[bytes, bool]:
        """`token_bytes` and `starts_text`, looked up once."""
        try:
            return self._by_id[id]
        except (KeyError, TypeError):  # TypeError: no number at all
            id = self._checked(id)
            entry = _token_bytes(self._vocab, id), self._vocab.types[id] in _STARTS
            self._by_id[id] = entry
            return entry

    def token(self, id: int) -> str:
        """The spelling of a token in the vocabulary, such as "▁the" or "Ġthe"."""
        return self._vocab.tokens[self._checked(id)]

    def id_of(self, token: str) -> int | None:
        """The id of the token spelled exactly `token`, such as "<|eot_id|>", or None."""
        return self._vocab.ids.get(self._text(token))

    def id_of_text(self, text: str) -> int | None:
        """The id of the token that stands for exactly this text, or None: a special token of that
        spelling, or one of text in the vocabulary's spelling, where "\n" may be "Ċ" or "<0x0A>"."""
        vocab = self._vocab
        exact = vocab.ids.get(self._text(text))
        if exact is not None and vocab.types[exact] != TokenType.NORMAL:
            return exact
        if not is_text(text):
            return exact
        if isinstance(self._encoder, TrieEncoder):
            return self._encoder.ids.get(text.encode())
        if vocab.pre is not None and vocab.pre.byte_level:
            return vocab.ids.get(in_byte_alphabet(text))
        if self._escapes_space or vocab.model == "t5":
            exact = vocab.ids.get(text.replace(" ", SPACE))
        if exact is None and len(data := text.encode()) == 1:
            exact = vocab.ids.get(BYTE_NAMES[data[0]])
        return exact

    def is_special(self, id: int) -> bool:
        """Whether the token is for the model rather than for readers (control or unknown)."""
        return self._vocab.types[self._checked(id)] in (TokenType.CONTROL, TokenType.UNKNOWN)

    def starts_text(self, id: int) -> bool:
        """Whether the text after this token is encoded as at the beginning."""
        return self._vocab.types[self._checked(id)] in _STARTS

    def _text(self, text: str) -> str:
        if not isinstance(text, str):
            raise TokenizerError(f"a text to encode is a string, not {type(text).__name__}")
        return text

    def _checked(self, id: int) -> int:
        try:
            id = index(id)
        except TypeError:
            raise TokenizerError(f"a token id is an integer, not {id!r:.80}") from None
        if not 0 <= id < self.size:
            raise TokenizerError(
                f"token id {id} lies outside the vocabulary of {self.size} tokens; the model and "
                f"the tokenizer may not belong together"
            )
        return id

    # The names of transformers.

    @property
    def vocab_size(self) -> int:
        """`size`."""
        return self.size

    @property
    def bos_token_id(self) -> int | None:
        """`bos`."""
        return self.bos

    @property
    def eos_token_id(self) -> int | None:
        """`eos`."""
        return self.eos

    def __call__(self, text: str | Sequence[str], *, add_special_tokens: bool = True) -> Encoding:
        """`encode` as transformers spells it: `tokenizer(text).input_ids`, or `["input_ids"]`.

        Args:
            text: a text, or several: then there is a list of ids for each.
            add_special_tokens: see `encode`'s `add_special`.

        Returns:
            "input_ids", and an "attention_mask" of as many ones.

        Raises:
            TokenizerError: as for `encode`.
        """
        if not isinstance(text, str) and isinstance(text, Sequence):
            ids = [self.encode(item, add_special=add_special_tokens) for item in text]
            return Encoding(input_ids=ids, attention_mask=[[1] * len(item) for item in ids])
        ids = self.encode(text, add_special=add_special_tokens)
        return Encoding(input_ids=ids, attention_mask=[1] * len(ids))

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        **variables: Any,
    ) -> list[int] | str:
        """The prompt of messages by the file's chat template, as transformers spells it; see
        `ggmodel.chat.ChatTemplate`.

        Args:
            chat_template: Jinja text to use instead, or the name of another template of the file.
            tokenize: give token ids rather than text.

        Raises:
            TemplateError, PromptError: as for `ChatTemplate.render`.
        """
        from ..chat import ChatTemplate

        template = ChatTemplate.from_metadata(self._templates, self, chat_template)
        render = template.encode if tokenize else template.render
        return render(
            conversation, tools=tools, add_generation_prompt=add_generation_prompt, **variables
        )


def _token_bytes(vocab: Vocabulary, token: int) -> bytes:
    """The bytes of a token; special tokens give their own text."""
    text, kind = vocab.tokens[token], vocab.types[token]
    if kind in (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED):
        return _raw(text)
    if kind == TokenType.BYTE:
        try:
            return bytes([int(text[3:5], 16)])
        except ValueError:
            raise TokenizerError(
                f"token {token} is a byte token but is spelled {text!r:.80}, not like <0x0A>; "
                f"convert the model again"
            ) from None
    if vocab.model == "rwkv":
        return unescaped(text)
    if vocab.pre is not None and vocab.pre.byte_level:
        alphabet = byte_alphabet()
        return b"".join(alphabet.get(char) or _raw(char) for char in text)
    return _raw(text.replace(SPACE, " "))


def _raw(text: str) -> bytes:
    # The first handler restores bytes that the reader escaped, the second keeps other surrogates.
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
