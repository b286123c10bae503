"""`LoadedModel.chat` and the tokens that a template makes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

import ggmodel
from ggmodel.chat import ChatTemplate, Reply
from ggmodel.errors import ConfigError, PromptError, PromptTooLong, TemplateError
from ggmodel.gguf_file import open_gguf
from ggmodel.runner import Completion, LoadedModel
from ggmodel.tokenizer import Tokenizer

ASSETS = Path(__file__).parents[2] / "examples" / "assets"
EXPECTED = json.loads((ASSETS / "stories.json").read_text())["chat"]
ASKED = [{"role": "user", "content": EXPECTED["prompt"]}]


@pytest.fixture(scope="module")
def model() -> Iterator[LoadedModel]:
    with ggmodel.load(ASSETS / "stories.gguf") as loaded:
        yield loaded


def test_the_answer_that_was_computed_elsewhere(model: LoadedModel):
    answer = model.chat(ASKED, temperature=0, max_tokens=len(EXPECTED["continuation_ids"]))
    assert isinstance(answer, Completion)
    assert answer == EXPECTED["text"]
    assert answer.usage.prompt_tokens == len(EXPECTED["prompt_ids"])


def test_piece_by_piece(model: LoadedModel):
    pieces = model.chat(ASKED, stream=True, temperature=0, max_tokens=5)
    assert isinstance(pieces, Generator)
    assert [p.token for p in pieces] == EXPECTED["continuation_ids"][:5]


def test_an_answer_goes_back_into_the_conversation(model: LoadedModel):
    answer = model.chat(ASKED, temperature=0, max_tokens=20)
    assert isinstance(answer, Completion)
    more = [*ASKED, {"role": "assistant", "content": answer}, ASKED[0]]
    assert model.chat(more, temperature=0, max_tokens=5)


def test_another_template_and_its_variables(model: LoadedModel):
    template = "{{ bos_token }}{{ greeting }}{{ tools | length }}"
    given: dict[str, Any] = {"temperature": 0, "max_tokens": 10}
    answer = model.chat(
        ASKED, template=template, variables={"greeting": "Once"}, tools=[{"a": 1}], **given
    )
    assert answer == model.generate("Once1", **given)


def test_bad_requests(model: LoadedModel):
    with pytest.raises(TemplateError, match="no chat template 'rag'"):
        model.chat(ASKED, template="rag")
    with pytest.raises(PromptError, match="no role"):
        model.chat([{"content": "a"}])
    with pytest.raises(PromptError, match="context"):
        model.chat([{"role": "user", "content": "word " * 1000}])
    with pytest.raises(ConfigError, match="temperature"):
        model.chat(ASKED, tempreature=0)  # type: ignore[call-arg]


def test_a_file_without_a_template(vary: Any, tmp_path: Path, write_gguf: Any):
    with open_gguf(ASSETS / "stories.gguf") as source:
        bare = vary(source, metadata={"tokenizer.chat_template": None})
    with ggmodel.load(bare) as model, pytest.raises(TemplateError, match="pass template="):
        model.chat(ASKED)


@pytest.fixture
def tokenizer(vocabulary: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_metadata(vocabulary)


@pytest.mark.parametrize(
    ("source", "ids"),
    [
        ("{{ bos_token }}ab", [0, 1, 2]),
        ("<|bos|>ab", [0, 1, 2]),
        ("ab", [0, 1, 2]),
        ("a<|bos|>b", [0, 1, 0, 2]),
        ("", [0]),
    ],
)
def test_one_token_begins_the_sequence(tokenizer: Tokenizer, source: str, ids: list[int]):
    assert ChatTemplate(source, tokenizer).encode([{"role": "user", "content": "x"}]) == ids


def test_none_begins_it_where_the_vocabulary_asks_for_none(vocabulary: dict[str, Any]):
    tokenizer = Tokenizer.from_metadata(vocabulary | {"tokenizer.ggml.add_bos_token": False})
    assert ChatTemplate("ab", tokenizer).encode(ASKED) == [1, 2]
    assert ChatTemplate("{{ bos_token }}ab", tokenizer).encode(ASKED) == [0, 1, 2]


def test_the_vocabulary_names_the_special_tokens(tokenizer: Tokenizer):
    assert ChatTemplate("{{ bos_token }}{{ eos_token }}", tokenizer).render(ASKED) == "<|bos|>"


def test_an_answer_is_read_by_its_template(model: LoadedModel):
    tools = [{"type": "function", "function": {"name": "now"}}]
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    template = "{{ messages[0].content }}<think>{# <tool_call> #}"
    reply = model.parse_reply(f"hm</think>Hello\n{call}", tools=tools, template=template)
    assert (reply.content, reply.reasoning) == ("Hello", "hm")
    assert [(made.name, made.arguments) for made in reply.calls] == [("now", "{}")]
    assert model.reply_format().name == "plain"
    assert model.parse_reply("<think>as it is") == Reply("<think>as it is")
    shown = model.parse_reply(
        "Hello", template="{{ '' if mute else '<think>' }}", variables={"mute": True}
    )
    assert shown == Reply("Hello")


def test_a_text_is_one_message_of_the_user(model: ggmodel.LoadedModel):
    messages = [{"role": "user", "content": "a b"}]
    options: Any = {"max_tokens": 3, "temperature": 0}
    answer = model.chat(messages, **options)

    async def streamed() -> str:
        stream: Any = await model.achat("a b", stream=True, **options)
        return "".join([piece async for piece in stream])

    assert model.chat("a b", **options) == answer
    assert "".join(model.chat("a b", stream=True, **options)) == answer
    assert asyncio.run(model.achat("a b", **options)) == answer
    assert asyncio.run(streamed()) == answer
    assert model.chat_prompt("a b") == model.chat_prompt(messages)
    assert model.chat_text("a b").text == model.chat_text(messages).text


def turn(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}, {"role": "assistant", "content": "Yes."}]


class TestLongConversations:
    SYSTEM = [{"role": "system", "content": "Be brief."}]
    QUESTION = [{"role": "user", "content": "and the dog?"}]
    MANY = [*SYSTEM, *(m for i in range(60) for m in turn(f"a fox ran {i} times")), *QUESTION]

    def test_the_oldest_turns_are_left_out(self, model: LoadedModel):
        kept = [*model.fitting(self.MANY, max_tokens=20)]
        size = len(model.chat_prompt(kept))
        assert kept[0] == self.MANY[0] and kept[1:] == self.MANY[-len(kept) + 1 :]
        assert kept[1]["role"] == "user"
        one_more = [*self.SYSTEM, *self.MANY[-len(kept) - 1 :]]
        assert size <= model.context_length - 20 < len(model.chat_prompt(one_more))
        answer = model.chat(self.MANY, truncate=True, max_tokens=20, temperature=0)
        assert answer == model.chat(kept, max_tokens=20, temperature=0)
        assert isinstance(answer, Completion) and answer.usage.prompt_tokens == size

    def test_results_of_tools_go_with_their_question(self, model: LoadedModel):
        call = {"function": {"name": "f", "arguments": {}}}
        before = [
            {"role": "user", "content": "fox " * 300},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "dog " * 300},
        ]
        template = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
        kept = model.fitting([*self.SYSTEM, *before, *self.QUESTION], template=template)
        assert [*kept] == [*self.SYSTEM, *self.QUESTION]

    def test_room_is_left_as_for_prompts(self, model: LoadedModel):
        quarter, shifted = model.fitting(self.MANY), model.fitting(self.MANY, context_shift=True)
        assert len(model.chat_prompt(quarter)) <= model.context_length * 3 // 4
        assert len(quarter) < len(shifted)
        assert model.fits(quarter) and not model.fits(shifted)
        assert model.fits(shifted, context_shift=True)
        assert model.fits("a b") and model.fitting("a b") == [{"role": "user", "content": "a b"}]

    def test_a_last_turn_that_is_too_long_is_an_error(self, model: LoadedModel):
        long = [*self.MANY, {"role": "user", "content": "fox " * 600}]
        said = r"\d+ tokens, the context \d+; load .*or shorten the prompt$"
        with pytest.raises(PromptTooLong, match=said) as error:
            model.chat(long, truncate=True)
        assert error.value.tokens > error.value.context == model.context_length
        with pytest.raises(PromptTooLong, match=r"truncate=True leaves .* the oldest turns"):
            model.chat(long)
        with pytest.raises(ConfigError, match="truncate"):
            model.chat(long, truncate="auto")  # type: ignore[arg-type]
        with pytest.raises(PromptError, match="list of dicts"):
            model.fitting({"role": "user"})  # type: ignore[arg-type]
