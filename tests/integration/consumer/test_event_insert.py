"""Events become rows: what each column takes, and what does not fit a table."""

import uuid
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal

import pytest
from harness.engines import connected
from harness.landed import inserted, orders, small, stamped, stored
from harness.tables import event_table
from sqlalchemy import ARRAY, TIMESTAMP, DateTime, Float, Numeric, Text, cast, select, text

from zeroeventhub import Event, Page
from zeroeventhub.consumer.event_insert import LandingTable, insert_events, prepare_rows
from zeroeventhub.databases.bulk_insert import table_form
from zeroeventhub.errors import ConfigurationError, ProtocolError
from zeroeventhub.wire.ndjson import PageDecoder, encode_page

# SQLite has no decimal numbers, as SQLAlchemy says.


pytestmark = pytest.mark.filterwarnings("ignore:Dialect sqlite")
UUID = uuid.UUID("12345678-1234-5678-1234-567812345678")
FULL = b"""{"id": 7, "customer": "a\\tb\\\\\\n\\u00e5", "amount": 1234567890.123456, "weight": 3,
 "placed": "2026-01-01T02:00:00.5+02:00", "due": "2026-01-02", "paid": true,
 "lines": {"n": [1.10, "\\u00e5", null]}, "key": "12345678-1234-5678-1234-567812345678",
 "kind": "web", "seal": "aGk=", "opens": "10:00:00", "lasts": "PT5S",
 "order": "abc", "source": "sql", "other": {}}"""


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
        "opens": time(10),
        "doubled": 14,
    }
    # MariaDB keeps whole seconds, rounded or cut off.
    assert abs(row["placed"] - datetime(2026, 1, 1, 0, 0, 0, 500000)) <= timedelta(seconds=0.5)  # noqa: DTZ001 - as the column has it


def test_decimal_keeps_its_digits_that_python_is_to_read_as_a_float(engine):
    """A column of decimals takes all digits of a number or text, however Python reads them."""
    table = event_table("prices", price=Numeric(30, 4, asdecimal=False))
    table.create(engine)
    exact = "12345678901234567890.1234"
    inserted(engine, table, [Event(b'{"price":%b}' % exact.encode()), Event.of({"price": exact})])
    with engine.connect() as connection:
        found = connection.scalars(text("SELECT price FROM prices")).all()
    # SQLite stores a binary number.
    assert found == [float(exact) if engine.dialect.name == "sqlite" else Decimal(exact)] * 2


def test_array_takes_numbers_that_json_writes_in_two_ways(postgresql):
    """An array of floats or decimals takes whole numbers beside others, at any depth."""
    kinds = {"floats": ARRAY(Float), "decimals": ARRAY(Numeric), "grid": ARRAY(Float)}
    table = event_table("measured", **kinds)
    table.create(postgresql)
    raw = b'{"floats":[1.5,2,null],"decimals":[1.1,2,"0.12345678901234567890"],"grid":[[1],[2.5]]}'
    (row,) = inserted(postgresql, table, [Event(raw)])
    assert row["floats"] == [1.5, 2.0, None]
    assert row["decimals"] == list(map(Decimal, ["1.1", "2", "0.12345678901234567890"]))
    assert row["grid"] == [[1.0], [2.5]]


def test_array_with_what_is_no_number_is_refused(postgresql):
    """What is no number names its column, and not only the driver's complaint."""
    table = event_table("measured", decimals=ARRAY(Numeric))
    table.create(postgresql)
    with pytest.raises(ProtocolError, match="column 'decimals' does not take its value"):
        inserted(postgresql, table, [Event(b'{"decimals":[1,"secret"]}')])


@pytest.mark.parametrize("price", ['"NaN"', '"-Infinity"', "1e400"])
def test_decimal_that_sqlite_would_store_as_another_is_refused(sqlite, price):
    """SQLite has no decimals: one that a binary number cannot be is refused, and not made NULL."""
    table = event_table("prices", price=Numeric(30, 4))
    table.create(sqlite)
    with pytest.raises(ProtocolError, match="column 'price' does not take its value"):
        inserted(sqlite, table, [Event(b'{"price":%b}' % price.encode())])


IN_UTC = {
    "postgresql": {"options": "-c TimeZone=UTC"},
    "mariadb": {"init_command": "SET time_zone = '+00:00'"},
}
IN_INDIA = {
    "postgresql": {"options": "-c TimeZone=Asia/Kolkata"},
    "mariadb": {"init_command": "SET time_zone = '+05:30'"},
}
noted = event_table(
    "noted", at=DateTime(timezone=True).with_variant(TIMESTAMP(), "mysql", "mariadb")
)
TEN = datetime(2020, 1, 1, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    ("at", "row"),
    [
        ("2020-01-01T10:00:00", None),
        ("2020-01-01T12:00:00+02:00", None),
        ("", lambda _: {"at": TEN}),
        ("", lambda _: {"at": TEN.astimezone(timezone(timedelta(hours=2)))}),
    ],
)
def test_moment_is_the_same_in_sessions_of_all_zones(engine, at, row):
    """A moment is stored as the event says it, without a zone in UTC, whatever the session's."""
    noted.create(engine)
    name = engine.dialect.name
    with (
        connected(engine.url, **IN_INDIA.get(name, {})) as india,
        connected(engine.url, **IN_UTC.get(name, {})) as utc,
    ):
        inserted(india, noted, [Event.of({"at": at}), Event.of({"at": at})], row)
        moments = [one["at"].replace(tzinfo=UTC) for one in stored(utc, noted)]
        assert moments == [TEN, TEN]


def test_moment_of_a_program_without_a_zone_is_that_of_the_session(mariadb):
    """A program's TIMESTAMP without a zone is in the session's; it may not be beside one with."""
    noted.create(mariadb)
    local = TEN.replace(tzinfo=None)
    with connected(mariadb.url, **IN_INDIA["mariadb"]) as india:
        (found,) = inserted(india, noted, [Event.of(1)], lambda _: {"at": local})
        assert found["at"] == local
        moments = iter([local, TEN])
        with pytest.raises(ConfigurationError, match="a time zone, or none"):
            inserted(india, noted, [Event.of(1)] * 2, lambda _: {"at": next(moments)})


@pytest.mark.parametrize(("table", "is_null"), [(small, True), (stamped, False)])
def test_null_in_a_column_of_json_is_as_the_column_wants_it(tables, table, is_null):
    """JSON's null is NULL in a column that wants it so, and JSON in another; absent is NULL."""
    inserted(tables, table, [Event(b'{"n":1,"document":null}'), Event(b'{"n":2}')])
    inserted(tables, table, [Event(b"0")], lambda _: {"n": 3, "document": None})
    with tables.connect() as connection:
        absent = select(table.c.n).where(text("document IS NULL"))
        assert set(connection.scalars(absent)) == ({1, 2, 3} if is_null else {2})


def test_column_that_is_not_named_has_its_default(tables):
    """Rows that leave out different columns come in their order, with defaults, numbers or NULL."""
    a, b, c, d = ({"customer": name} for name in "abcd")
    sent = [a, {**b, "source": "x"}, {**c, "source": None, "paid": None}, d]
    rows = inserted(tables, orders, [*map(Event.of, sent)])
    assert [(row["id"], row["customer"]) for row in rows] == [*enumerate("abcd", start=1)]
    assert [row["source"] for row in rows] == ["feed", "x", None, "feed"]
    assert {row["paid"] for row in rows} == {None}


def test_row_is_made_by_a_function(tables):
    """A function makes rows of values that are Python's."""

    def row(event):
        moment = datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
        return {"customer": event.data["who"], "placed": moment, "lines": [{"n": 1}]}

    (landed,) = inserted(tables, orders, [Event.of({"who": "ada"})], row)
    found = [landed[name] for name in ("customer", "placed", "lines", "source")]
    assert found == ["ada", datetime(2026, 1, 1), [{"n": 1}], "feed"]  # noqa: DTZ001 - in UTC


REFUSED = [
    (b'"secret"', "Expected `object`"),
    (b'{"id":8}', "missing required field `customer`"),
    (b'{"id":"secret","customer":"a"}', "Expected `int"),
    (b'{"id":9223372036854775808,"customer":"a"}', r"Expected `int.* <= .* at `\$.id`"),
    (b'{"id":-123456789012345678901,"customer":"a"}', r"Expected `int.* >= .* at `\$.id`"),
    (b'{"customer":"a","placed":"secret"}', "Invalid RFC3339"),
    (b'{"customer":"a","order":5}', "column 'order'"),
    (b'{"customer":"a","opens":"10:00:00+02:00"}', "no timezone component"),
]


@pytest.mark.parametrize(("raw", "reason"), REFUSED, ids=lambda value: str(value)[:40])
def test_event_that_does_not_fit_is_named_by_its_place(sqlite, raw, reason):
    """An event that does not fit is named by its place and its column, without its data."""
    orders.create(sqlite)
    fits = Event(b'{"customer":"secret"}')
    with sqlite.begin() as connection, pytest.raises(ProtocolError, match=reason) as refused:
        insert_events(connection, orders, [fits, fits, Event(raw)])
    assert str(refused.value).startswith("Event 3 of the page does not fit table 'orders of all")
    assert "secret" not in str(refused.value)
    assert refused.value.__suppress_context__
    assert stored(sqlite, orders) == []


def test_place_counts_over_rows_that_leave_out_other_columns(sqlite):
    """An event's place is that in the page, whatever others before it have left out."""
    orders.create(sqlite)
    raws = [b'{"customer":"a"}'] * 2 + [b'{"customer":"b","source":"x"}']
    raws.append(b'{"customer":"c","source":"x","order":5}')
    with sqlite.begin() as connection, pytest.raises(ProtocolError, match="Event 4 of the page"):
        insert_events(connection, orders, [Event(raw) for raw in raws])


@pytest.mark.parametrize("table", ["orders", type("Order", (), {"__table__": orders})])
def test_what_is_no_table_is_refused(sqlite, table):
    """A name or a mapped class is refused, and the error says where a class has its table."""
    with sqlite.connect() as connection, pytest.raises(ConfigurationError, match="__table__"):
        insert_events(connection, table, [Event(FULL)])


def test_event_that_names_no_column_is_refused(sqlite):
    """Where all columns may be left out, an event about something else is refused all the same."""
    small.create(sqlite)
    with sqlite.begin() as connection, pytest.raises(ProtocolError, match="no key that is a col"):
        insert_events(connection, small, [Event(b'{"N":1,"data":{"n":1}}')])
    assert [row["text"] for row in inserted(sqlite, small, [Event(b'{"text":null}')])] == [None]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ([("customer", "a")], "it is list, and no dict"),
        (None, "it is NoneType, and no dict"),
        ({}, "it has no value"),
        ({"customer": "a", "nope": 1}, "'nope' is not a column"),
        ({"id": 1}, "column 'customer' needs a value"),
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


def test_rows_made_ahead_go_where_the_connection_has_the_table(sqlite):
    """Rows made ahead for a table do not miss the other schema that a connection knows it in."""
    body = encode_page(Page([Event(b'{"n":1}')], "1"))
    form = table_form(small, sqlite.dialect)
    decoder = PageDecoder(0, data_type=form.model)
    decoder.feed(body)
    events = decoder.page().events
    prepare_rows(form, events)
    small.create(sqlite)
    with sqlite.connect().execution_options(schema_translate_map={None: "aside"}) as connection:
        connection.exec_driver_sql("ATTACH ':memory:' AS aside")
        small.create(connection)
        insert_events(connection, small, events)
        assert connection.exec_driver_sql("SELECT n FROM aside.small").all() == [(1,)]


CLOUD_EVENT = {
    "specversion": "1.0",
    "id": "e1",
    "source": "/shop",
    "type": "placed",
    "time": "2013-01-01T12:00:00.5+02:00",
    "partitionkey": "c7",
    "data": {"n": 1},
}


@pytest.fixture
def landing(engine):
    """A landing table that has been created."""
    landing = LandingTable("landed")
    with engine.begin() as connection:
        landing.create(connection)
    return landing


def test_arrival_counts_within_a_partition(engine, landing):
    """Events are numbered 1, 2, 3 … within their partition, over any number of pages."""
    for partition, count in [(0, 2), (1, 1), (0, 2)]:
        with engine.begin() as connection:
            landing.land(connection, partition, [Event.of({"n": n}) for n in range(count)])
    places = [(row["partition"], row["arrival"]) for row in stored(engine, landing.table)]
    assert places == [(0, 1), (0, 2), (0, 3), (0, 4), (1, 1)]


NAMES = ("id", "type", "time", "key")
MOMENT = datetime(2013, 1, 1, 10, 0, 0, 500000, tzinfo=UTC)


def test_landing_table_has_transactions_whatever_the_engine_of_the_server(mariadb_url):
    """What is rolled back is not there, also where new tables have none by default."""
    landing = LandingTable("landed")
    with connected(mariadb_url, init_command="SET default_storage_engine = MyISAM") as engine:
        with engine.begin() as connection:
            landing.create(connection)
        with engine.connect() as connection:
            landing.land(connection, 0, [Event.of({"n": 1})])
            connection.rollback()
        assert stored(engine, landing.table) == []


def test_attributes_are_those_of_a_cloudevent(engine, landing):
    """Id, type, time and key of a CloudEvent have columns of their own, and others leave NULL."""
    others = [{"id": "x", "type": "y"}, "text", {"specversion": 1, "id": 5}]
    # A time without a zone is not read in the zone of whatever machine this is.
    moments = ["2013-01-01T12:00:00", "2013-01-01", "noon", 5]
    sent = [CLOUD_EVENT, *others, *({**CLOUD_EVENT, "time": one} for one in moments)]
    with engine.begin() as connection:
        landing.land(connection, 0, [Event.of(data) for data in sent])
    found = stored(engine, landing.table)
    assert [row["data"] for row in found] == sent
    times = [one and one.replace(tzinfo=one.tzinfo or UTC) for one in (r["time"] for r in found)]
    assert times == [MOMENT, *[None] * 7]
    assert [row["id"] for row in found] == ["e1", *[None] * 3, *["e1"] * 4]
    assert [found[0][name] for name in ("id", "type", "key")] == ["e1", "placed", "c7"]
    assert {row[name] for row in found[1:4] for name in NAMES} == {None}


def test_attributes_land_with_all_characters(engine, landing):
    """Ids, types and keys land whatever the character set is that a database has by default."""
    names = {"id": "Ж", "type": "\u2028", "partitionkey": "e\u0301 😀"}
    with engine.begin() as connection:
        landing.land(connection, 0, [Event.of({**CLOUD_EVENT, **names})])
    (found,) = stored(engine, landing.table)
    assert [found["id"], found["type"], found["key"]] == [*names.values()]


def test_numbers_land_with_all_their_digits(engine, landing):
    """Data is stored as it came, though Python could not hold its numbers."""
    raw = b'{"n":123456789012345678901234567890.12345678901234567890}'
    with engine.begin() as connection:
        landing.land(connection, 0, [Event(raw)])
    with engine.connect() as connection:
        stored = connection.scalar(select(cast(landing.table.c.data, Text)))
    assert stored.replace(" ", "") == raw.decode()
