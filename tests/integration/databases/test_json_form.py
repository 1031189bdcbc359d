"""The JSON form of every SQL type, made by Python or, to the same byte, by PostgreSQL."""

import enum
import json
import re
import uuid
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path

import pytest
import sqlalchemy as sa
from cloudevents.core.v1.event import CloudEvent
from harness.engines import connected
from harness.statements import add, execute
from harness.tables import event_table
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.dialects import mysql, postgresql

from zeroeventhub import FIRST, TableFeed
from zeroeventhub.errors import ConfigurationError, Diverged, FeedFailure

DOCUMENT = Path(__file__).parents[3] / "docs" / "json.md"


class State(enum.Enum):
    """A state whose label in the database is its name."""

    shipped = 1
    paid = 2


UUID = uuid.UUID("6f1d9d5e-6c8c-4f0e-9d4b-0d6b1f0a2c3e")
MOMENT = datetime(2013, 1, 1, 10, 0, 0, 500000, tzinfo=UTC)

# By the first cell of a row of the document: a type, and the value that its example shows.
EVERYWHERE = {
    "any, NULL": (sa.Integer(), None),
    "SMALLINT, INTEGER, BIGINT": (sa.BigInteger(), 9007199254740993),
    "BOOLEAN": (sa.Boolean(), True),
    "REAL, DOUBLE PRECISION, FLOAT": (sa.Float(), 0.5),
    "VARCHAR, TEXT, CHAR": (sa.Text(), "Zoë"),
    "ENUM": (sa.Enum(State), State.shipped),
    "UUID": (sa.Uuid(), UUID),
    "TIMESTAMP WITH TIME ZONE": (
        sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb"),
        MOMENT,
    ),
    "TIMESTAMP": (sa.DateTime(), datetime(2013, 1, 1, 10)),  # noqa: DTZ001 - without a zone
    "DATE": (sa.Date(), date(2013, 1, 1)),
    "TIME": (sa.Time(), time(10)),
    "INTERVAL": (sa.Interval(), timedelta(days=1, hours=1)),
    "BYTEA, BLOB": (sa.LargeBinary(), b"\x00\x01\xff"),
}
ON_SERVERS = {
    # SQLite stores a NUMERIC as a float, and drops trailing zeros.
    "NUMERIC, DECIMAL": (sa.Numeric(10, 2), Decimal("12.50")),
    "JSON, JSONB": (
        sa.JSON().with_variant(postgresql.JSONB(), "postgresql"),
        sa.text("""'{"a": 1.10}'"""),
    ),
}
POSTGRESQL = {
    "ARRAY of any of these": (sa.ARRAY(sa.Numeric()), [Decimal("1.5"), None]),
    "INET, CIDR, MACADDR, BIT": (postgresql.INET(), "10.0.0.1"),
}
MARIADB = {"SET": (mysql.SET("gift", "urgent"), {"urgent", "gift"})}


ROW = re.compile(r"^\| ([A-Z].*?|any, NULL) \| .* \| `(.*)` \|$", re.MULTILINE)
DOCUMENTED = {name: json.loads(example) for name, example in ROW.findall(DOCUMENT.read_text())}
"""The examples of the document, by the first cell of their row."""


def published(engine, types, values, **options):
    """Publish one row and return the event's raw data."""
    table = event_table("log", **types)
    table.metadata.create_all(engine)
    execute(engine, sa.insert(table).values(values))
    feed = TableFeed(table, **{"data": list(types), **options}).bind(engine)
    return feed.read(0, FIRST, 1).events[0]


def test_every_type_has_its_documented_form(engine):
    """Every row of the document shows what a feed really writes, and none is without a test."""
    assert DOCUMENTED.keys() == {*EVERYWHERE, *ON_SERVERS, *POSTGRESQL, *MARIADB}
    more = {"sqlite": {}, "postgresql": ON_SERVERS | POSTGRESQL}
    examples = EVERYWHERE | more.get(engine.dialect.name, ON_SERVERS | MARIADB)
    event = published(
        engine,
        {name: kind for name, (kind, _) in examples.items()},
        {name: value for name, (_, value) in examples.items()},
    )
    assert event.data == {name: DOCUMENTED[name] for name in examples}


def test_arrays_follow_their_elements(postgresql):
    """The elements of an array have the form of their own type, at any depth."""
    zoned, grid = sa.DateTime(timezone=True), [[1, 2], [3, 4]]
    arrays = {
        "moments": (sa.ARRAY(zoned), [MOMENT, None], ["2013-01-01T10:00:00.500000Z", None]),
        "states": (sa.ARRAY(sa.Enum(State)), [State.shipped], ["shipped"]),
        "grid": (sa.ARRAY(sa.Integer, dimensions=2), grid, grid),
        "floats": (sa.ARRAY(sa.Float), [float("nan"), 1.5], ["NaN", 1.5]),
    }
    types, values, forms = (
        {name: case[place] for name, case in arrays.items()} for place in range(3)
    )
    assert published(postgresql, types, values).data == forms


STORED = [
    '{"b": 1.10,\n "a": 123456789012345678901234567890, "a": 1e400}',
    "[1e400, -0, 2E+5, 1e-999]",
    '"\u2028 \\n\\u00e5 \\/"',
    "\r\n\tnull\r\n",
    "[ ]",
    "null",
]


def test_stored_json_is_published_as_it_is(engine):
    """Digits, order, repeated keys and white space of a JSON column stay, on one line."""
    table = sa.Table("log", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True))
    table.append_column(sa.Column("data", sa.JSON().with_variant(sa.Text(), "sqlite")))
    table.metadata.create_all(engine)
    with engine.begin() as connection:
        for stored in STORED:
            row = {"data": sa.literal(stored, sa.Text)}
            if engine.dialect.name == "postgresql":
                row = {"data": sa.cast(row["data"], sa.JSON)}
            connection.execute(sa.insert(table).values(row))
    table.c.data.type = sa.JSON()
    for options in ({"data": "data"}, {"data": ["data"]}, {"data": "data", "headers": {"n": "id"}}):
        feed = TableFeed(table, append_only=True, **options).bind(engine)
        found = [event.raw.decode() for event in feed.read(0, FIRST, 9).events]
        whole = '{{"data":{}}}' if isinstance(options["data"], list) else "{}"
        expected = [whole.format(stored.replace("\n", " ").replace("\r", " ")) for stored in STORED]
        assert found == expected


@pytest.mark.parametrize("stored", ["{oops", '"a\nb"', "1 2", "1,[2", '"\\ud800"'])
def test_text_that_is_not_json_is_an_error_on_postgresql(postgresql, stored):
    """A column of text that is declared JSON is read as JSON that is Unicode, or not at all."""
    execute(postgresql, "CREATE TABLE log (id serial PRIMARY KEY, data text)")
    with pytest.raises(FeedFailure):
        published(
            postgresql, {"data": sa.JSON()}, {"data": sa.literal(stored, sa.Text)}, data="data"
        )


@pytest.mark.parametrize(
    ("kind", "value", "raw"),
    [(sa.JSON(), sa.null(), b"null"), (sa.Text(), 'a "b"', b'"a \\"b\\""')],
    ids=["null", "text"],
)
def test_column_alone_is_the_data(engine, kind, value, raw):
    """A row without data is an event whose data is null, and a text as data is a JSON string."""
    assert published(engine, {"data": kind}, {"data": value}, data="data").raw == raw


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (sa.DateTime(), "'yesterday'"),
        (sa.Boolean(), "'false'"),
        (sa.Boolean(), "x'00'"),
        (sa.LargeBinary(), "'aGk='"),
    ],
    ids=repr,
)
def test_value_that_its_column_does_not_declare_is_an_error(sqlite, kind, value):
    """A row that does not hold what its column declares is an error of the feed."""
    with pytest.raises(FeedFailure, match="position 0"):
        published(sqlite, {"x": kind}, {"x": sa.text(value)})


def test_timestamp_that_is_none_is_an_error(mariadb):
    """MariaDB may hold timestamps that no calendar has: errors of pages and lags name the row."""
    table = event_table("log", at=sa.DateTime())
    table.metadata.create_all(mariadb)
    with connected(mariadb.url, init_command="SET sql_mode = ''") as lenient:
        execute(lenient, "INSERT INTO log (at) VALUES (0)")
    feed = TableFeed(table, data=["at"], time="at").bind(mariadb)
    with pytest.raises(FeedFailure, match="position 1"):
        feed.read(0, FIRST, 1)
    with pytest.raises(FeedFailure, match="position 1"):
        feed.lag(0, FIRST)


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+02:00", "9999-12-31T23:59:59-02:00"])
def test_time_that_has_no_form_in_utc_is_an_error(any_engine, text):
    """A time that is outside of all years in UTC is an error that names the row."""
    table = event_table("log", at=sa.Text())
    table.metadata.create_all(any_engine)
    add(any_engine, table, [{"at": text}])
    feed = TableFeed(table, data=["at"], time="at", cloudevents=True).bind(any_engine)
    for ask in (lambda: feed.read(0, FIRST, 1), lambda: feed.lag(0, FIRST)):
        with pytest.raises(FeedFailure, match="position 1"):
            ask()


def test_time_that_is_none_of_a_day_is_published_as_it_is(mariadb):
    """A TIME of MariaDB below 0 or over a day keeps its hours, and any other one its form."""
    texts = {
        "longest": "838:59:59",
        "next_day": "24:00:00",
        "before": "-10:00:00.500000",
        "just_before": "-00:00:00.000001",
        "last": "23:59:59",
    }
    types = {name: mysql.TIME(fsp=6) for name in texts} | {"longest": sa.Time()}
    values = {name: sa.literal(text, sa.Text) for name, text in texts.items()}
    assert published(mariadb, types, values).data == texts


def test_expressions_are_published_by_name(engine):
    """Any SQL expression can be a part of the data, under a name of its own."""
    column = sa.column("n", sa.Integer)
    event = published(
        engine, {"n": sa.Integer()}, {"n": 4}, data={"twice": column * 2, "big": column > 3}
    )
    assert event.data == {"twice": 8, "big": True}


def test_every_float_has_a_form(sqlite):
    """Any float is JSON that means the same."""
    numbers = [float("inf"), float("-inf"), 5e-324, 1.7976931348623157e308, -1.5, 0.1, 1e16, 1e22]
    values = {f"n{place}": number for place, number in enumerate(numbers)}
    event = published(sqlite, dict.fromkeys(values, sa.Float()), values)
    assert [repr(float(found)) for found in event.data.values()] == [*map(repr, numbers)]


def test_cloudevents_envelope_is_valid(engine):
    """The envelope is one that the CloudEvents SDK accepts, with every attribute in its place."""
    types = {
        "identity": sa.Uuid(),
        "kind": sa.String(20),
        "at": EVERYWHERE["TIMESTAMP WITH TIME ZONE"][0],
        "customer": sa.Integer(),
        "amount": sa.Numeric(10, 2),
    }
    values = {"identity": UUID, "kind": "placed", "at": MOMENT, "customer": 7, "amount": 3}
    names = {"id": "identity", "type": "kind", "time": "at", "key": "customer"}
    event = published(engine, types, values, data=["amount"], cloudevents="/shop", **names).data
    body = event.pop("data")
    CloudEvent({**event, "time": datetime.fromisoformat(event["time"])}, body)
    assert event == {
        "specversion": "1.0",
        "id": str(UUID),
        "source": "/shop",
        "type": "placed",
        "time": "2013-01-01T10:00:00.500000Z",
        "partitionkey": "7",
        "datacontenttype": "application/json",
    }


def test_cloudevents_has_defaults_for_null(engine):
    """Where id or type is NULL, position and table name stand in; time and key are left out."""
    types = {"i": sa.String(9), "t": sa.String(9), "at": sa.DateTime(), "k": sa.String(9)}
    event = published(
        engine, types, {"i": ""}, data=["k"], id="i", type="t", time="at", key="k", cloudevents=True
    ).data
    assert event == {
        "specversion": "1.0",
        "id": "1",
        "source": "/log",
        "type": "log",
        "datacontenttype": "application/json",
        "data": {"k": None},
    }


# Which types have a form, as feeds are made.


class Point(sa.types.UserDefinedType):
    """Be a type that this library does not know."""

    cache_ok = True


def feed_over(kind):
    """Make a feed over a column of a type."""
    identity = sa.Column("id", sa.Integer, primary_key=True)
    table = sa.Table("log", sa.MetaData(), identity, sa.Column("price", kind))
    return TableFeed(table, data=["price"])


@pytest.mark.parametrize(
    "kind",
    [postgresql.HSTORE(), postgresql.MONEY(), postgresql.INT4RANGE(), sa.types.NullType(), Point()],
    ids=repr,
)
def test_type_without_a_form_is_refused(kind):
    """A column of a type that is no number, text, time, bytes or JSON is named, with what to do."""
    for one, words in ((kind, "cast"), (sa.ARRAY(kind), "ARRAY")):
        with pytest.raises(ConfigurationError, match=f"^'price' has the SQL type .*{words}"):
            feed_over(one)


def test_types_are_looked_through():
    """Of a decorator, a domain and an array, the stored type decides whether a feed takes it."""
    for kind in [sa.PickleType(), postgresql.DOMAIN("email", sa.Text()), sa.ARRAY(sa.JSON)]:
        assert feed_over(kind)
    for kind in [postgresql.DOMAIN("d", postgresql.HSTORE()), sa.ARRAY(Point, dimensions=3)]:
        with pytest.raises(ConfigurationError, match="'price' has the SQL type"):
            feed_over(kind)
    unknown = sa.column("x") + sa.column("y")
    table = sa.Table("log", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True))
    with pytest.raises(ConfigurationError, match="'sum'"):
        TableFeed(table, data={"sum": unknown})
    TableFeed(table, data={"sum": sa.cast(unknown, sa.Text)})


ROWS = 40


letters = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
naive = st.datetimes()
aware = st.datetimes(
    datetime(1, 1, 2),  # noqa: DTZ001 - Hypothesis wants bounds without a zone
    datetime(9999, 12, 30),  # noqa: DTZ001
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30))]),
)
short = st.integers(-(2**31), 2**31 - 1)
kinds = {
    "small": (sa.SmallInteger(), st.integers(-(2**15), 2**15 - 1)),
    "count": (sa.Integer(), short),
    "large": (sa.BigInteger(), st.integers(-(2**63), 2**63 - 1)),
    "paid": (sa.Boolean(), st.booleans()),
    "amount": (sa.Numeric(), st.decimals(allow_nan=False, allow_infinity=False, places=5)),
    "note": (sa.Text(), letters),
    "code": (sa.CHAR(5), st.sampled_from(["a", "abcde", ""])),
    "state": (sa.Enum(State), st.sampled_from(State)),
    "uuid": (sa.Uuid(), st.uuids()),
    "seen": (sa.DateTime(timezone=True), aware),
    "placed": (sa.DateTime(), naive),
    "day": (sa.Date(), st.dates()),
    "address": (postgresql.INET(), st.ip_addresses().map(str)),
    "document": (
        postgresql.JSONB(),
        st.dictionaries(letters, short | letters | st.none(), max_size=3),
    ),
}
rows = st.fixed_dictionaries({name: st.none() | values for name, (_, values) in kinds.items()})
metadata = sa.MetaData()
log = sa.Table(
    "log",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    *(sa.Column(name, kind) for name, (kind, _) in kinds.items()),
)


def envelope(*columns, source):
    """Options of CloudEvents whose id, type, key and time are columns."""
    attributes = dict(zip(("id", "type", "key", "time"), columns, strict=True))
    return {"data": "document", "cloudevents": source, **attributes}


forms = {
    "all columns": {},
    "some by name": {
        "data": {
            "a \"'%:b": "note",
            "twice": sa.cast(log.c.count, sa.BigInteger) * 2,
            "c\\": "seen",
        }
    },
    "document alone": {"data": "document"},
    "an envelope": {"data": ["note", "count"], "cloudevents": "/shop?a=%1:b'\"\\"},
    "an envelope of text": envelope("note", "state", "code", "seen", source=True),
    "an envelope of numbers": envelope("uuid", "count", "amount", "placed", source="x"),
}


def events(engine, table=log, **options):
    """Return the events of a table, as JSON."""
    feed = TableFeed(table, **options).bind(engine)
    return [event.raw for event in feed.read(0, FIRST, ROWS).events]


def of_rows(engine, table=log, **options):
    """Return the same made by Python, as PostgreSQL makes no headers."""
    return events(engine, table, headers={"id": "id"}, **options)


@pytest.fixture
def oslo(postgresql):
    """A database whose sessions have a time zone of their own."""
    metadata.create_all(postgresql)
    options = {"options": "-c TimeZone=Europe/Oslo"}
    engine = sa.create_engine(postgresql.url, connect_args=options)
    yield engine
    engine.dispose()


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(rows, min_size=1, max_size=ROWS))
def test_postgresql_makes_the_same_json_as_python(oslo, values):
    """Whatever a row holds, PostgreSQL and Python make the same JSON of it."""
    with oslo.begin() as connection:
        connection.execute(sa.text("TRUNCATE log RESTART IDENTITY"))
        connection.execute(sa.insert(log), values)
    for options in forms.values():
        assert events(oslo, **options) == of_rows(oslo, **options)


def test_cursor_holds_in_the_history_that_it_was_given_for(oslo):
    """What a cursor holds of an event is what is compared with it when it is used."""
    add(oslo, log, [{"note": "å\n"}, {"note": "b"}])
    feeds = [TableFeed(log, **options).bind(oslo) for options in forms.values()]
    read = [(feed, feed.read(0, FIRST, 1).cursor) for feed in feeds]
    assert [len(feed.read(0, cursor, 1).events) for feed, cursor in read] == [1] * len(read)
    changed = {"note": "o", "document": {}, "count": 7, "seen": datetime.now(UTC)}
    execute(oslo, sa.update(log).where(log.c.id == 1).values(changed))
    for feed, cursor in read:
        with pytest.raises(Diverged):
            feed.read(0, cursor, 1)


@pytest.mark.parametrize("aware", [True, False])
@pytest.mark.parametrize("declared", [True, False])
def test_zone_is_that_of_the_table_and_not_of_its_declaration(oslo, *, aware, declared):
    """A moment is in UTC if the database knows its zone, or it is declared to have one."""

    def table(*, zone):
        identity = sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True)
        moment = sa.Column("at", sa.DateTime(timezone=zone))
        return sa.Table("moments", sa.MetaData(), identity, moment)

    real, said = table(zone=aware), table(zone=declared)
    real.create(oslo)
    moment = datetime(2020, 7, 1, 12, 30, 0, 120_000, tzinfo=UTC if aware else None)
    execute(oslo, sa.insert(real).values(at=moment))
    end = "Z" if aware or declared else ""
    (raw,) = events(oslo, said, data=["at"])
    assert [raw] == of_rows(oslo, said, data=["at"])
    assert raw.decode() == f'{{"at":"2020-07-01T12:30:00.120000{end}"}}'


@pytest.mark.parametrize("column", ["seen", "placed", "day"])
def test_time_without_a_form_is_an_error(oslo, column):
    """A moment or a day that ISO 8601 has no form for is refused by an error that says where."""
    for value in ["infinity", "-infinity", "0044-03-15 BC", "10001-01-01"]:
        execute(oslo, "TRUNCATE log", f"INSERT INTO log ({column}) VALUES ('{value}')")
        for read in (events, of_rows):
            with pytest.raises(FeedFailure, match=r"position \d"):
                read(oslo, data=[column])


def test_midnight_at_the_end_of_a_day_is_an_error(postgresql):
    """The time 24:00 of PostgreSQL is an error that says where the row is."""
    with pytest.raises(FeedFailure, match="position 0 or after it cannot be published: can't"):
        published(postgresql, {"x": sa.Time()}, {"x": sa.text("'24:00'")})


def test_sequenced_events_are_the_same(oslo):
    """With positions in a side table, PostgreSQL makes the same JSON as Python."""
    with oslo.begin() as connection:
        TableFeed(log, ordering="sequenced").install(connection)
        connection.execute(sa.insert(log), {"note": "å", "paid": True, "seen": datetime.now(UTC)})
    for one in ({**options, "ordering": "sequenced"} for options in forms.values()):
        assert events(oslo, **one) == of_rows(oslo, **one)
