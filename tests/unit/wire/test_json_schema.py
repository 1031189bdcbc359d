"""Schemas of models of each kind, and what a schema says of a value."""

from dataclasses import dataclass
from typing import TypedDict

import msgspec
import pydantic
import pytest

from zeroeventhub.errors import ConfigurationError, InvalidEvent
from zeroeventhub.wire.json_schema import alternatives, check_of, resolve, schema_of


@dataclass
class Plain:
    """An order."""

    customer: str
    amount: float = 0.0


class Struct(msgspec.Struct):
    """An order."""

    customer: str
    amount: float = 0.0


class Model(pydantic.BaseModel):
    """An order."""

    customer: str
    amount: float = 0.0


class Typed(TypedDict):
    """An order."""

    customer: str
    amount: float


class Other(pydantic.BaseModel):
    """Another event."""

    n: int


OBJECT = {"type": "object"}
TREE = {"$ref": "#/$defs/Node", "$defs": {"Node": {**OBJECT, "properties": {}}}}


@pytest.mark.parametrize("model", [Plain, Struct, Model, Typed])
def test_model_of_each_kind_has_a_schema_of_its_properties(model):
    """Dataclasses, Structs, pydantic models and TypedDicts are described by their properties."""
    schema = schema_of(model)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    found = resolve(schema, schema)
    assert {name: one["type"] for name, one in found["properties"].items()} == {
        "customer": "string",
        "amount": "number",
    }
    assert "customer" in found["required"]
    assert ("amount" in found["required"]) is (model is Typed)


def test_schema_and_union_are_published_as_they_are():
    """A schema is taken as it is, and a union of pydantic models is described by all of them."""
    assert schema_of({"$schema": "http://json-schema.org/draft-07/schema#", **OBJECT}) == {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **OBJECT,
    }
    union = schema_of(Model | Other)
    assert [*alternatives(union, union)] == ["object Model", "object Other"]


@pytest.mark.parametrize("model", [object(), complex, Plain | Struct])
def test_what_is_no_model_is_refused(model):
    """What has no schema is refused."""
    with pytest.raises(ConfigurationError, match="has no JSON Schema"):
        schema_of(model)


@pytest.mark.parametrize(
    ("schema", "kinds"),
    [
        ({"type": ["string", "null"]}, ["string", "null"]),
        ({"type": "string", "format": "date"}, ["string (date)"]),
        ({"anyOf": [{"type": "integer"}, {"oneOf": [{"const": "a"}]}]}, ["integer", "string"]),
        ({"enum": [1, 2.5, "a", None, True]}, ["integer", "number", "string", "null", "boolean"]),
        ({"properties": {}}, ["object"]),
        ({"items": {}}, ["array"]),
        ({}, ["anything"]),
        (True, ["anything"]),
        ({"$ref": "#/$defs/Node"}, ["object"]),
        ({"$ref": "#/$defs/None"}, ["anything"]),
        ({"$ref": "https://elsewhere.example/"}, ["anything"]),
        ({"anyOf": [OBJECT, {**OBJECT, "title": "B"}]}, ["object 1", "object B"]),
    ],
)
def test_schema_says_which_kinds_of_values_there_are(schema, kinds):
    """Types, formats, values, references and alternatives say what a value may be."""
    assert [*alternatives(schema, TREE)] == kinds


def test_parts_of_a_schema_are_joined():
    """What `allOf` and a reference beside other words say holds together."""
    part = {"properties": {"a": {}}, "required": ["a"]}
    joined = resolve({"allOf": [part, TREE], "properties": {"b": {}}, "title": "C"}, TREE)
    assert joined["properties"] == {"a": {}, "b": {}}
    assert (joined["required"], joined["title"]) == (["a"], "C")


@pytest.mark.parametrize("model", [Plain, Struct, Model, Typed, Model | None, list[Struct]])
def test_place_of_what_does_not_fit_is_named(model):
    """JSON is compared with a model of any kind, and what does not fit has a path."""
    check, good = check_of(model), '{"customer":"ada","amount":1.5}'
    one, at = ("[%s]", "$[0]") if model == list[Struct] else ("%s", "$")
    check((one % good).encode())
    for bad, path in ((good.replace("1.5", '"1.5"'), f"{at}.amount"), ("7", at)):
        with pytest.raises(InvalidEvent) as refused:
            check((one % bad).encode())
        assert refused.value.path == path
        assert "1.5" not in str(refused.value)


def test_schema_is_compared_with_nothing():
    """A schema that is given as one has no check, and what is no model is refused."""
    assert check_of({"type": "object"}) is None
    with pytest.raises(ConfigurationError, match="compared"):
        check_of(Struct | Plain)
