"""Reading only events of certain types, or none of them, over real HTTP and on every database."""

import json
from contextlib import asynccontextmanager

import httpx
import pytest
from harness.shop import metadata, orders
from harness.web import serving
from sqlalchemy import Column, Enum, Integer, MetaData, Table, delete, insert, text
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette

from zeroeventhub import FIRST, TableFeed, feed_routes
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import TypeFilter
from zeroeventhub.publisher import page_query

KINDS = [
    "Placed",
    "placed",
    "PLACED ",
    "pl\u00e5ced",
    "plac\u00e9d",
    "pla\u212aed",
    None,
    "",
    "paid",
]
"""Types of events, of which `placed` names two; behind one is a space, in one a Kelvin sign."""


def write(engine, kinds, **values):
    """Append an event of each type, numbered by its place in the list."""
    with engine.begin() as connection:
        connection.execute(
            insert(orders),
            [{"kind": kind, "data": {"n": n}, **values} for n, kind in enumerate(kinds)],
        )


@pytest.fixture
def shop(engine):
    """An engine of a database with an empty table of orders."""
    metadata.create_all(engine)
    if engine.dialect.name == "mariadb":
        with engine.begin() as connection:
            connection.execute(text("ALTER TABLE orders CONVERT TO CHARACTER SET utf8mb4"))
    return engine


def source(**options):
    """A feed over the orders, with their types."""
    return TableFeed(orders, **{"data": "data", "type": "kind", **options})


def fetch(feed, only=None, *, skip=None, cursor=FIRST, limit=1000, partition=0):
    """Read a page of certain types; return the numbers of its events, and the page."""
    types = TypeFilter(frozenset(skip or only), skip=skip is not None)
    page = feed.read(partition, cursor, limit, types=types)
    return [event.data["n"] for event in page.events], page


def read_all(feed, **options):
    """Read to the head; return all numbers."""
    numbers, cursor, caught_up = [], FIRST, False
    while not caught_up:
        more, page = fetch(feed, cursor=cursor, **options)
        numbers += more
        assert page.cursor != cursor or page.caught_up
        cursor, caught_up = page.cursor, page.caught_up
    return numbers


@pytest.mark.parametrize("kind_of_engine", ["sync", "async"])
def test_requests_choose_types(shop, async_url, kind_of_engine):
    """A request names the types that it wants or those that it does not, in capitals or not."""
    write(shop, ["placed", "paid", "sent", "placed", "lost"])
    reading = create_async_engine(async_url) if kind_of_engine == "async" else shop

    @asynccontextmanager
    async def lifespan(_):
        yield
        if reading is not shop:
            await reading.dispose()

    routes = feed_routes("/orders", source(), reading)
    with serving(Starlette(routes=routes, lifespan=lifespan)) as url:
        assert "event-types" in httpx.get(f"{url}/orders").json()["extensions"]

        def numbers(query):
            """Return the numbers of the events of an answer that is a page at the head."""
            place = "token=1&partition=0&cursor=_first"
            answer = httpx.get(f"{url}/orders/events?{place}&{query}")
            assert answer.status_code == 200, answer.text
            *events, checkpoint = map(json.loads, answer.text.splitlines())
            assert checkpoint["caughtUp"]
            assert checkpoint["cursor"].startswith("2-5-")
            return [event["data"]["n"] for event in events]

        assert numbers("event-types=PLACED") == [0, 3]
        assert numbers("event-types=;sent;;Placed;") == [0, 2, 3]
        assert numbers("skip-event-types=pLaced;unknown") == [1, 2, 4]
        assert numbers("event-types=unknown") == []
        assert numbers("skip-event-types=placed;paid;sent;lost") == []
        assert numbers("event-types=%27%20OR%201=1--".replace("%20", "")) == []
        assert numbers("event-types=" + ";".join(f"t{n}" for n in range(100))) == []

        for query in [
            "event-types=placed&skip-event-types=paid",
            "event-types=&skip-event-types=",
            "event-types=",
            "skip-event-types=;;",
            "event-types=placed&event-types=placed",
            "event-types=pl%C3%A5ced",
            "event-types=pla%E2%84%AAed",
            "event-types=pla%20ced",
            "skip-event-types=%00",
            "event-types=" + ";".join(f"t{n}" for n in range(101)),
            "event-types=" + "x" * 257,
        ]:
            place = "token=1&partition=0&cursor=_first"
            answer = httpx.get(f"{url}/orders/events?{place}&{query}")
            assert answer.status_code == 400, query
            assert answer.json()["type"] == "urn:zeroeventhub:problem/bad-request"
            assert "pla" not in answer.text


def test_only_the_case_of_ascii_letters_is_passed_over(shop):
    """Neither accents nor spaces nor letters that only look like ASCII are passed over."""
    write(shop, KINDS)
    feed = source().bind(shop)
    assert fetch(feed, {"placed"})[0] == [0, 1]
    assert fetch(feed, skip={"PLACED"})[0] == [2, 3, 4, 5, 6, 7, 8]
    assert fetch(feed, {"plaKed"})[0] == []
    assert fetch(feed, {"plaked"})[0] == []
    assert fetch(feed, {"%"})[0] == fetch(feed, {"p_id"})[0] == []


def test_events_without_a_type_are_of_none_or_of_the_default(shop):
    """NULL and empty types are the default of CloudEvents; without CloudEvents nobody asks them."""
    write(shop, [None, "", " ", "placed", "ORDERS"])
    bare, wrapped = source().bind(shop), source(cloudevents=True).bind(shop)
    assert fetch(bare, {"orders"})[0] == [4]
    assert fetch(bare, skip={"orders"})[0] == [0, 1, 2, 3]

    def numbers(**options):
        page = wrapped.read(0, FIRST, 10, types=TypeFilter(frozenset({"orders"}), **options))
        return [(event.data["type"], event.data["data"]["n"]) for event in page.events]

    assert numbers() == [("orders", 0), ("orders", 1), ("ORDERS", 4)]
    assert numbers(skip=True) == [(" ", 2), ("placed", 3)]


def test_feed_whose_events_are_all_of_one_type_filters(sqlite):
    """Without a column of types, CloudEvents are all of the default type, and can be skipped."""
    metadata.create_all(sqlite)
    write(sqlite, ["placed", "paid"])
    feed = TableFeed(orders, data="data", cloudevents=True).bind(sqlite)
    types = TypeFilter(frozenset({"Orders"}))
    assert len(feed.read(0, FIRST, 10, types=types).events) == 2
    skipped = feed.read(0, FIRST, 10, types=TypeFilter(types.names, skip=True))
    assert (list(skipped.events), skipped.caught_up) == ([], True)


def test_checkpoint_moves_on_over_what_is_filtered_out(shop):
    """A page without events moves on, and the next one starts behind what it has passed over."""
    write(shop, ["paid"] * 5)
    feed = source().bind(shop)
    numbers, page = fetch(feed, {"placed"})
    assert (numbers, page.cursor[:4], page.caught_up) == ([], "2-5-", True)
    write(shop, ["placed"])
    assert fetch(feed, {"placed"}, cursor=page.cursor)[0] == [0]
    page = feed.read(0, page.cursor, 10)
    assert len(page.events) == 1


def test_page_looks_at_a_limited_number_of_rows(shop, monkeypatch):
    """A page in search of a rare type ends after a number of rows, and says that there is more."""
    monkeypatch.setattr(page_query, "FILTERED_ROWS", 10)
    write(shop, ["paid"] * 25 + ["placed"] + ["paid"] * 4)
    feed = source().bind(shop)
    pages, cursor, caught_up = [], FIRST, False
    while not caught_up:
        numbers, page = fetch(feed, {"placed"}, cursor=cursor)
        cursor, caught_up = page.cursor, page.caught_up
        pages.append((numbers, cursor.split("-")[1], caught_up, page.full))
    assert pages == [
        ([], "10", False, False),
        ([], "20", False, False),
        ([25], "30", True, False),
    ]


def test_pages_of_certain_types_hold_each_event_once(shop, monkeypatch):
    """Whatever the size of pages, reading on to the head gives every event of the types once."""
    monkeypatch.setattr(page_query, "FILTERED_ROWS", 7)
    kinds = ["a", "b", "b", "a", "c", "b", "b", "b", "b", "b", "b", "b", "b", "b", "A", "a", "b"]
    write(shop, kinds)
    feed = source().bind(shop)
    for limit in (1, 2, 3, 6, 7, 8, 100):
        assert read_all(feed, only={"a"}, limit=limit) == [0, 3, 14, 15]
        assert read_all(feed, skip={"b"}, limit=limit) == [0, 3, 4, 14, 15]


def test_sequenced_events_are_filtered(shop, monkeypatch):
    """Positions of the feed's own are filtered by the types of their events, deleted or not."""
    monkeypatch.setattr(page_query, "FILTERED_ROWS", 4)
    feed_source = source(ordering="sequenced")
    with shop.begin() as connection:
        feed_source.install(connection)
    write(shop, ["a", "b", "b", "a", "c", None, "b", "b", "b", "b", "a", "b"])
    feed = feed_source.bind(shop)
    assert read_all(feed, only={"a"}) == [0, 3, 10]
    with shop.begin() as connection:
        connection.execute(delete(orders).where(orders.c.id.in_([1, 4, 5, 12])))
    for limit in (1, 2, 100):
        assert read_all(feed, only={"a"}, limit=limit) == [10]
        assert read_all(feed, skip={"b"}, limit=limit) == [5, 10]


def test_each_partition_is_filtered(shop, monkeypatch):
    """The rows that a page looks at are those of its partition."""
    monkeypatch.setattr(page_query, "FILTERED_ROWS", 3)
    for partition in (0, 1, 0, 1):
        write(shop, ["a", "b", "b", "b"], part=partition)
    feed = source(partition="part", partitions=2).bind(shop)
    for partition in (0, 1):
        assert read_all(feed, only={"a"}, partition=partition) == [0, 0]
        assert read_all(feed, skip={"a"}, partition=partition, limit=2) == [1, 2, 3] * 2


def test_feed_without_types_takes_no_notice(sqlite):
    """A feed that does not know types does not announce the extension, and sends everything."""
    metadata.create_all(sqlite)
    write(sqlite, ["placed", "paid"])
    routes = feed_routes("/orders", TableFeed(orders, data="data"), sqlite)
    with serving(Starlette(routes=routes)) as url:
        assert "event-types" not in httpx.get(f"{url}/orders").json()["extensions"]
        place = {"token": "1", "partition": 0, "cursor": FIRST}
        for types, status in [
            ({"event-types": "paid"}, 200),
            ({"skip-event-types": "paid;placed"}, 200),
            ({"event-types": "paid", "skip-event-types": "placed"}, 400),
        ]:
            answer = httpx.get(f"{url}/orders/events", params=place | types)
            assert answer.status_code == status
            assert answer.text.count('"data":') == (2 if status == 200 else 0)


def test_types_that_are_no_text_are_not_filtered(sqlite):
    """A column of types that are not sent as they are stored leaves the extension out."""
    table = Table(
        "odd", MetaData(), Column("id", Integer, primary_key=True), Column("kind", Integer)
    )
    table.append_column(Column("sort", Enum("a", "b")))
    table.metadata.create_all(sqlite)
    for column in ("kind", "sort"):
        feed = TableFeed(table, type=column, append_only=True).bind(sqlite)
        assert "event-types" not in feed.info().extensions
    with pytest.raises(ConfigurationError):
        TableFeed(table, type="missing")
