"""What a schema says of a value, and which changes of schemas break readers."""

import pytest

from zeroeventhub.errors import ProtocolError
from zeroeventhub.protocol import Schemas
from zeroeventhub.wire.json_schema import alternatives, changes, resolve

OBJECT = {"type": "object"}
NODE = {"$ref": "#/$defs/Node", "$defs": {"Node": {**OBJECT, "properties": {}}}}


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
    assert [*alternatives(schema, NODE)] == kinds


def test_schema_whose_references_multiply_is_refused():
    """A short schema that names too many alternatives takes neither time nor memory."""
    root = {"$defs": {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}}
    with pytest.raises(ProtocolError, match="more than 1,000 alternatives"):
        alternatives(root["$defs"]["d0"], root)


def test_schema_that_joins_very_many_others_is_refused():
    """A schema of more parts than anybody writes is refused at once, in place of hours later."""
    with pytest.raises(ProtocolError, match="joins more than 1,000 schemas"):
        alternatives({"allOf": [{}] * 2_000_000}, {})


def test_parts_of_a_schema_are_joined():
    """What `allOf` and a reference beside other words say holds together."""
    part = {"properties": {"a": {}}, "required": ["a"]}
    joined = resolve({"allOf": [part, NODE], "properties": {"b": {}}, "title": "C"}, NODE)
    assert joined["properties"] == {"a": {}, "b": {}}
    assert (joined["required"], joined["title"]) == (["a"], "C")


def of(*required, **properties):
    """A schema of an object."""
    return {"type": "object", "properties": properties, "required": [*required]}


def compared(old, new):
    """The changes of a type's schema, as lines."""
    found = changes(Schemas({"a": old}), Schemas({"a": new}))
    assert {one.type for one in found} <= {"a"}
    return [(one.place, one.change, one.breaks) for one in found]


TEXT, NUMBER, WHOLE = {"type": "string"}, {"type": "number"}, {"type": "integer"}
DATE = {"type": "string", "format": "date"}
MAP = {"type": "object", "additionalProperties": TEXT}
MAPPED = ("b.*", "was string, is integer", True)
PAIR = {"type": "array", "prefixItems": [TEXT, WHOLE], "items": False}
PAIRED = ("n[1]", "was integer, is string", True)
NARROWER = 'its values were "a", "b", are "a"'
TREE = {"$ref": "#/$defs/T", "$defs": {"T": of(n=WHOLE, t={"$ref": "#/$defs/T"})}}
OTHER = {"$ref": "#/$defs/T", "$defs": {"T": of(n=TEXT, t={"$ref": "#/$defs/T"})}}
EITHER = {"anyOf": [{"required": ["n"]}, {"required": ["m"]}]}


def two(one, other):
    """A schema of what is of two others."""
    parts = [{"$ref": "#/$defs/One"}, {"$ref": "#/$defs/Other"}]
    return {"allOf": parts, "$defs": {"One": one, "Other": other}}


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        (of(n=TEXT), of(), ("n", "was removed", True)),
        (of("n", n=TEXT), of(n=TEXT), ("n", "was always there, may be absent", True)),
        (of(n=TEXT), of("n", n=TEXT), ("n", "may have been absent, is always there", False)),
        (of(), of("n", n=TEXT), ("n", "is new", False)),
        (of(n=WHOLE), of(n=NUMBER), ("n", "was integer, is number", True)),
        (of(n=NUMBER), of(n=WHOLE), ("n", "was number, is integer", False)),
        (of(n={}), of(n=TEXT), ("n", "was anything, is string", False)),
        (of(n=TEXT), of(n={}), ("n", "was string, is anything", True)),
        (of(n=TEXT), of(n=DATE), ("n", "was string, is string (date)", False)),
        (of(n=DATE), of(n=TEXT), ("n", "was string (date), is string", True)),
        (
            of(n={"type": ["string", "null"]}),
            of(n=TEXT),
            ("n", "was null or string, is string", False),
        ),
        (
            of(n=TEXT),
            of(n={"anyOf": [TEXT, {"type": "null"}]}),
            ("n", "was string, is null or string", True),
        ),
        (
            of(n={"enum": ["a", "b"]}),
            of(n={"enum": ["c", "a"]}),
            ("n", 'its values were "a", "b", are "a", "c"', True),
        ),
        (of(n={"const": "a"}), of(n=TEXT), ("n", 'its values were "a", are any', True)),
        (of(n=TEXT), of(n={"const": "a"}), ("n", 'its values were any, are "a"', False)),
        (of(n={"enum": ["a", "b"]}), of(n={"const": "a"}), ("n", NARROWER, False)),
        (
            of(n={"anyOf": [{"const": "a"}, TEXT]}),
            of(n={"anyOf": [{"const": "a"}, {"const": "b"}]}),
            ("n", 'its values were any, are "a", "b"', False),
        ),
        (of(n=of(m=TEXT)), of(n=of()), ("n.m", "was removed", True)),
        (of(n={"items": of(m=TEXT)}), of(n={"items": of()}), ("n[].m", "was removed", True)),
        (
            {"type": "object", "additionalProperties": TEXT},
            {"type": "object", "additionalProperties": WHOLE},
            ("*", "was string, is integer", True),
        ),
        (
            {**of(), "additionalProperties": False},
            of(n=TEXT),
            ("n", "is new where no others were allowed", True),
        ),
        (of(n={"items": TEXT}), of(n={"type": "array"}), ("n[]", "was string, is anything", True)),
        (of(n={"type": "array"}), of(n={"items": TEXT}), ("n[]", "was anything, is string", False)),
        (of(n=PAIR), of(n={**PAIR, "prefixItems": [TEXT, TEXT]}), PAIRED),
        (MAP, {"type": "object"}, ("*", "was string, is anything", True)),
        (MAP, {**MAP, "additionalProperties": True}, ("*", "was string, is anything", True)),
        (of(a=MAP, b=MAP), of(a=MAP, b={**MAP, "additionalProperties": WHOLE}), MAPPED),
        (TREE, OTHER, ("n", "was integer, is string", True)),
        (two(of(m=TEXT), of(n=TEXT)), two(of(m=TEXT), of()), ("n", "was removed", True)),
        (
            {"allOf": [of("n", n=TEXT)], "required": ["m"]},
            {"allOf": [of(n=TEXT)], "required": ["m"]},
            ("n", "was always there, may be absent", True),
        ),
        ({**of(n=TEXT, m=TEXT), **EITHER}, {**of(n=TEXT), **EITHER}, ("m", "was removed", True)),
    ],
)
def test_change_is_named_with_its_place(old, new, change):
    """Each change of a property is one finding, which says whether it breaks a reader."""
    assert compared(old, new) == [change]


def test_same_in_other_words_is_no_change():
    """Schemas that say the same differ in nothing, whatever their order, names and descriptions."""
    old = {"$ref": "#/$defs/A", "$defs": {"A": of("n", n={"type": ["string", "null"]})}}
    new = {**of("n", n={"anyOf": [{"type": "null"}, TEXT]}), "title": "B", "description": "…"}
    assert compared(old, new) == compared(TREE, TREE) == []
    assert compared(of(n={"enum": ["a", None]}), of(n={"enum": [None, "a"]})) == []


def test_every_part_is_compared_however_schemas_are_joined():
    """Joined schemas that contain themselves have an end, and no change of many is left out."""
    node = {"allOf": [of(n=TEXT)], "properties": {"below": {"$ref": "#/$defs/Node"}}}
    tree = {"$ref": "#/$defs/Node", "$defs": {"Node": node}}
    assert compared(tree, tree) == []
    old, new = (
        of(**{f"m{n}": {"allOf": [of(n=TEXT)], "properties": {"m": {**kind}}} for n in range(9)})
        for kind in (TEXT, WHOLE)
    )
    assert len(compared(old, new)) == 9


def test_types_and_envelope_are_compared():
    """A removed type and another envelope break readers; a new type does not."""
    found = changes(Schemas({"a": {}, "b": {}}), Schemas({"b": {}, "c": {}}, "cloudevents"))
    assert [(one.type, one.change, one.breaks) for one in found] == [
        ("", "the envelope was none, is cloudevents", True),
        ("a", "the type was removed", True),
        ("c", "the type is new", False),
    ]


@pytest.mark.parametrize(
    "schema",
    [
        of(n={"type": 7}),
        {"properties": [1]},
        {"anyOf": 7},
        {"$ref": "#/$defs/A", "$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}]}}},
    ],
)
def test_schema_that_is_none_is_refused(schema):
    """What is not JSON Schema is refused, and not taken for a change."""
    with pytest.raises(ProtocolError, match="A schema of 'a'"):
        compared(schema, schema)
