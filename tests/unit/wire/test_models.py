"""Models of events: their schemas, what does not fit them, and how data is read by them."""

from dataclasses import dataclass
from functools import partial
from typing import TypedDict

import msgspec
import pydantic
import pytest

from zeroeventhub.errors import ConfigurationError, InvalidEvent, ProtocolError
from zeroeventhub.wire.json_schema import alternatives, resolve
from zeroeventhub.wire.models import (
    check_of,
    choices_of,
    reader_by_type,
    reader_for,
    reader_of,
    schema_of,
)


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
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}
    assert schema_of(schema) == schema
    union = schema_of(Model | Other)
    assert [*alternatives(union, union)] == ["object Model", "object Other"]


@pytest.mark.parametrize("model", [object(), complex, Plain | Struct])
def test_what_is_no_model_is_refused(model):
    """What has no schema is refused."""
    with pytest.raises(ConfigurationError, match="has no JSON Schema"):
        schema_of(model)


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


class Failing(Struct):
    """A model that fails for some orders."""

    def __post_init__(self):
        """Look the customer up."""
        {"ada": 1}[self.customer]


def test_model_that_fails_refuses_the_event():
    """What a model raises in its own code refuses the event that it was given, and no other."""
    check = check_of(Failing)
    check(b'{"customer":"ada"}')
    with pytest.raises(InvalidEvent, match="raised KeyError"):
        check(b'{"customer":"bob"}')


@pytest.mark.parametrize(
    "names",
    [
        {"alias": "amt"},
        {"serialization_alias": "amt", "validation_alias": pydantic.AliasChoices("amount", "amt")},
    ],
)
def test_member_of_another_name_is_compared_by_it(names):
    """A pydantic member whose alias is read and written has it in the schema and in events."""
    model = pydantic.create_model("Aliased", amount=(int, pydantic.Field(**names)))
    assert schema_of(model)["properties"].keys() == {"amt"}
    check = check_of(model)
    check(b'{"amt":1}')
    with pytest.raises(InvalidEvent) as refused:
        check(b'{"amt":"1"}')
    assert refused.value.path == "$.amt"


def test_schema_is_compared_with_nothing():
    """A schema that is given as one has no check, and what is no model is refused."""
    assert check_of({"type": "object"}) is None
    with pytest.raises(ConfigurationError, match="compared"):
        check_of(Struct | Plain)


@dataclass
class Paid:
    """A model."""

    cents: int


def in_cents(old: dict, times: int = 100) -> Paid:
    """Make a present event of an old one."""
    return Paid(old["euros"] * times)


class Upcaster:
    """An object that is called."""

    def __call__(self, old: Paid) -> dict:
        """Make a dict of a model."""
        return {"cents": old.cents}


@pytest.mark.parametrize(
    ("model", "text", "data", "made"),
    [
        (Paid, b'{"cents":1}', Paid(1), Paid),
        (list[int], b"[1]", [1], list[int]),
        (Paid | None, b"null", None, Paid | None),
        (list[Other], b'[{"n":1}]', [Other(n=1)], list[Other]),
        (dict[str, Other | None], b'{"a":{"n":1}}', {"a": Other(n=1)}, dict[str, Other | None]),
        (in_cents, b'{"euros":2}', Paid(200), Paid),
        (partial(in_cents, times=10), b'{"euros":2}', Paid(20), Paid),
        (Upcaster(), b'{"cents":3}', {"cents": 3}, dict),
        (lambda old: old["x"], b'{"x":"y"}', "y", None),
    ],
)
def test_data_is_read_by_models_and_upcasters(model, text, data, made):
    """A model decodes the data; a function gets it as its annotation says, and returns another."""
    read, returned = reader_for(model)
    assert read(text) == data
    assert made in (None, returned)


def test_what_does_not_fit_is_said_without_the_data():
    """Data that does not fit is an error that names the model, and what is no model another."""
    with pytest.raises(ProtocolError, match="does not fit Paid: Expected `int`"):
        reader_of(Paid)(b'{"cents":"secret"}')
    with pytest.raises(ConfigurationError, match="cannot be decoded"):
        reader_of(Paid | Upcaster)


def test_reader_of_a_type_or_of_all_others():
    """The reader of a type goes before the one of all others; without both it is an error."""
    one, other = reader_of(Paid), reader_of(dict)
    assert reader_by_type({"paid": one, "*": other}, "paid") is one
    assert reader_by_type({"paid": one, "*": other}, "sent") is other
    with pytest.raises(ProtocolError, match="'sent'"):
        reader_by_type({"paid": one}, "sent")


def test_choices_of_a_type():
    """A union has its members, and any other type itself."""
    assert choices_of(Paid | None) == (Paid, type(None))
    assert choices_of(Paid) == (Paid,)
