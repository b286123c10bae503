"""The tokenizer under the names that users of transformers know."""

from __future__ import annotations

from pathlib import Path

import pytest

from ggmodel import Tokenizer, open_gguf
from ggmodel.chat import ChatTemplate
from ggmodel.errors import TemplateError, TokenizerError

STORIES = Path(__file__).parents[2] / "examples/assets/stories.gguf"
MESSAGES = [{"role": "user", "content": "Tell me a story."}]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    with open_gguf(STORIES) as file:
        return Tokenizer.from_metadata(file.metadata)


def test_ids(tokenizer: Tokenizer):
    assert tokenizer.vocab_size == tokenizer.size
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (tokenizer.bos, tokenizer.eos)


def test_calling_encodes(tokenizer: Tokenizer):
    ids = tokenizer.encode("Once upon")
    found = tokenizer("Once upon")
    assert found == {"input_ids": ids, "attention_mask": [1] * len(ids)}
    assert found.input_ids == found["input_ids"]
    bare = tokenizer("Once upon", add_special_tokens=False)
    assert bare.input_ids == tokenizer.encode("Once upon", add_special=False)
    several = tokenizer(["Once upon", "a"])
    assert several.input_ids == [ids, tokenizer.encode("a")]
    assert [len(mask) for mask in several.attention_mask] == [len(i) for i in several.input_ids]
    with pytest.raises(AttributeError, match="token_type_ids"):
        _ = found.token_type_ids
    for wrong in (None, 3, b"x", [None]):
        with pytest.raises(TokenizerError, match="is a string, not"):
            tokenizer(wrong)  # type: ignore[arg-type]


def test_chat_templates(tokenizer: Tokenizer):
    with open_gguf(STORIES) as file:
        template = ChatTemplate.from_metadata(file.metadata, tokenizer)
    for generate in (False, True):
        text = tokenizer.apply_chat_template(
            MESSAGES, tokenize=False, add_generation_prompt=generate
        )
        assert text == template.render(MESSAGES, add_generation_prompt=generate)
        ids = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=generate)
        assert ids == template.encode(MESSAGES, add_generation_prompt=generate)
    own = "{{ messages[0].content }} {{ name }}"
    text = tokenizer.apply_chat_template(MESSAGES, chat_template=own, tokenize=False, name="Pip")
    assert text == "Tell me a story. Pip"
    with pytest.raises(TemplateError, match="no chat template 'rag'"):
        tokenizer.apply_chat_template(MESSAGES, chat_template="rag")
