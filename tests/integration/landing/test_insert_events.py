"""Rows of events in tables of every type of column, on every database."""

import json
import math
import uuid
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Computed,
    Date,
    DateTime,
    Double,
    Enum,
    Float,
    Integer,
    Interval,
    LargeBinary,
    MetaData,
    Numeric,
    String,
    Table,
    TypeDecorator,
    Uuid,
    delete,
    event,
    func,
    select,
    text,
)
from sqlalchemy.exc import IntegrityError

from zeroeventhub import Event
from zeroeventhub.errors import ConfigurationError, ProtocolError
from zeroeventhub.landing import insert_events

UUID = uuid.UUID("12345678-1234-5678-1234-567812345678")


class Reversed(TypeDecorator):
    """Text that is kept backwards, and read forwards."""

    impl = String(40)
    cache_ok = True

    def process_bind_param(self, value, dialect):
        """Turn the text round."""
        return None if value is None else value[::-1]

    process_result_value = process_bind_param


class Lowered(TypeDecorator):
    """Text that the database makes small."""

    impl = String(40)
    cache_ok = True

    def bind_expression(self, bindvalue):
        """Let the database work on it."""
        return func.lower(bindvalue)


orders = Table(
    "orders of all kinds",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("customer", String(40), nullable=False),
    Column("amount", Numeric(20, 6, asdecimal=True)),
    Column("weight", Float),
    Column("placed", DateTime),
    Column("due", Date),
    Column("paid", Boolean),
    Column("lines", JSON),
    Column("key", Uuid),
    Column("kind", Enum("web", "shop", name="kind")),
    Column("seal", LargeBinary),
    Column("lasts", Interval),
    Column("order", Reversed),
    Column("source", String(10), server_default="feed"),
    Column("doubled", Integer, Computed("id * 2")),
)
small = Table(
    "small",
    MetaData(),
    Column("n", Integer, primary_key=True),
    Column("text", String(200)),
    Column("document", JSON(none_as_null=True)),
    mysql_charset="utf8mb4",
    mariadb_charset="utf8mb4",
)
flat = Table(
    "flat",
    MetaData(),
    Column("n", Integer, primary_key=True),
    Column("text", String(200)),
    Column("amount", Double),
    Column("price", Numeric(20, 6)),
    Column("paid", Boolean),
    Column("due", Date),
    mysql_charset="utf8mb4",
    mariadb_charset="utf8mb4",
)
stamped = Table(
    "stamped",
    MetaData(),
    Column("n", Integer, primary_key=True, autoincrement=False),
    Column("name", Lowered, default="Nobody"),
    Column("document", JSON),
)

FULL = b"""{"id": 7, "customer": "a\\tb\\\\\\n\\u00e5", "amount": 1234567890.123456, "weight": 3,
 "placed": "2026-01-01T02:00:00.5+02:00", "due": "2026-01-02", "paid": true,
 "lines": {"n": [1.10, "\\u00e5", null]}, "key": "12345678-1234-5678-1234-567812345678",
 "kind": "web", "seal": "aGk=", "lasts": "PT5S", "order": "abc", "source": "sql", "other": {}}"""

# SQLite has no decimal numbers, as SQLAlchemy says.
pytestmark = pytest.mark.filterwarnings("ignore:Dialect sqlite")


@pytest.fixture
def tables(engine):
    """Make the tables, on each database."""
    for table in (orders, small, flat, stamped):
        table.create(engine)
    return engine


def inserted(engine, table, events, row=None):
    """Insert events in a transaction, and read all rows."""
    with engine.begin() as connection:
        insert_events(connection, table, events, row)
    return stored(engine, table)


def stored(engine, table):
    """Read all rows of a table in the order of its key."""
    with engine.connect() as connection:
        key = next(iter(table.primary_key))
        return [one._asdict() for one in connection.execute(select(table).order_by(key))]


def test_value_of_every_type_arrives_as_its_column_has_it(tables):
    """Moments, dates, decimals, JSON and all others are what JSON says, and moments are in UTC."""
    (row,) = inserted(tables, orders, [Event(FULL)])
    assert row == {
        "id": 7,
        "customer": "a\tb\\\nå",
        "amount": Decimal("1234567890.123456"),
        "weight": 3.0,
        "placed": row["placed"],
        "due": date(2026, 1, 2),
        "paid": True,
        "lines": {"n": [1.1, "å", None]},
        "key": UUID,
        "kind": "web",
        "seal": b"hi",
        "lasts": timedelta(seconds=5),
        "order": "abc",
        "source": "sql",
        "doubled": 14,
    }
    # MariaDB keeps whole seconds, rounded or cut off.
    assert abs(row["placed"] - datetime(2026, 1, 1, 0, 0, 0, 500000)) <= timedelta(seconds=0.5)  # noqa: DTZ001 - as the column has it


def test_column_that_is_not_named_has_its_default(tables):
    """Rows that leave out different columns come in their order, with defaults, numbers or NULL."""
    events = [
        Event(b'{"customer":"a"}'),
        Event(b'{"customer":"b","source":"x"}'),
        Event(b'{"customer":"c","source":null,"paid":null}'),
        Event(b'{"customer":"d"}'),
    ]
    rows = inserted(tables, orders, events)
    found = [(row["id"], row["customer"], row["source"], row["paid"]) for row in rows]
    assert found == [
        (1, "a", "feed", None),
        (2, "b", "x", None),
        (3, "c", None, None),
        (4, "d", "feed", None),
    ]


def test_defaults_and_expressions_of_sqlalchemy_count(tables):
    """A default that is Python's, and a type that has the database work, are heeded."""
    events = [Event(b'{"n":1,"document":{"a":1}}'), Event(b'{"n":2,"name":"ADA"}')]
    rows = inserted(tables, stamped, events)
    assert rows == [
        {"n": 1, "name": "nobody", "document": {"a": 1}},
        {"n": 2, "name": "ada", "document": None},
    ]


@pytest.mark.parametrize(("table", "is_null"), [(small, True), (stamped, False)])
def test_null_in_a_column_of_json_is_as_the_column_wants_it(tables, table, is_null):
    """JSON's null is NULL in a column that wants it so, and JSON in another; absent is NULL."""
    inserted(tables, table, [Event(b'{"n":1,"document":null}'), Event(b'{"n":2}')])
    inserted(tables, table, [Event(b"0")], lambda _: {"n": 3, "document": None})
    with tables.connect() as connection:
        absent = select(table.c.n).where(text("document IS NULL"))
        assert set(connection.scalars(absent)) == ({1, 2, 3} if is_null else {2})


def test_row_is_made_by_a_function(tables):
    """A function makes rows of values that are Python's."""
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    (row,) = inserted(
        tables,
        orders,
        [Event.of({"who": "ada"})],
        lambda event: {"customer": event.data["who"], "placed": moment, "lines": [{"n": 1}]},
    )
    assert (row["customer"], row["placed"], row["lines"], row["source"]) == (
        "ada",
        moment.replace(tzinfo=None),
        [{"n": 1}],
        "feed",
    )


def test_event_lands_whole_as_the_json_it_is(tables):
    """Bytes that a function gives to a column of JSON are JSON."""
    (row,) = inserted(
        tables, small, [Event(b'{"a": [1, "\xc3\xa5"]}')], lambda one: {"document": one.raw}
    )
    assert row == {"n": 1, "text": None, "document": {"a": [1, "å"]}}


REFUSED = [
    (b"[1]", "Expected `object`"),
    (b'"secret"', "Expected `object`"),
    (b"null", "Expected `object`"),
    (b'{"id":8}', "missing required field `customer`"),
    (b'{"id":8,"customer":null}', "customer"),
    (b'{"id":"secret","customer":"a"}', "Expected `int"),
    (b'{"customer":"a","placed":"secret"}', "Invalid RFC3339"),
    (b'{"customer":"a","placed":"0001-01-01T00:00:00+02:00"}', "column 'placed'"),
    (b'{"customer":"a","amount":"secret"}', "Invalid decimal"),
    (b'{"customer":"a","order":5}', "column 'order'"),
    (b'{"customer":"a","key":"secret"}', "Invalid UUID"),
]


@pytest.mark.parametrize(("raw", "reason"), REFUSED, ids=lambda value: str(value)[:40])
def test_event_that_does_not_fit_is_named_by_its_place(sqlite, raw, reason):
    """What does not fit is told with its place in the page and its column, and without its data."""
    orders.create(sqlite)
    fits = Event(b'{"customer":"secret"}')
    with sqlite.begin() as connection, pytest.raises(ProtocolError, match=reason) as refused:
        insert_events(connection, orders, [fits, fits, Event(raw)])
    assert str(refused.value).startswith("Event 3 of the page does not fit table 'orders of all")
    assert "secret" not in str(refused.value)
    assert refused.value.__suppress_context__
    assert refused.value.__cause__ is None
    assert stored(sqlite, orders) == []


def test_place_counts_over_rows_that_leave_out_other_columns(sqlite):
    """An event's place is that in the page, whatever others before it have left out."""
    orders.create(sqlite)
    raws = [b'{"customer":"a"}', b'{"customer":"b","source":"x"}']
    raws.append(b'{"customer":"c","source":"x","order":5}')
    with sqlite.begin() as connection, pytest.raises(ProtocolError, match="Event 3 of the page"):
        insert_events(connection, orders, [Event(raw) for raw in raws])


def test_event_that_names_no_column_is_refused(sqlite):
    """Where all columns may be left out, an event about something else is refused all the same."""
    small.create(sqlite)
    with sqlite.begin() as connection, pytest.raises(ProtocolError, match="no key that is a col"):
        insert_events(connection, small, [Event(b'{"N":1,"data":{"n":1}}')])
    assert [row["text"] for row in inserted(sqlite, small, [Event(b'{"text":null}')])] == [None]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"customer": "a", "nope": 1}, "'nope' is no column"),
        ({"customer": "a", "doubled": 1}, "'doubled' is no column"),
        ({}, "no value"),
        ({"id": 1}, "column 'customer' needs a value"),
        ({"customer": "a", "lines": object()}, "column 'lines'"),
        ({"customer": "a", "placed": "secret"}, "column 'placed'"),
    ],
)
def test_row_that_does_not_fit_is_a_mistake_of_its_maker(sqlite, row, reason):
    """A row that a function has made, and that does not fit, is the function's fault."""
    orders.create(sqlite)
    with sqlite.begin() as connection, pytest.raises(ConfigurationError, match=reason) as refused:
        insert_events(connection, orders, [Event(b"1")], lambda _: row)
    assert "event 1 of the page" in str(refused.value)
    assert "secret" not in str(refused.value)


def test_function_that_raises_is_heard(sqlite):
    """What a function that makes rows raises is raised as it is."""
    small.create(sqlite)
    with sqlite.begin() as connection, pytest.raises(KeyError, match="n"):
        insert_events(connection, small, [Event(b"{}")], lambda event: {"n": event.data["n"]})


def test_row_that_the_database_refuses_is_an_error_of_sqlalchemy(tables):
    """A key that is there twice is SQLAlchemy's IntegrityError, whatever way rows are sent."""
    with tables.connect() as connection, pytest.raises(IntegrityError):
        insert_events(connection, small, [Event(b'{"n":1}'), Event(b'{"n":1}')])


def test_transaction_begins_with_the_rows(tables):
    """Rows that are the first of a connection are there when it commits, and gone when it not."""
    with tables.connect() as connection:
        insert_events(connection, small, [Event(b'{"n":1}')])
        connection.commit()
        insert_events(connection, small, [Event(b'{"n":2}')])
        connection.rollback()
    assert [row["n"] for row in stored(tables, small)] == [1]


def test_page_without_events_writes_nothing(tables):
    """No event, no row."""
    assert inserted(tables, small, []) == []


def test_page_is_one_statement(tables):
    """A page is sent at once, and on PostgreSQL goes around SQLAlchemy by COPY."""
    seen = []
    event.listen(tables, "before_cursor_execute", lambda *told: seen.append((told[2], told[5])))
    events = [Event(b'{"n":%d}' % number) for number in range(1, 50)]
    with tables.begin() as connection:
        insert_events(connection, small, events)
    if tables.dialect.name == "postgresql":
        assert seen == []
    else:
        ((statement, many),) = seen
        assert statement.startswith("INSERT INTO small")
        assert many
    assert len(stored(tables, small)) == 49


json_data = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=6),
    lambda data: (
        st.lists(data, max_size=3) | st.dictionaries(st.text(max_size=4), data, max_size=3)
    ),
    max_leaves=6,
)
# PostgreSQL has no place for the character with number 0.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)


@given(st.lists(st.tuples(st.none() | texts, json_data), max_size=6))
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_text_and_json_arrive_unchanged(tables, rows):
    """Whatever characters are in texts and documents, they are read as they were sent."""
    sent = [
        {"n": number, "text": words, "document": document}
        for number, (words, document) in enumerate(rows, start=1)
        if "\\u0000" not in json.dumps(document)
    ]
    with tables.begin() as connection:
        connection.execute(delete(small))
    got = inserted(tables, small, [Event.of(row) for row in sent])
    assert got == sent


odd_texts = st.sampled_from(
    [
        "",
        " ",
        "null",
        "NULL",
        "\\N",
        "\\.",
        '"',
        '""',
        "a,b",
        "],[",
        "]\n[",
        "a\r\nb",
        "\\n",
        "\t",
        "\x7f",
    ]
)
flat_rows = st.fixed_dictionaries(
    {},
    optional={
        "text": st.none() | odd_texts | st.lists(odd_texts | texts, max_size=4).map("".join),
        "amount": st.none() | st.floats(-1e15, 1e15) | st.integers(-(2**53), 2**53),
        "price": st.none() | st.integers(-(10**9), 10**9).map(lambda number: number / 64),
        "paid": st.none() | st.booleans(),
        "due": st.none() | st.dates(date(1000, 1, 1)).map(date.isoformat),
    },
)


@given(st.lists(flat_rows, max_size=6))
@example([{"text": 'say "hi" \\ there'}, {"text": "\\", "amount": 1e16}])
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_flat_rows_arrive_unchanged(tables, rows):
    """Rows without documents arrive as they were sent, whatever separates them on the way."""
    sent = [{"n": number, **row} for number, row in enumerate(rows, start=1)]
    with tables.begin() as connection:
        connection.execute(delete(flat))
    got = inserted(tables, flat, [Event.of(row) for row in sent])
    absent = dict.fromkeys(("text", "amount", "price", "paid", "due"))
    due = [row.get("due") and date.fromisoformat(row["due"]) for row in rows]
    assert got == [{**absent, **row, "due": day} for row, day in zip(sent, due, strict=True)]


def test_row_that_a_function_made_is_written_by_the_driver(tables):
    """What JSON has no word for arrives, where a function has made it."""
    amount = math.inf if tables.dialect.name == "postgresql" else 2.5
    made = {"text": "a", "amount": amount, "price": Decimal("1.5"), "due": date(2026, 1, 2)}
    (row,) = inserted(tables, flat, [Event(b"0")], lambda _: made)
    assert row == {"n": 1, "paid": None, **made}


@pytest.mark.parametrize("paid", ["yes", 2, "t"])
def test_value_that_is_neither_true_nor_false_is_refused(tables, paid):
    """A column of booleans takes none of the words that a database might take for one."""
    with tables.begin() as connection, pytest.raises(ConfigurationError, match="column 'paid'"):
        insert_events(connection, flat, [Event(b"0")], lambda _: {"paid": paid})
    with tables.begin() as connection, pytest.raises(ProtocolError, match="Expected `bool"):
        insert_events(connection, flat, [Event.of({"paid": paid})])
    assert stored(tables, flat) == []


def test_quotes_are_copied_without_the_driver(postgresql, monkeypatch):
    """Quotes and backslashes do not keep rows from being written all at once."""
    flat.create(postgresql)
    rows = []
    monkeypatch.setattr("psycopg.Copy.write_row", lambda _, row: rows.append(row))
    (row,) = inserted(postgresql, flat, [Event.of({"text": 'a "b" \\'})])
    assert row["text"] == 'a "b" \\'
    assert rows == []
