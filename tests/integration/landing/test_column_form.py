"""How columns of every type take their values, on every database."""

import math
import uuid
from datetime import date, datetime, timedelta
from decimal import Decimal

import pytest
from harness.landed import flat, inserted, orders, small, stamped, stored
from sqlalchemy import select, text

from zeroeventhub import Event
from zeroeventhub.errors import ConfigurationError, ProtocolError
from zeroeventhub.landing import insert_events

UUID = uuid.UUID("12345678-1234-5678-1234-567812345678")

FULL = b"""{"id": 7, "customer": "a\\tb\\\\\\n\\u00e5", "amount": 1234567890.123456, "weight": 3,
 "placed": "2026-01-01T02:00:00.5+02:00", "due": "2026-01-02", "paid": true,
 "lines": {"n": [1.10, "\\u00e5", null]}, "key": "12345678-1234-5678-1234-567812345678",
 "kind": "web", "seal": "aGk=", "lasts": "PT5S", "order": "abc", "source": "sql", "other": {}}"""

# SQLite has no decimal numbers, as SQLAlchemy says.
pytestmark = pytest.mark.filterwarnings("ignore:Dialect sqlite")


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


def test_event_lands_whole_as_the_json_it_is(tables):
    """Bytes that a function gives to a column of JSON are JSON."""
    (row,) = inserted(
        tables, small, [Event(b'{"a": [1, "\xc3\xa5"]}')], lambda one: {"document": one.raw}
    )
    assert row == {"n": 1, "text": None, "document": {"a": [1, "å"]}}


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
