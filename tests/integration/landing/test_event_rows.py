"""Rows of events, and what of an event does not fit a table."""

from datetime import UTC, datetime

import pytest
from harness.landed import inserted, orders, small, stored

from zeroeventhub import Event
from zeroeventhub.errors import ConfigurationError, ProtocolError
from zeroeventhub.landing import insert_events

# SQLite has no decimal numbers, as SQLAlchemy says.
pytestmark = pytest.mark.filterwarnings("ignore:Dialect sqlite")


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
    """An event that does not fit is named by its place and its column, without its data."""
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
    raws = [b'{"customer":"a"}'] * 2 + [b'{"customer":"b","source":"x"}']
    raws.append(b'{"customer":"c","source":"x","order":5}')
    with sqlite.begin() as connection, pytest.raises(ProtocolError, match="Event 4 of the page"):
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


def test_error_of_a_row_function_is_raised(sqlite):
    """What a function that makes rows raises is raised as it is."""
    small.create(sqlite)
    with sqlite.begin() as connection, pytest.raises(KeyError, match="n"):
        insert_events(connection, small, [Event(b"{}")], lambda event: {"n": event.data["n"]})
