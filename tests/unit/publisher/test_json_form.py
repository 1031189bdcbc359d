import enum
import inspect
import json
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Column, Numeric, Text, cast, column, func
from sqlalchemy import types as sql
from sqlalchemy.dialects import postgresql, sqlite

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher.json_form import _as_stored, _number, json_form

REFUSED = {
    *["BINARY", "NullType", "TupleType", "VARBINARY"],  # no type of PostgreSQL or SQLite
    *["HSTORE", "JSONPATH", "MONEY", "OID", "REGCLASS", "REGCONFIG", "TSQUERY", "TSVECTOR"],
}
ARGUMENTS = {
    "ARRAY": (sql.Integer,),
    "DOMAIN": ("positive", sql.Integer()),
    "ENUM": ("new", "paid"),
    "Enum": ("new", "paid"),
}
ABSTRACT = {"TypeDecorator", "TypeEngine", "UserDefinedType", "Variant", "NamedType"}


def kinds_of(module):
    """The type classes of a module that a column can have, by their names."""
    classes = inspect.getmembers(module, inspect.isclass)
    return [
        (name, kind)
        for name, kind in classes
        if issubclass(kind, sql.TypeEngine)
        and name not in ABSTRACT
        and not name.startswith(("_", "Abstract"))
    ]


def is_refused(name):
    """Tell whether the type of this name has no JSON form: ranges have none either."""
    return name in REFUSED or name.endswith("RANGE")


def made(name, kind):
    """A type of this class."""
    named = {"name": "status"} if name == "ENUM" else {}
    return kind(*ARGUMENTS.get(name, ()), **named)


KINDS = [*kinds_of(sql), *kinds_of(postgresql)]
ACCEPTED_KINDS = [made(name, kind) for name, kind in KINDS if not is_refused(name)]
REFUSED_KINDS = [made(name, kind) for name, kind in KINDS if is_refused(name)]


class Label(sql.TypeDecorator):
    """Be text that an application has a class for."""

    impl = sql.Text
    cache_ok = True


class Point(sql.UserDefinedType):
    """Be a type that this library does not know."""

    cache_ok = True


class Color(enum.Enum):
    """Be an enumeration in Python."""

    RED = 1


@pytest.mark.parametrize("kind", ACCEPTED_KINDS, ids=repr)
def test_type_has_a_json_form(kind):
    """A type that is a number, a text, a time, bytes or JSON has a JSON form."""
    assert json_form(Column("price", kind), "price").select is not None


@pytest.mark.parametrize("kind", [*REFUSED_KINDS, Point()], ids=repr)
def test_type_without_a_json_form_is_refused(kind):
    """Any other type is refused by the name of the column, and so is an array of it."""
    with pytest.raises(ConfigurationError, match=r"'price' has the SQL type .*cast"):
        json_form(Column("price", kind), "price")
    with pytest.raises(ConfigurationError, match=r"'price' has the SQL type .*ARRAY"):
        json_form(Column("price", postgresql.ARRAY(kind)), "price")


def test_all_types_of_postgresql_are_known():
    """The types that this test was written for are among those it looks at."""
    names = {name for name, _ in KINDS}
    assert names >= REFUSED | {"CITEXT", "INT4RANGE", "INT4MULTIRANGE", "JSONB", "PickleType"}


def test_expression_whose_type_is_unknown_is_refused():
    """An expression that SQLAlchemy knows no type of is refused, and its cast is not."""
    unknown = column("x") + column("y")
    with pytest.raises(ConfigurationError, match="'sum'"):
        json_form(unknown, "sum")
    assert json_form(cast(unknown, Text), "sum").convert is None


@pytest.mark.parametrize(
    "kind",
    [
        *[Label(), sql.Enum(Color), sql.Numeric(asdecimal=False), sql.PickleType()],
        *[postgresql.DOMAIN("email", Label()), sql.String().with_variant(sql.Text(), "sqlite")],
        *[
            postgresql.ARRAY(Label, dimensions=2),
            postgresql.ARRAY(postgresql.DOMAIN("d", sql.JSON)),
        ],
    ],
    ids=repr,
)
def test_types_are_looked_through(kind):
    """Behind a decorator, a domain or a variant it is the stored type that counts."""
    assert json_form(Column("a", kind), "a").select is not None


@pytest.mark.parametrize(
    "kind",
    [
        *[postgresql.DOMAIN("d", postgresql.HSTORE()), postgresql.ARRAY(Point, dimensions=3)],
        *[sql.Integer().adapt(sql.NullType), postgresql.DOMAIN("d", postgresql.ARRAY(Point))],
    ],
    ids=repr,
)
def test_refused_types_are_found_behind_others(kind):
    """A type without a JSON form is refused behind a domain and in an array as well."""
    with pytest.raises(ConfigurationError, match="'a'"):
        json_form(Column("a", kind), "a")


@pytest.mark.parametrize(
    "kind", [Numeric(), sql.Enum(Color), postgresql.INET(), postgresql.BIT(8)], ids=repr
)
def test_exact_types_are_selected_as_text(kind):
    """Where the database's text is exact and Python's value is not, the text is asked for."""
    select = json_form(Column("a", kind), "a").select
    assert str(select.compile(dialect=postgresql.dialect())) == "CAST(a AS TEXT)"


@pytest.mark.parametrize(
    ("kind", "declared"),
    [
        (sql.JSON(), "JSON"),
        (postgresql.JSON(), "JSON"),
        (postgresql.JSONB(), "JSONB"),
        (sql.JSON().with_variant(postgresql.JSONB(), "postgresql"), "JSONB"),
    ],
    ids=repr,
)
def test_stored_json_is_selected_as_text_of_its_type(kind, declared):
    """PostgreSQL reads a column as the type of JSON that it was declared, others as text."""
    select = json_form(Column("a", kind), "a").select
    on_postgresql = str(select.compile(dialect=postgresql.dialect()))
    assert on_postgresql == f"CAST(CAST(a AS {declared}) AS TEXT)"
    assert str(select.compile(dialect=sqlite.dialect())) == "CAST(a AS TEXT)"


def test_expression_keeps_its_own_sql():
    """An expression is selected as it was written."""
    expression = func.coalesce(Column("a", Text), Column("b", Text))
    select = json_form(expression, "a").select
    assert str(select.compile(dialect=postgresql.dialect())) == "coalesce(a, b)"


@pytest.mark.parametrize(
    ("value", "form"),
    [
        *[(float("nan"), "NaN"), (float("inf"), "Infinity"), (float("-inf"), "-Infinity")],
        *[(0.1, 0.1), (-0.0, -0.0), (1e308, 1e308), (5e-324, 5e-324)],
    ],
    ids=repr,
)
def test_numbers_that_json_lacks_are_written_by_name(value, form):
    """A float is a number, but for the three that JSON has no number for."""
    assert repr(_number(value)) == repr(form)


@given(st.floats())
def test_every_float_has_a_json_form(value):
    """Whatever float a column holds, its form is JSON, and means the same."""
    assert repr(float(json.loads(json.dumps(_number(value), allow_nan=False)))) == repr(value)


@pytest.mark.parametrize(
    ("stored", "embedded"),
    [
        ('{"a": 1.0, "a":1.00}', '{"a": 1.0, "a":1.00}'),
        ('{"b": 1,\n "a": 2}\n', '{"b": 1,  "a": 2} '),
        ("123456789012345678901234567890.10", "123456789012345678901234567890.10"),
        ("[1e400, -0, 2E+5, 1e-999]", "[1e400, -0, 2E+5, 1e-999]"),
        ('"\u2028 \\n\\u00e5 \\/"', '"\u2028 \\n\\u00e5 \\/"'),
        ("\r\n\tnull\r\n", "\r \tnull\r "),
        ("[ ]", "[ ]"),
    ],
)
def test_stored_json_is_embedded_as_it_is(stored, embedded):
    """Stored JSON keeps numbers, keys and escapes; a newline becomes a space."""
    assert bytes(_as_stored(stored)).decode() == embedded


finite = st.floats(allow_nan=False, allow_infinity=False)
json_data = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | st.text(max_size=8),
    lambda data: st.lists(data, max_size=3) | st.dictionaries(st.text(), data, max_size=3),
    max_leaves=8,
)


@given(json_data, st.booleans())
def test_any_json_is_embedded_in_one_line(data, escaped):
    """Whatever JSON is stored, in many lines or few, it means the same in one line."""
    stored = json.dumps(data, indent=3, ensure_ascii=escaped)
    embedded = bytes(_as_stored(stored))
    assert b"\n" not in embedded
    assert json.loads(embedded) == data


@pytest.mark.parametrize("stored", ["", "NaN", "01", "[1,]", "{", '"\\ud800"', '"\n"', "1 2"])
def test_text_that_is_not_json_is_not_embedded(stored):
    """SQLite keeps any text in a column of JSON; what is not JSON is not passed on."""
    with pytest.raises(msgspec.DecodeError):
        _as_stored(stored)


def converted(kind, value):
    """The form of a value that the database returned for a column of this type."""
    return json_form(Column("a", kind), "a").convert(value)


def test_times_that_know_their_zone_are_in_utc():
    """A moment with a zone is moved to UTC, and one without is left alone."""
    moment = datetime(2025, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    assert converted(sql.DateTime(timezone=True), moment) == datetime(2025, 1, 1, 10, tzinfo=UTC)
    assert converted(sql.DateTime(timezone=True), moment).tzinfo is UTC
    local = moment.replace(tzinfo=None)
    assert converted(sql.DateTime(), local) is local


@pytest.mark.parametrize("stored", ["1B4E28BA2FA111D2883F0016D3CCA427", UUID(int=0x1B4E << 112)])
def test_uuids_have_their_usual_form(stored):
    """A UUID is written in lower case with dashes, whether it came as text or not."""
    assert converted(sql.Uuid(), stored) == str(UUID(str(stored)))


def test_arrays_convert_what_they_hold():
    """In an array of any depth each value has the form it has alone, and NULL stays."""
    assert converted(postgresql.ARRAY(sql.Float), [[1.5, None], [float("nan"), 2.0]]) == (
        [[1.5, None], ["NaN", 2.0]]
    )
    assert converted(postgresql.ARRAY(sql.JSON), ["[1.0]", None]) == [msgspec.Raw(b"[1.0]"), None]
    assert converted(postgresql.ARRAY(sql.Integer), [[], [1]]) == [[], [1]]
