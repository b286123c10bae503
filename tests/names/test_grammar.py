"""How names are written."""

from __future__ import annotations

import pytest

from ggmodel.errors import ConfigError
from ggmodel.names.grammar import HubName, OllamaName, hub_name, is_path, ollama_name


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a/b", HubName("a/b")),
        ("a/b:Q4_K_M", HubName("a/b", tag="Q4_K_M")),
        ("a/b@v1", HubName("a/b", revision="v1")),
        ("a/b@refs/pr/1", HubName("a/b", revision="refs/pr/1")),
        ("a/b@v1:Q8_0", HubName("a/b", revision="v1", tag="Q8_0")),
        ("a/b:Q8_0@v1", HubName("a/b", revision="v1", tag="Q8_0")),
        ("a/b/c/d.gguf", HubName("a/b", file="c/d.gguf")),
        ("hf.co/a/b:Q8_0", HubName("a/b", tag="Q8_0", explicit=True)),
        ("hf://a/b", HubName("a/b", explicit=True)),
        ("a", None),
        ("a/..", None),
        ("../b", None),
        ("a/b/../c.gguf", None),
        ("a/b@../x", None),
        ("a/b@x/../y", None),
        ("a/b--c", None),
        ("a/b:", None),
        ("a/b\n", None),
        ("a/" + "b" * 300, None),
    ],
)
def test_names_of_the_hub(text: str, wanted: HubName | None):
    assert hub_name(text) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("m", OllamaName("m")),
        ("m:7b", OllamaName("m", "7b")),
        ("n/m:7b", OllamaName("m", "7b", "n")),
        ("ollama://h.x:80/n/m:7b", OllamaName("m", "7b", "n", "h.x:80")),
        ("ollama://m", OllamaName("m")),
        ("a/b/c/d", None),
        ("..", None),
        ("m:..", None),
        ("../m", None),
        ("/m", None),
        ("m" * 81, None),
    ],
)
def test_names_of_ollama(text: str, wanted: OllamaName | None):
    assert ollama_name(text) == wanted


@pytest.mark.parametrize("text", ["hf.co/a", "hf://../..", "hf.co/a/b/../../c.gguf"])
def test_a_prefix_asks_for_a_name(text: str):
    with pytest.raises(ConfigError, match="is no name of the hub; names are ORG/REPO"):
        hub_name(text)
    with pytest.raises(ConfigError, match="is no name of Ollama"):
        ollama_name("ollama://" + text.partition("/")[2].replace("a", ".."))


@pytest.mark.parametrize(
    "text",
    [
        "./a",
        "/a/b",
        "~/a",
        "a.gguf",
        "a/b.gguf",
        "a\\b",
        "a/",
        "",
        "C:\\m\\x.gguf",
        "c:/m/x/y.gguf",
    ],
)
def test_paths_are_no_names(text: str):
    assert is_path(text)
    assert not is_path("ollama://a") and not is_path("org/repo/a.gguf")
