"""`ggmodel.compat.Llama` with the examples of llama-cpp-python 0.3.36's README, as they stand there
but for the import and the path of the model."""

from __future__ import annotations

import base64
import inspect
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai.types import Completion, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion, ChatCompletionChunk

import ggmodel
import ggmodel.compat as llama_cpp
from ggmodel.compat import Llama, LlamaGrammar, LlamaPromptLookupDecoding, LlamaState
from ggmodel.compat.chat_formats import format_of
from ggmodel.errors import ConfigError, PromptTooLong, Unsupported
from ggmodel.gguf_file import open_gguf
from tests.documents import blocks, printed, read

ASSETS = Path(__file__).parents[2] / "examples" / "assets"
PATH = str(ASSETS / "stories.gguf")


@pytest.fixture(scope="module")
def llm() -> Iterator[Llama]:
    with Llama(model_path=PATH, seed=1337, n_ctx=512, verbose=False) as made:
        yield made


def test_text_completion():
    llm = Llama(
        model_path=PATH,
        # n_gpu_layers=-1, # Uncomment to use GPU acceleration
        # seed=1337, # Uncomment to set a specific seed
        # n_ctx=2048, # Uncomment to increase the context window
    )
    output = llm(
        "Q: Name the planets in the solar system? A: ",  # Prompt
        max_tokens=32,
        stop=["Q:", "\n"],
        echo=True,  # Echo the prompt back in the output
    )
    assert output["object"] == "text_completion"
    assert output["id"].startswith("cmpl-")
    assert output["model"] == PATH
    (choice,) = output["choices"]
    assert choice["text"].startswith("Q: Name the planets in the solar system? A: ")
    assert (choice["index"], choice["logprobs"]) == (0, None)
    assert choice["finish_reason"] in ("stop", "length")
    usage = output["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    Completion.model_validate(output)


@pytest.mark.parametrize("chat_format", ["llama-2", None])
def test_chat_completion(chat_format: str | None):
    llm = Llama(model_path=PATH, chat_format=chat_format)
    output = llm.create_chat_completion(
        messages=[
            {"role": "system", "content": "You are an assistant who perfectly describes images."},
            {"role": "user", "content": "Describe this image in detail please."},
        ],
        max_tokens=20,
    )
    ChatCompletion.model_validate(output)
    (choice,) = output["choices"]
    assert output["object"] == "chat.completion"
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"]


def test_json_mode():
    llm = Llama(model_path=PATH, chat_format="chatml")
    output = llm.create_chat_completion(
        messages=[
            {"role": "system", "content": "You are a helpful assistant that outputs in JSON."},
            {"role": "user", "content": "Who won the world series in 2020"},
        ],
        response_format={"type": "json_object"},
        temperature=0.7,
    )
    (choice,) = output["choices"]
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["message"]["content"]), dict)
    assert choice["message"]["content"].startswith("{")


def test_json_schema_mode():
    llm = Llama(model_path=PATH, chat_format="chatml", n_ctx=2048)
    output = llm.create_chat_completion(
        messages=[
            {"role": "system", "content": "You are a helpful assistant that outputs in JSON."},
            {"role": "user", "content": "Who won the world series in 2020"},
        ],
        response_format={
            "type": "json_object",
            "schema": {
                "type": "object",
                "properties": {"team_name": {"type": "string"}},
                "required": ["team_name"],
            },
        },
        temperature=0.7,
    )
    (choice,) = output["choices"]
    assert choice["message"]["content"].startswith('{"team_name"')


CALL: dict[str, Any] = {
    "messages": [
        {
            "role": "system",
            "content": "A chat between a curious user and an artificial intelligence assistant. "
            "The assistant gives helpful, detailed, and polite answers to the user's questions. "
            "The assistant calls functions with appropriate input when necessary",
        },
        {"role": "user", "content": "Extract Jason is 25 years old"},
    ],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "UserDetail",
                "parameters": {
                    "type": "object",
                    "title": "UserDetail",
                    "properties": {
                        "name": {"title": "Name", "type": "string"},
                        "age": {"title": "Age", "type": "integer"},
                    },
                    "required": ["name", "age"],
                },
            },
        }
    ],
    "tool_choice": {"type": "function", "function": {"name": "UserDetail"}},
}


def test_function_calling():
    llm = Llama(model_path=PATH, chat_format="chatml-function-calling", n_ctx=2048, seed=3)
    output = llm.create_chat_completion(**CALL, max_tokens=200)
    ChatCompletion.model_validate(output)
    (choice,) = output["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function"
    assert call["function"]["name"] == "UserDetail"
    assert choice["message"]["content"] is None
    assert choice["message"]["function_call"] == call["function"]
    assert choice["finish_reason"] == "tool_calls"
    chunks = list(llm.create_chat_completion(**CALL, max_tokens=200, stream=True))
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
    (streamed,) = [c for c in chunks if "tool_calls" in c["choices"][0]["delta"]]
    (same,) = streamed["choices"][0]["delta"]["tool_calls"]
    assert same["function"]["name"] == "UserDetail"
    assert same["function"]["arguments"].startswith('{"name": "')
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    # The reply goes back into the conversation as it is.
    result = {"role": "tool", "tool_call_id": call["id"], "content": "stored"}
    messages = [*CALL["messages"], choice["message"], result]
    assert llm.create_chat_completion(messages, max_tokens=4)["choices"][0]["message"]["content"]
    functions = [tool["function"] for tool in CALL["tools"]]
    old = llm.create_chat_completion(
        CALL["messages"], functions, {"name": "UserDetail"}, max_tokens=200
    )
    assert old["choices"][0]["message"]["function_call"]["name"] == "UserDetail"


def test_images_in_messages():
    llm = Llama(model_path=str(ASSETS / "shapes.gguf"), n_ctx=0)
    data = base64.b64encode((ASSETS / "scene.png").read_bytes()).decode()
    messages = [
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
                {"type": "text", "text": "what is in the picture?"},
            ],
        },
    ]
    output = llm.create_chat_completion(messages, max_tokens=20, temperature=0)
    with ggmodel.load(ASSETS / "shapes.gguf") as model:
        expected = model.chat(messages, max_tokens=20, temperature=0)
    assert output["choices"][0]["message"]["content"] == expected


def test_speculative_decoding(llm: Llama):
    drafting = Llama(model_path=PATH, draft_model=LlamaPromptLookupDecoding(num_pred_tokens=10))
    options: dict[str, Any] = {"max_tokens": 40, "temperature": 0}
    ours, theirs = (one("Once upon a time", **options) for one in (llm, drafting))
    assert ours["choices"] == theirs["choices"]


def test_embeddings():
    llm = llama_cpp.Llama(model_path=PATH, embedding=True)
    embeddings = llm.create_embedding("Hello, world!")
    assert embeddings["object"] == "list"
    rows = embeddings["data"][0]["embedding"]
    count = len(llm.tokenize(b"Hello, world!"))
    assert (len(rows), len(rows[0])) == (count, llm.n_embd())  # a row for each token
    embeddings = llm.create_embedding(["Hello, world!", "Goodbye, world!"])
    assert [one["index"] for one in embeddings["data"]] == [0, 1]
    assert embeddings["usage"]["prompt_tokens"] > count
    pooled = llama_cpp.Llama(model_path=PATH, embedding=True, pooling_type=1)
    CreateEmbeddingResponse.model_validate(pooled.create_embedding(["a", "b"]))
    row = pooled.embed("Hello, world!", normalize=True)
    assert np.linalg.norm(row) == pytest.approx(1, abs=1e-6)
    mean = np.mean(rows, axis=0)
    assert np.allclose(row, mean / np.linalg.norm(mean), atol=1e-3)
    assert pooled.embed(["a", "b"], return_count=True)[1] == 2 * len(pooled.tokenize(b"a"))


def test_adjusting_the_context_window():
    assert Llama(model_path=PATH).n_ctx() == 512
    assert Llama(model_path=PATH, n_ctx=256).n_ctx() == 256
    trained = open_gguf(PATH).metadata["llama.context_length"]
    assert Llama(model_path=PATH, n_ctx=0).n_ctx() == trained
    with pytest.raises(PromptTooLong):
        Llama(model_path=PATH, n_ctx=64)("word " * 100)


def test_streams(llm: Llama):
    options: dict[str, Any] = {"max_tokens": 24, "temperature": 0}
    chunks = list(llm("Once upon a time", stream=True, **options))
    whole = llm.create_completion("Once upon a time", **options)
    texts = [chunk["choices"][0]["text"] for chunk in chunks]
    assert "".join(texts) == whole["choices"][0]["text"]
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert len({chunk["id"] for chunk in chunks}) == 1
    echoed = list(llm("Once", stream=True, echo=True, **options))
    assert echoed[0]["choices"][0]["text"] == "Once"
    messages = [{"role": "user", "content": "Tell me a story."}]
    parts = list(llm.create_chat_completion(messages, stream=True, **options))
    for part in parts:
        ChatCompletionChunk.model_validate(part)
    assert parts[0]["choices"][0]["delta"] == {"role": "assistant"}
    text = "".join(part["choices"][0]["delta"].get("content", "") for part in parts)
    said = llm.create_chat_completion(messages, **options)["choices"][0]["message"]["content"]
    assert text == said


def test_log_probabilities(llm: Llama):
    options: dict[str, Any] = {"max_tokens": 5, "temperature": 0}
    output = llm("Once upon a time", logprobs=3, **options)
    Completion.model_validate(output)
    told = output["choices"][0]["logprobs"]
    assert "".join(told["tokens"]) == output["choices"][0]["text"]
    assert told["text_offset"][0] == len("Once upon a time")
    for logprob, top in zip(told["token_logprobs"], told["top_logprobs"], strict=True):
        assert len(top) == 3
        assert max(top.values()) == logprob
    chunks = list(llm("Once upon a time", logprobs=3, stream=True, **options))
    each = [chunk["choices"][0]["logprobs"] for chunk in chunks if chunk["choices"][0]["logprobs"]]
    assert [one["text_offset"][0] for one in each] == told["text_offset"]
    assert [one["token_logprobs"][0] for one in each] == told["token_logprobs"]
    messages = [{"role": "user", "content": "Hello"}]
    chat = llm.create_chat_completion(messages, logprobs=True, top_logprobs=2, **options)
    ChatCompletion.model_validate(chat)
    (first, *_) = chat["choices"][0]["logprobs"]["content"]
    assert len(first["top_logprobs"]) == 2


def test_seeds(llm: Llama):
    one, two = llm("Once", max_tokens=12), llm("Once", max_tokens=12)
    assert one["choices"] == two["choices"]  # the seed of the constructor holds for each
    llm.set_seed(-1)
    assert (
        llm("Once", max_tokens=12, seed=7)["choices"]
        == llm("Once", max_tokens=12, seed=7)["choices"]
    )
    llm.set_seed(1337)


def test_tokens(llm: Llama):
    ids = llm.tokenize(b"Once upon a time")
    assert ids[0] == llm.token_bos()
    assert llm.detokenize(ids) == b"Once upon a time"
    assert llm.tokenize(b"Once upon a time", add_bos=False) == ids[1:]
    assert llm.detokenize([llm.token_eos()]) == b""
    assert llm.detokenize([llm.token_eos()], special=True)
    assert llm.detokenize([llm.token_nl()]) == b"\n"
    assert llm.n_vocab() > max(ids)
    assert llm.metadata["general.architecture"] == "llama"
    generated = []
    for token in llm.generate(ids, top_k=40, top_p=1.0, temperature=0.0):
        generated.append(token)
        if len(generated) == 5:
            break
    done = llm("Once upon a time", max_tokens=5, temperature=0)
    assert llm.detokenize(generated).decode() == done["choices"][0]["text"]


def test_adapters():
    shout, asked = str(ASSETS / "shout"), [{"role": "user", "content": "Tell me a story."}]
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 20}
    with ggmodel.load(PATH, adapters={shout: 0.5}) as model:
        expected = model.chat(asked, **options)
    with Llama(PATH, lora_path=shout, lora_scale=0.5) as llm:
        output = llm.create_chat_completion(asked, **options)
    assert output["choices"][0]["message"]["content"] == expected


def test_grammars(llm: Llama, tmp_path: Path):
    grammar = LlamaGrammar.from_string('root ::= ("yes" | "no") "!"', verbose=False)
    assert llm("Is it?", grammar=grammar)["choices"][0]["text"] in ("yes!", "no!")
    (tmp_path / "a.gbnf").write_text('root ::= "yes"')
    assert (
        llm("?", grammar=LlamaGrammar.from_file(tmp_path / "a.gbnf"))["choices"][0]["text"] == "yes"
    )
    schema = LlamaGrammar.from_json_schema('{"const": 5}')
    assert llm("?", grammar=schema)["choices"][0]["text"] == "5"


def test_logits_processors_and_biases(llm: Llama):
    (wanted,) = llm.tokenize(b"x", add_bos=False)[-1:]

    def only(ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        assert ids[0] == llm.token_bos()
        return np.where(np.arange(len(scores)) == wanted, scores, -np.inf)

    output = llm("Once", max_tokens=3, logits_processor=[only])
    assert output["choices"][0]["text"].replace(" ", "") == "xxx"
    biased = llm("Once", max_tokens=3, temperature=0, logit_bias={str(wanted): 1000.0})
    assert biased["choices"][0]["text"].replace(" ", "") == "xxx"


def test_objects_of_openai(llm: Llama):
    messages = [{"role": "user", "content": "Hello"}]
    made = llm.create_chat_completion_openai_v1(messages, max_tokens=4)
    assert isinstance(made, ChatCompletion)
    parts = list(llm.create_chat_completion_openai_v1(messages, max_tokens=4, stream=True))
    assert isinstance(parts[0], ChatCompletionChunk)


@pytest.mark.parametrize(
    ("options", "instead"),
    [
        ({"lora_base": "a.gguf"}, "the adapter is added to the model as it is"),
        ({"rope_freq_base": 1e6}, "the file's value is used"),
        ({"tensor_split": [1, 2]}, "gpu_layers="),
        ({"vocab_only": True}, "Tokenizer.from_metadata"),
        ({"chat_handler": object()}, "mmproj=FILE"),
        ({"chat_format": "vicuna"}, "leave it out for the file's own template"),
        ({"draft_model": 3}, "LlamaPromptLookupDecoding"),
        ({"type_k": 8}, "give both the same"),
        ({"type_k": 3, "type_v": 3}, "give both the same"),
        ({"pooling_type": 9}, "pooling_type 9"),
    ],
)
def test_options_that_cannot_be_honoured(options: dict[str, Any], instead: str):
    with pytest.raises(Unsupported, match=instead):
        Llama(PATH, **options)


def test_options_without_effect():
    options: dict[str, Any] = {"use_mmap": False, "n_threads_batch": 2, "verbose": False}
    options |= {"logits_all": True, "rope_freq_base": 0.0, "main_gpu": 0, "numa": False}
    with Llama(PATH, n_threads=1, type_k=8, type_v=8, flash_attn=True, **options) as llm:
        assert llm("Once", max_tokens=2, mirostat_mode=0, tfs_z=1.0)["choices"]
        llm.reset()
        llm.set_cache(None)
    with pytest.raises(ConfigError, match="there is no option 'n_layers'"):
        Llama(PATH, n_layers=3)


def test_requests_that_cannot_be_honoured(llm: Llama):
    for options, why in (
        ({"mirostat_mode": 2}, "mirostat_mode=2"),
        ({"suffix": "the end"}, "/infill"),
        ({"stopping_criteria": [len]}, "stream=True"),
        ({"echo": True, "logprobs": 2}, "echo with logprobs"),
    ):
        with pytest.raises(Unsupported, match=why):
            llm("Once", **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="there is no option 'temprature'"):
        llm("Once", temprature=1)
    with pytest.raises(Unsupported, match=r"Llama\('org/repo:Q8_0'\)"):
        Llama.from_pretrained(repo_id="org/repo", filename="*Q8_0.gguf", verbose=False)
    with pytest.raises(ConfigError, match="embedding=True"):
        llm.embed("Hello")


TURNS = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "Bye"},
]
# The texts that the functions of llama_chat_format.py in version 0.3.36 make of them.
PROMPTS = {
    "llama-2": "[INST] <<SYS>>\nBe kind.\n<</SYS>> Hi [/INST]Hello! </s><s>[INST]Bye  [/INST]",
    "llama-3": "<|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\nHello!<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "chatml": "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    "<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
    "<|im_start|>assistant\n",
    "gemma": "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\nHello!<end_of_turn>\n"
    "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n",
    "mistral-instruct": "[INST] Hi [/INST]Hello!</s>[INST] Bye [/INST]",
    "zephyr": "<|system|>\nBe kind.</s>\n<|user|>\n\nHi</s>\n<|assistant|>\n\nHello!</s>\n"
    "<|user|>\n\nBye</s>\n<|assistant|>\n\n",
}


@pytest.mark.parametrize("name", PROMPTS)
def test_formats_by_name(name: str, llm: Llama):
    template, _ = format_of(name)
    assert llm.model.chat_text(TURNS, template=template).text == PROMPTS[name]
    assert format_of("{{ messages }}") == ("{{ messages }}", "")


def test_the_block_of_the_page():
    """docs/coming-from.md has one."""
    (code,) = blocks(read("docs/coming-from.md"), "python")
    text = printed(code, "docs/coming-from.md")
    assert text.startswith("Once upon a time")
    assert len(text.split()) > 30


def test_its_names_are_those_of_the_package():
    own = inspect.signature(Llama.create_completion).parameters
    for (
        name
    ) in "prompt suffix max_tokens temperature top_p min_p logprobs echo stop stream".split():
        assert name in own


def test_states_are_saved_and_loaded():
    with Llama(model_path=PATH, n_ctx=256) as llm:
        llm("Once upon a time, there was a little", max_tokens=4, temperature=0)
        state = pickle.loads(pickle.dumps(llm.save_state()))
        assert isinstance(state, LlamaState)
        assert state.llama_state_size == len(state.llama_state) > 1000
        again = llm("Once upon a time, there was a little", max_tokens=8, temperature=0)
    with Llama(model_path=PATH, n_ctx=256) as llm:
        llm.load_state(state)
        answer = llm.model.generate("Once upon a time, there was a little", max_tokens=1)
        assert answer.usage.reused_tokens == answer.usage.prompt_tokens - 1
        assert (
            llm("Once upon a time, there was a little", max_tokens=8, temperature=0)["choices"][0][
                "text"
            ]
            == (again["choices"][0]["text"])
        )
