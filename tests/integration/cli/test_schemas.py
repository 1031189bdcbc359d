"""Schemas on the command line: shown, compared, and written as models."""

import json
from dataclasses import is_dataclass
from datetime import date
from importlib import import_module
from typing import Literal, get_args, get_type_hints, is_typeddict

import msgspec
import pydantic
import pytest
from harness.command_line import invoke
from harness.readers import mounted
from harness.shop import fill, orders

from zeroeventhub import TableFeed


class Address(msgspec.Struct):
    """Where an order goes."""

    street: str


class Placed(msgspec.Struct):
    """An order that was placed."""

    n: int
    title: str
    to: Address
    day: date
    by: Literal["web", "shop"] = "web"


ABROAD = {
    "$ref": "#/$defs/Sent",
    "$defs": {
        "Sent": {"type": "object", "properties": {"to": {"$ref": "#/$defs/Address"}}},
        "Address": {"type": "object", "properties": {"country": {"type": "string"}}},
    },
}


@pytest.fixture
def publish(sqlite):
    """A function that serves a feed with these schemas."""
    fill(sqlite)
    return lambda schemas: mounted(
        TableFeed(orders, data="data", type="kind", cloudevents=True, schemas=schemas), sqlite
    )


@pytest.mark.parametrize("as_json", [False, True])
def test_change_that_breaks_readers_fails(publish, tmp_path, as_json):
    """A feed is compared with a file or another feed: a line a finding, and 1 if one breaks."""
    kept = tmp_path / "kept.json"
    options = ["--json"] * as_json
    with publish({"placed": Placed, "sent": ABROAD}) as url:
        kept.write_text(invoke("schema", "show", url).stdout)
        same = invoke("schema", "diff", kept, url, *options)
        assert (same.exit_code, same.stdout) == (0, "[]\n" if as_json else "")
    with publish({"placed": Placed, "sent": ABROAD, "paid": {"type": "object"}}) as url:
        more = invoke("schema", "diff", kept, url, *options)
        less = invoke("schema", "diff", url, kept, *options)
    assert (more.exit_code, less.exit_code) == (0, 1)
    if as_json:
        (change,) = json.loads(less.stdout)
        expected = {"type": "paid", "place": "", "change": "the type was removed", "breaks": True}
        assert change == expected
    else:
        assert more.stdout == "fits    paid: the type is new\n"
        assert less.stdout == "breaks  paid: the type was removed\n"


@pytest.mark.parametrize(
    ("style", "is_such"),
    [
        ("dataclass", is_dataclass),
        ("msgspec", lambda model: issubclass(model, msgspec.Struct)),
        ("pydantic", lambda model: issubclass(model, pydantic.BaseModel)),
        ("typeddict", is_typeddict),
    ],
)
def test_models_are_written_for_a_consumer(publish, tmp_path, monkeypatch, style, is_such):
    """The models of a feed are a module, whose MODELS decode events; equal names stay apart."""
    file = tmp_path / f"models_of_{style}.py"
    with publish({"order.placed": Placed, "order.sent": ABROAD}) as url:
        assert invoke("codegen", url, "--style", style, "--output", file).exit_code == 0
        assert invoke("codegen", url, "--style", style).stdout == file.read_text()
    monkeypatch.syspath_prepend(tmp_path)
    models = import_module(file.stem).MODELS
    assert [*models] == ["order.placed", "order.sent"]
    assert all(map(is_such, models.values()))
    assert models["order.placed"].__doc__.strip() == "An order that was placed."
    placed = {"n": 1, "title": "t", "to": {"street": "s"}, "day": "2026-01-02", "by": "shop"}
    of = pydantic.TypeAdapter if style == "pydantic" else None
    for model, data in zip(models.values(), [placed, {"to": {"country": "c"}}], strict=True):
        if of is not None:
            assert of(model).dump_python(of(model).validate_python(data), mode="json") == data
        else:
            assert msgspec.to_builtins(msgspec.convert(data, model)) == data
    assert get_type_hints(models["order.placed"])["day"] is date


def test_definitions_of_one_name_in_several_types_stay_apart(publish):
    """Each type has its own model of what both define, also if its name is none of a class."""
    item = {"items": {"$ref": "#/$defs/line_item"}}
    with publish(
        {
            kind: {
                "type": "object",
                "properties": {"lines": item},
                "$defs": {"line_item": {"type": "object", "properties": {member: {}}}},
            }
            for kind, member in (("placed", "sku"), ("sent", "parcel"))
        }
    ) as url:
        code = invoke("codegen", url).stdout
    assert all(name in code for name in ("sku:", "parcel:", "class SentLineItem"))


def test_types_of_similar_names_have_models_of_their_own(publish, tmp_path, monkeypatch):
    """Types and definitions whose names have the same Latin letters get models of their own."""
    objects = {one: {"type": "object", "properties": {one: {}}} for one in "abcdefgh"}
    kinds = {"order.sent": "a", "order-sent": "b", "order_sent": "c"}
    kinds |= {
        "\u043e\u043f\u043b\u0430\u0442\u0430": "d",
        "\u0441\u0447\u0435\u0442": "e",
        "\u53d1\u8d27": "f",
    }
    inner = {"g": {"$ref": "#/$defs/line-item"}, "h": {"$ref": "#/$defs/line_item"}}
    definitions = {"line-item": objects["g"], "line_item": objects["h"]}
    both = {"type": "object", "properties": inner, "$defs": definitions}
    with publish({kind: objects[one] for kind, one in kinds.items()} | {"both": both}) as url:
        assert invoke("codegen", url, "--output", tmp_path / "similar_models.py").exit_code == 0
    monkeypatch.syspath_prepend(tmp_path)
    module = import_module("similar_models")
    for kind, one in kinds.items():
        assert [*get_type_hints(module.MODELS[kind])] == [one]
    parts = get_type_hints(module.MODELS["both"])
    assert {one: [*get_type_hints(get_args(part)[0])] for one, part in parts.items()} == {
        "g": ["g"],
        "h": ["h"],
    }


@pytest.mark.parametrize("style", ["dataclass", "msgspec", "pydantic", "typeddict"])
def test_types_may_have_the_names_of_what_models_are_made_of(publish, tmp_path, monkeypatch, style):
    """MODELS has the class of each type, also of one that is named as something of Python's."""
    kinds = ["none", "true", "any", "meta", "field", "struct", "base_model", "MODELS", "typedDict"]
    schemas = {kind: {"type": "object", "properties": {f"its_{kind}": {}}} for kind in kinds}
    file = tmp_path / f"names_of_{style}.py"
    with publish(schemas) as url:
        assert invoke("codegen", url, "--style", style, "--output", file).exit_code == 0
    monkeypatch.syspath_prepend(tmp_path)
    models = import_module(file.stem).MODELS
    assert {kind: [*get_type_hints(model)] for kind, model in models.items()} == {
        kind: [f"its_{kind}"] for kind in kinds
    }


@pytest.mark.parametrize("style", ["dataclass", "typeddict"])
def test_models_may_have_definitions_that_are_no_objects(publish, tmp_path, monkeypatch, style):
    """A definition of values, such as those of an enumeration, is written beside the classes."""
    color = {"color": {"$ref": "#/$defs/Color"}}
    schema = {"type": "object", "properties": color, "$defs": {"Color": {"enum": ["red", "blue"]}}}
    file = tmp_path / f"values_of_{style}.py"
    with publish({"painted": schema}) as url:
        assert invoke("codegen", url, "--style", style, "--output", file).exit_code == 0
    monkeypatch.syspath_prepend(tmp_path)
    model = import_module(file.stem).MODELS["painted"]
    assert msgspec.to_builtins(msgspec.convert({"color": "red"}, model)) == {"color": "red"}
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"color": "green"}, model)


@pytest.mark.parametrize("style", ["dataclass", "typeddict"])
def test_model_that_cannot_have_its_members_names_is_refused(publish, style):
    """A member that would get another name would be missed in every event."""
    with publish({"a": {"type": "object", "properties": {"_b": {}, "c": {}}}}) as url:
        result = invoke("codegen", url, "--style", style)
        assert invoke("codegen", url, "--style", "msgspec").exit_code == 0
    assert result.exit_code == 2
    assert "field_b would be none of them: choose" in result.stderr


@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef", "$recursiveRef"])
@pytest.mark.parametrize("elsewhere", ["/etc/hostname", "https://elsewhere.example/", "#/x"])
def test_models_are_made_of_the_feed_s_own_schemas_alone(publish, elsewhere, keyword):
    """A schema cannot make the generator read a file or an address."""
    with publish({"a": {"type": "object", "properties": {"b": {keyword: elsewhere}}}}) as url:
        result = invoke("codegen", url)
    assert result.exit_code == 2
    assert f"refers to {elsewhere}" in result.stderr


def test_models_import_nothing_of_the_publisher_s_choice(publish, tmp_path, monkeypatch):
    """Keywords of the generator do nothing in a schema, and members may have their names."""
    python = {"module": "antigravity", "name": "fly"}
    own = {"customTypePath": "antigravity.fly", "customBasePath": "antigravity.Fly"}
    members = {name: {"type": "string", **own} for name in ("title", "properties", *own)}
    part = {"type": "object", "properties": {"c": {}}, "x-python-import": python}
    members["part"] = {"$ref": "#/$defs/part"}
    schema = {"type": "object", "properties": members, "$defs": {"part": part}, **own}
    with publish({"a": schema}) as url:
        assert invoke("codegen", url, "--output", tmp_path / "own_models.py").exit_code == 0
    assert "antigravity" not in (tmp_path / "own_models.py").read_text()
    monkeypatch.syspath_prepend(tmp_path)
    models = import_module("own_models").MODELS
    assert [*get_type_hints(models["a"])] == [*members]


def test_envelope_is_of_all_events(publish, tmp_path):
    """A finding that is of no type says of what it is."""
    (tmp_path / "bare.json").write_text('{"schemas":{}}')
    with publish({}) as url:
        result = invoke("schema", "diff", tmp_path / "bare.json", url)
    expected = "breaks  all events: the envelope was none, is cloudevents\n"
    assert (result.exit_code, result.stdout) == (1, expected)


def test_what_cannot_be_read_or_written_is_said(publish, tmp_path):
    """A file that is not there, or none of schemas, and a place that is none, are refused."""
    (tmp_path / "other.json").write_text('{"schemas": 1}')
    with publish({}) as url:
        for old, said in (("gone.json", "cannot be read"), ("other.json", "expected form")):
            result = invoke("schema", "diff", tmp_path / old, url)
            assert result.exit_code == 2
            assert said in result.stderr
        assert "no schemas" in invoke("codegen", url).stderr
    with publish({"a": Placed}) as url:
        result = invoke("codegen", url, "--output", tmp_path / "no" / "models.py")
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr
