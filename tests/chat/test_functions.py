"""Python types as JSON schemas, and Python functions as tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Annotated, Any, Literal

import pydantic
import pytest
from typing_extensions import NotRequired, TypedDict

from ggmodel.chat.functions import Tools, new_call_id, tool_of
from ggmodel.chat.schemas import response_type, schema_of, value_of
from ggmodel.errors import ConfigError, PromptError


class Mood(Enum):
    HAPPY = "happy"
    SAD = "sad"


@dataclass
class Place:
    town: str
    country: str = "Norway"


@dataclass
class Hero:
    name: Annotated[str, "a first name"]
    home: Place
    mood: Mood = Mood.HAPPY
    friends: list[Place] = field(default_factory=list)


class Trip(TypedDict):
    town: str
    days: NotRequired[int]


class Animal(pydantic.BaseModel):
    kind: str
    legs: int = pydantic.Field(ge=0)


class Farm(pydantic.BaseModel):
    animals: list[Animal]


@dataclass
class Endless:
    next: Endless | None


PLACE = {
    "type": "object",
    "properties": {"town": {"type": "string"}, "country": {"type": "string"}},
    "required": ["town"],
}
CASES: dict[Any, tuple[Any, Any, Any]] = {
    "text": (str, {"type": "string"}, "a"),
    "number": (float, {"type": "number"}, 1),
    "nothing": (None, {"type": "null"}, None),
    "list": (list[int], {"type": "array", "items": {"type": "integer"}}, [1, 2]),
    "bare list": (list, {"type": "array"}, [1, "a"]),
    "sequence": (Sequence[bool], {"type": "array", "items": {"type": "boolean"}}, [True]),
    "dict": (
        dict[str, int],
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"a": 1},
    ),
    "choice": (Literal["a", 2], {"enum": ["a", 2]}, 2),
    "optional": (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}, None),
    "described": (Annotated[int, "so many"], {"type": "integer", "description": "so many"}, 3),
    "any": (Any, {}, [None]),
    "schema": ({"const": 1}, {"const": 1}, 1),
    "typed dict": (
        Trip,
        {
            "type": "object",
            "properties": {"town": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["town"],
        },
        {"town": "Oslo"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_types_and_their_values(name: str):
    kind, schema, value = CASES[name]
    assert schema_of(kind) == schema
    assert value_of(kind, value) == value


def test_a_tuple_has_its_length():
    schema = schema_of(tuple[int, str])
    assert (schema["minItems"], schema["maxItems"], schema["items"]) == (2, 2, False)
    assert value_of(tuple[int, str], [1, "a"]) == (1, "a")
    with pytest.raises(ValueError, match="has 1 elements"):
        value_of(tuple[int, str], [1])


def test_a_dataclass():
    schema = schema_of(Hero)
    assert schema["properties"]["name"] == {"type": "string", "description": "a first name"}
    assert schema["properties"]["home"] == PLACE
    assert schema["properties"]["mood"] == {"enum": ["happy", "sad"]}
    assert schema["required"] == ["name", "home"]
    made = value_of(Hero, {"name": "Pip", "home": {"town": "Bergen"}, "mood": "sad"})
    assert made == Hero("Pip", Place("Bergen"), Mood.SAD)


def test_models_of_pydantic():
    schema = schema_of(Farm)
    assert schema["$defs"]["Animal"]["properties"]["legs"]["minimum"] == 0
    assert "$defs" not in schema["properties"]
    outer = schema_of(list[Farm])
    assert "Animal" in outer["$defs"]
    assert value_of(Farm, {"animals": [{"kind": "owl", "legs": 2}]}).animals[0].kind == "owl"
    with pytest.raises(ValueError, match="legs"):
        value_of(Farm, {"animals": [{"kind": "owl", "legs": -1}]})


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        (int, "1", "it must be of the type integer"),
        (int, True, "it must be of the type integer"),
        (list[int], {"a": 1}, "it must be a list"),
        (list[int], [1, "a"], r"the answer\[1\]"),
        (dict[str, int], [1], "it must be an object"),
        (Literal["a"], "b", "one of"),
        (int | None, "a", "integer|null"),
        (Place, {"town": "A", "size": 1}, "has no 'size'"),
        (Place, {}, "lacks 'town'"),
        (Place, [], "it must be an object"),
        (Mood, "angry", "angry"),
    ],
)
def test_values_that_do_not_suit(kind: Any, value: Any, why: str):
    with pytest.raises(ValueError, match=why):
        value_of(kind, value)


def test_types_without_a_schema():
    for kind in (object, Callable[[int], int], set[complex]):
        with pytest.raises(ConfigError, match="has no JSON schema"):
            schema_of(kind)
    with pytest.raises(ConfigError, match="Endless refers to itself"):
        schema_of(Endless)


def test_forms_of_openai():
    schema = {"type": "object", "properties": {}}
    assert response_type({"type": "json_schema", "json_schema": {"schema": schema}}) == schema
    assert response_type({"type": "json_object", "schema": schema}) == schema
    assert response_type({"type": "json_object"}) == {"type": "object"}
    assert response_type({"type": "text"}) is None
    assert response_type(Place) is Place
    assert response_type(schema) is schema


def weather(town: str, days: int = 1, *, unit: Literal["C", "F"] = "C") -> dict[str, Any]:
    """The weather of the next days,
    as it is forecast.

    Args:
        town: the name of a town,
            without its country
        days (int): how many

    Returns:
        A dict.
    """
    if town == "Nowhere":
        raise LookupError(f"{town} is no town")
    return {"town": town, "days": days, "unit": unit}


def test_a_function_as_a_tool():
    function = tool_of(weather)["function"]
    assert function["name"] == "weather"
    assert function["description"] == "The weather of the next days, as it is forecast."
    assert function["parameters"] == {
        "type": "object",
        "properties": {
            "town": {"type": "string", "description": "the name of a town, without its country"},
            "days": {"type": "integer", "description": "how many", "default": 1},
            "unit": {"enum": ["C", "F"], "default": "C"},
        },
        "required": ["town"],
    }


def test_other_docstrings_and_callables():
    def add(a, b):  # type: ignore[no-untyped-def]
        """Adds.

        :param a: the first
        :param int b: the second
        """
        return a + b

    described = tool_of(add)["function"]
    assert described["description"] == "Adds."
    assert described["parameters"]["properties"]["b"] == {"description": "the second"}

    class Shop:
        def price(self, item: str) -> float:
            return 2.5

    assert list(tool_of(Shop().price)["function"]["parameters"]["properties"]) == ["item"]


def test_functions_that_are_no_tools():
    with pytest.raises(ConfigError, match="no name that a model could call"):
        tool_of(partial(weather, days=2))
    with pytest.raises(ConfigError, match="no name that a model could call"):
        tool_of(lambda x: x)

    def many(*args: int) -> None: ...

    with pytest.raises(ConfigError, match="no name that a model could give"):
        tool_of(many)

    def unknown(x: Missing) -> None: ...  # type: ignore[name-defined] # noqa: F821

    with pytest.raises(ConfigError, match="cannot be read"):
        tool_of(unknown)
    with pytest.raises(ConfigError, match="two tools have the name 'weather'"):
        Tools([weather, weather])
    for wrong in ("weather", {"a": 1}, 3):
        with pytest.raises(PromptError, match="tools are a list"):
            Tools(wrong)  # type: ignore[arg-type]
    with pytest.raises(PromptError, match="a tool is a Python function or a dict"):
        Tools([3])  # type: ignore[list-item]


def test_calls_and_their_errors_are_texts():
    tools = Tools([weather, {"type": "function", "function": {"name": "other"}}])
    assert len(tools.schemas) == 2
    result = json.loads(tools.call("weather", '{"town": "Oslo", "days": 2}'))
    assert result == {"town": "Oslo", "days": 2, "unit": "C"}
    assert tools.call("other", "{}") == (
        "error: there is no function 'other'; the functions are: weather"
    )
    assert tools.call("weather", '{"town": "Nowhere"}') == "error: LookupError: Nowhere is no town"
    for arguments, why in {
        '{"town"': "the arguments do not suit weather",
        "[1]": "they are no JSON object",
        "{}": "town is missing",
        '{"town": "Oslo", "size": 1}': "there is no parameter 'size'",
        '{"town": 1}': "town is 1; it must be of the type string",
    }.items():
        assert why in tools.call("weather", arguments)


def test_results_of_any_kind():
    def give(what: int) -> Any:
        """Gives something."""
        circle: list[Any] = []
        circle.append(circle)
        return ["é", Place("Oslo"), {1, 2}, None, Animal(kind="owl", legs=2), circle][what]

    texts = [Tools([give]).call("give", json.dumps({"what": i})) for i in range(6)]
    assert texts[0] == "é"
    assert json.loads(texts[1]) == {"town": "Oslo", "country": "Norway"}
    assert texts[2] == '"{1, 2}"'
    assert texts[3] == "null"
    assert json.loads(texts[4]) == {"kind": "owl", "legs": 2}
    assert texts[5] == "[[...]]"


def test_an_interrupt_goes_through():
    def stop() -> None:
        """Stops."""
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Tools([stop]).call("stop", "{}")


def test_ids_suit_every_template():
    assert all(len(one) == 9 and one.isalnum() for one in (new_call_id() for _ in range(20)))


class Street(pydantic.BaseModel):
    number: int


class Address(pydantic.BaseModel):
    street: Street


def test_definitions_of_nested_models_lie_at_the_root():
    def send(to: Address) -> None:
        """Sends a letter."""

    parameters = tool_of(send)["function"]["parameters"]
    assert list(parameters["$defs"]) == ["Street"]
    assert parameters["properties"]["to"]["properties"]["street"] == {"$ref": "#/$defs/Street"}


def test_a_call_that_happened_is_no_error():
    def table() -> dict[tuple[int, int], int]:
        return {(1, 2): 3}

    assert Tools([table]).call("table", "{}") == "{(1, 2): 3}"


@dataclass
class Even:
    n: int

    def __post_init__(self):
        raise TypeError("odd")


def test_a_class_that_refuses_its_values():
    def half(of: Even) -> int:
        return of.n // 2

    assert Tools([half]).call("half", '{"of": {"n": 3}}').endswith("odd")
