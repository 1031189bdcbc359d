"""The checks of the conformance kit: they find planted faults, and pass right feeds."""

from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
from harness.checked import check, outcomes
from harness.mutant_publishers import (
    MUTANTS,
    MUTANTS_OF_LOGS,
    UNUSUAL,
    answered,
    log_publisher,
    publisher,
    status,
    swapped,
)
from harness.readers import mounted
from harness.shop import metadata, orders
from harness.statements import add
from harness.waiting import meanwhile
from harness.web import serving
from sqlalchemy import MetaData
from starlette.applications import Starlette

from zeroeventhub import EventLog, NewEvent, TableFeed, feed_routes
from zeroeventhub.conformance import all_checks

EVERYTHING = pytest.mark.test_all


def place(engine, size, first=0):
    """Append orders with everything that an event can have."""
    metadata.create_all(engine)
    began = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [
        {
            "part": number % 2,
            "kind": ("order.placed", "order.paid", "order.sent")[number % 3],
            "customer": f"c{number % 7}",
            "placed": began + timedelta(minutes=number),
            "data": {"n": number, "text": "line\u2028break"},
        }
        for number in range(first, first + size)
    ]
    add(engine, orders, rows)


def check_table(engine, left_out=()):
    """Check the feed of a table that shows all that an event can have, but for some things."""
    metadata.create_all(engine)
    columns = {"data": "data", "type": "kind", "time": "placed", "id": "id", "partition": "part"}
    columns |= {"headers": {"customer": "customer"}, "cloudevents": True}
    columns = {name: column for name, column in columns.items() if name not in left_out}
    partitions = 2 if "partition" in columns else None
    schemas = {"order.paid": {"type": "object"}, "ordet/sålt": {"type": "object"}}
    feed = TableFeed(orders, partitions=partitions, schemas=schemas, **columns)
    with mounted(feed, engine, arrow=True) as url:
        return check(url)


OF_KEYS = {f"key-history{what}" for what in ("", "-pages", "-nothing", "-malformed")}
"""Checks of what only a feed with versions has."""

WRITING = {name for name, check in all_checks().items() if check.writes}
"""Checks that append events, and run only where they may."""

OF_FILES = {"segments", "segments-end", "segments-malformed"}
"""Checks of what only a feed has whose archive is shared."""


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgresql", marks=EVERYTHING)])
def test_our_publisher_conforms(request, database):
    """A table's feed fails no check, and what is skipped is what it does not have."""
    engine = request.getfixturevalue(database)
    place(engine, 200)
    results = check_table(engine)
    assert outcomes(results, "fail") == outcomes(results, "note") == {}
    lacking = {"closed", "token-rotation", "event-types-unlisted", *OF_KEYS, *OF_FILES}
    assert set(outcomes(results, "skip")) == lacking


OPTIONAL = ["type", "time", "id", "partition", "headers", "cloudevents"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "left_out",
    [
        OPTIONAL,
        ["type"],
        *(pytest.param([one], marks=EVERYTHING) for one in OPTIONAL if one != "type"),
        pytest.param(["events"], marks=EVERYTHING),
    ],
    ids=" ".join,
)
def test_our_publisher_conforms_without(sqlite, left_out):
    """A table's feed without some of the optional columns, or without events, fails no check."""
    if left_out != ["events"]:
        place(sqlite, 60)
    results = check_table(sqlite, left_out)
    assert outcomes(results, "fail") == outcomes(results, "note") == {}


def test_filter_that_is_not_listed_is_found(sqlite):
    """A publisher that filters by event-types has to say so in its discovery."""
    place(sqlite, 20)
    application = Starlette(routes=feed_routes("/orders", TableFeed(orders, data="data"), sqlite))

    async def filtering(scope, receive, send):
        if b"event-types=" in scope.get("query_string", b""):
            query = scope["query_string"].replace(b"_first", b"_last")
            scope = {**scope, "query_string": query}
        await application(scope, receive, send)

    with serving(filtering) as url:
        found = check(f"{url}/orders", only=["event-types-unlisted"])
    assert found["event-types-unlisted"].outcome == "fail"


@pytest.mark.slow
def test_our_log_conforms(any_engine):
    """A log's feed with the history of keys fails no check, and nothing is appended to it."""
    tables = MetaData()
    log = EventLog(tables, "log", partitions=2, append=True)
    tables.create_all(any_engine)
    with any_engine.begin() as connection:
        for number in range(60):
            new = NewEvent(f"kind{number % 3}", {"n": number, "half": number / 2})
            log.append_to(connection, f"k{number % 4}", [new], expected_version=number // 4)
        log.append(connection, [NewEvent("kind0", {"n": n}, key="k0") for n in range(9)])
    feed = log.feed(cloudevents=True, key_history=True)
    with mounted(feed, any_engine) as url:
        results = check(url)
    assert outcomes(results, "fail") == {}
    assert not OF_KEYS & set(outcomes(results, "skip"))
    assert not WRITING & set(results)


@pytest.mark.slow
def test_publisher_that_is_written_to_conforms(sqlite):
    """Events that come in while a feed is checked make nothing fail."""
    metadata.create_all(sqlite)
    numbers = count(0, 4)
    with meanwhile(lambda: place(sqlite, 4, next(numbers)), pause=0.01):
        results = check_table(sqlite)
    assert outcomes(results, "fail") == {}


@pytest.mark.slow
def test_publisher_in_memory_conforms():
    """The feed that the mutants are made from fails no check."""
    with serving(publisher()) as url:
        results = check(f"{url}/feed")
    assert outcomes(results, "fail") == {}
    assert set(outcomes(results, "skip")) == {"closed", "token-rotation", "event-types-unlisted"}


@pytest.mark.slow
@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_publisher_conforms(name):
    """A publisher that does what few do, and the specification allows, fails no check."""
    with serving(publisher(feed=UNUSUAL[name])) as url:
        results = check(f"{url}/feed")
    assert outcomes(results, "fail") == {}
    assert len(outcomes(results, "pass")) > 100


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name):
    """A publisher that breaks one rule fails the check of that rule."""
    caught_by, _ = MUTANTS[name]
    with serving(publisher(MUTANTS[name])) as url:
        result = check(f"{url}/feed", only=[caught_by])[caught_by]
    assert result.outcome == "fail", result.reason
    assert result.answer is not None


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("key-history", swapped(b'"partitionkey":"0-0"', b'"partitionkey":"\\ud800"')),
        ("v1-several-cursors", swapped(b'"partition":1', b'"partition":[]', "/feed")),
    ],
)
def test_answer_that_no_check_expects_fails_its_check_alone(name, fault):
    """An answer of any form is a failed check, and the checks after it are made."""
    with serving(publisher(("", fault))) as url:
        results = check(f"{url}/feed", only=[name, "caching-discovery"])
    assert (results[name].outcome, results["caching-discovery"].outcome) == ("fail", "pass")
    assert "is not what the check expects" in results[name].reason


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("reading-again", b'"n":7,', b'"n":1e99999999999999999999,'),
        ("key-history", b'"n":0,', b'"n":1e999,'),
        ("cursor-of-time", b"2026-01-01T00:00:00+00:00", b"0001-01-01T00:00:00+14:00"),
    ],
)
def test_what_python_cannot_hold_is_no_fault(name, old, new):
    """Numbers of any size, and times at the edge of the calendar, are the publisher's to send."""

    def change(exchange):
        exchange.body = exchange.body.replace(old, new)

    with serving(publisher(("", answered(change)))) as url:
        result = check(f"{url}/feed", only=[name])[name]
    assert result.outcome == "pass", result.reason


@pytest.mark.parametrize("options", [{}, {"cloudevents": True}], ids=["data", "cloudevents"])
def test_our_log_takes_events_as_specified(any_engine, options):
    """A log passes all checks that append, and what it refuses meanwhile is as specified."""
    only = [*WRITING, "problem-documents", "problem-kinds", "server-errors"]
    with serving(log_publisher(any_engine, **options)) as url:
        results = check(f"{url}/feed", only=only, writable=True)
    assert set(outcomes(results, "pass")) == set(only), results


@pytest.mark.parametrize("name", MUTANTS_OF_LOGS)
def test_mutant_of_a_log_is_caught(sqlite, name):
    """A log that breaks one rule of appends fails the check of that rule."""
    caught_by, _ = MUTANTS_OF_LOGS[name]
    with serving(log_publisher(sqlite, MUTANTS_OF_LOGS[name])) as url:
        result = check(f"{url}/feed", only=[caught_by], writable=True)[caught_by]
    assert result.outcome == "fail", result.reason


def test_every_check_that_appends_has_a_mutant():
    """Each check that appends has been seen to fail."""
    assert {caught_by for caught_by, _ in MUTANTS_OF_LOGS.values()} == WRITING


def test_log_that_takes_no_events_of_the_checks_is_skipped(sqlite):
    """Where a log lets the one who checks not append, nothing fails."""
    with serving(log_publisher(sqlite, ("", status(201, 403, b"{}", "/feed/append")))) as url:
        found = check(f"{url}/feed", only=WRITING, writable=True)
    assert set(outcomes(found, "skip")) == WRITING


def test_most_checks_have_a_mutant():
    """Most checks have been seen to fail."""
    names = {name for name, check in all_checks().items() if not (check.v1 or check.writes)}
    assert len(names & {caught_by for caught_by, _ in MUTANTS.values()}) > len(names) / 2
