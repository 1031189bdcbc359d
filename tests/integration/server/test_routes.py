"""The routes of a feed: where they lie, what a feed needs for them, and what they answer."""

import json
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import httpx
import jsonschema
import pytest
from harness import readers
from harness.published import install
from harness.readers import Numbers, client_of, kind, mounted
from harness.shop import fill, metadata, orders, write
from harness.stalled import ask
from harness.statements import add, execute
from harness.waiting import until
from harness.web import serving
from sqlalchemy import create_engine, delete
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette

from zeroeventhub import (
    FIRST,
    LAST,
    Capacity,
    Client,
    Event,
    FeedInfo,
    Page,
    Principal,
    TableFeed,
    TypeFilter,
    bearer_tokens,
    feed_routes,
)
from zeroeventhub.coroutines import blocking
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.extensions import EXTENSIONS, PARTITION, Extension, Parameter
from zeroeventhub.protocol import EVERY_TYPE, Schemas
from zeroeventhub.publisher.reader import Reader
from zeroeventhub.publisher.retention import Compaction, Retention

FEED = TableFeed(orders, data="data")


class Plain:
    """A feed of one's own with nothing but pages."""

    info, read = Numbers.info, Numbers.read


def test_paths_and_names_of_routes():
    """Routes lie below their path, are found by their names, and are only those asked for."""
    for path, below in (("/a/b", "/a/b"), ("a/b/", "/a/b"), ("/", "")):
        routes = feed_routes(path, Numbers(), name="shop", server_sent_events=True)
        found = {route.name: route.path for route in routes}
        assert (found["shop"], found["shop:events"]) == (below or "/", f"{below}/events")
        assert found["shop:server-sent-events"] == f"{below}/server-sent-events"
    paths = {route.path for route in feed_routes("/", Plain())}
    assert paths.isdisjoint({"/http-feed", "/server-sent-events"})
    assert {"/", "/events", "/progress"} <= paths


class Early(Plain):
    """A feed that reads pages as feeds of an earlier version do."""

    def read_pages(self, partition, cursor, limit, count):
        """Read no page."""


@pytest.mark.parametrize(
    ("arguments", "options", "match"),
    [
        ((FEED,), {}, "give its engine"),
        ((Early(),), {}, "cannot read pages ahead: got an unexpected keyword argument 'on_page'"),
        ((Plain(), create_engine("sqlite://")), {}, "give no engine"),
        ((object(),), {}, "is not a feed"),
        ((create_engine("sqlite://"), FEED), {}, "is not a feed"),
        ((Plain(),), {"http_feed": True}, "cursor_of"),
        ((Plain(),), {"server_sent_events": True}, "head"),
        ((Plain(),), {"quota": 5}, "quota is a Quota, not 5"),
        ((Plain(),), {"capacity": {"connections": 8}}, "capacity is a Capacity"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, options, match):
    """A feed that cannot do what its routes need, or a wrong option, is refused at its mounting."""
    with pytest.raises(ConfigurationError, match=match):
        feed_routes("/", *arguments, **options)


def test_feed_in_the_place_of_its_path_is_refused():
    """A feed whose path was forgotten is refused by an error that says so."""
    with pytest.raises(ConfigurationError, match="path of a feed"):
        feed_routes(Plain(), None)


BATCH = "application/cloudevents-batch+json"


def get(url, **parameters):
    """Ask for a batch."""
    return httpx.get(f"{url}/http-feed", params=parameters, timeout=20)


def batch(answer):
    """Return the events of a batch."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == BATCH
    assert answer.headers["cache-control"] == "no-store"
    return answer.json()


def read_all(url, **parameters):
    """Read to the end, as the documentation of HTTP Feeds has it; return all events."""
    events = []
    while more := batch(get(url, **parameters)):
        events += more
        parameters["lastEventId"] = more[-1]["id"]
    return events


source = partial(TableFeed, orders, data="data", type="kind", cloudevents=True)
as_http_feed = partial(mounted, http_feed=True)


def test_client_reads_everything_once(any_engine):
    """A client that gives back the last id it has reads every event once, and then goes on."""
    with as_http_feed(source(), fill(any_engine, 0)) as url:
        assert batch(get(url)) == batch(get(url, lastEventId="")) == []
        write(any_engine, 2300)
        events = read_all(url)
        assert [event["data"]["n"] for event in events] == list(range(2300))
        assert [event["id"] for event in events] == [str(n) for n in range(1, 2301)]
        assert {event["specversion"] for event in events} == {"1.0"}
        last = events[-1]["id"]
        assert batch(get(url, lastEventId=last)) == []
        write(any_engine, first=2300)
        assert [event["data"]["n"] for event in batch(get(url, lastEventId=last))] == [2300]


def test_timeout_is_waited_for(empty_shop, watcher, pool):
    """A timeout in milliseconds holds an empty batch back until there is an event."""
    with as_http_feed(source(), empty_shop, observer=watcher) as url:
        began = time.monotonic()
        assert batch(get(url, timeout=300)) == []
        assert 0.3 <= time.monotonic() - began < 10
        waiting = pool.submit(get, url, timeout=10_000)
        watcher.until_waiting(1)
        write(empty_shop)
        assert len(batch(waiting.result())) == 1
        for timeout in ("-1", "1.5", "", "x"):
            assert get(url, timeout=timeout).status_code == 400
        address = f"{url}/http-feed?timeout=20000&lastEventId=1"
        assert httpx.head(address, timeout=10).status_code == 200


def test_search_ends_when_its_reader_has_left():
    """A search for the next event that a client may see ends when the client has left."""

    class Endless(Plain):
        reads = 0

        def read(self, partition, cursor, limit):
            self.reads += 1
            time.sleep(0.01)
            return Page([], str(self.reads))

        def cursor_of(self, event_id, partition):
            return event_id

    feed = Endless()
    with as_http_feed(feed) as url:
        with ask(f"{url}/http-feed"):
            until(lambda: feed.reads > 5, "it searches")

        def has_ended():
            before = feed.reads
            time.sleep(0.2)
            return feed.reads == before

        until(has_ended, "the search ends")


def test_partitions_are_named(empty_shop):
    """Of several partitions a request names one."""
    write(empty_shop, 6, partitions=2)
    with as_http_feed(source(partition="part", partitions=2), empty_shop) as url:
        for partition in (0, 1):
            numbers = [event["data"]["n"] for event in read_all(url, partition=partition)]
            assert numbers == list(range(partition, 6, 2))
        for parameters in ({}, {"partition": 2}, {"partition": 0, "lastEventId": "9999"}):
            answer = get(url, **parameters)
            assert (answer.status_code, answer.headers["cache-control"]) == (400, "no-store")


def test_deleted_events_are_moved_over(any_engine):
    """A client goes on over a page of deleted events, although it has no cursor for them."""
    shop, feed = fill(any_engine, 0), source(ordering="sequenced")
    install(feed, shop)
    write(shop, 2500)
    with as_http_feed(feed, shop) as url:
        assert len(batch(get(url))) == 1000
        execute(shop, delete(orders).where(orders.c.id.between(1, 2400)))
        events = read_all(url)
        assert [event["data"]["n"] for event in events] == list(range(2400, 2500))
        execute(shop, delete(orders))
        assert batch(get(url)) == []


def test_place_of_a_deleted_event_is_respected(any_engine):
    """An id whose event is gone leads to what follows it, or to 410 where that is gone."""
    shop = fill(any_engine, 0)
    feed = source(mutable=True, retention=Retention())
    install(feed, shop)
    write(shop, 20)
    with as_http_feed(feed, shop) as url:
        execute(shop, delete(orders).where(orders.c.id == 5))
        assert [one["id"] for one in batch(get(url, lastEventId="5"))][:2] == ["6", "7"]
        assert len(batch(get(url, lastEventId="null"))) == 19
        bound = feed.bind(shop)
        bound.trim(bound.plan_trim(below=11))
        assert batch(get(url, lastEventId="10"))[0]["id"] == "11"
        assert get(url, lastEventId="5").status_code == 410
        assert get(url, lastEventId="21").status_code == 400


@pytest.mark.parametrize("way", ["mutable", "trimmed", "compacted"])
def test_id_of_a_deleted_event_is_gone(engine, way):
    """Where events have ids of their own, an id that no event has is 410 once some were deleted."""
    shop, options = fill(engine, 0), {"retention": Retention()}
    if way == "mutable":
        options = {"mutable": True}
    elif way == "compacted":
        options |= {"key": "kind", "compaction": Compaction()}
    feed = source(id="customer", **options)
    install(feed, shop)
    write(shop, 5)
    with as_http_feed(feed, shop) as url:
        assert [one["id"] for one in batch(get(url))] == [f"c{n}" for n in range(5)]
        assert get(url, lastEventId="c9").status_code == (410 if way == "mutable" else 400)
        bound = feed.bind(shop)
        if way == "mutable":
            execute(shop, delete(orders).where(orders.c.customer == "c1"))
        elif way == "trimmed":
            bound.trim(bound.plan_trim(below=3))
        else:
            bound.compact()
        answer = get(url, lastEventId="c1")
        assert (answer.status_code, readers.kind(answer)) == (410, "trimmed")
        assert [one["id"] for one in batch(get(url))][-1] == "c4"
        assert batch(get(url, lastEventId="c4")) == []


@dataclass(frozen=True)
class Distance:
    """An answer of the new extension."""

    cursor: str
    weight: Annotated[int, "by a factor"]


ROW = Extension(
    name="weighing",
    path="weight",
    parameters=(
        PARTITION,
        Parameter("cursor", "cursor"),
        Parameter("factor", "number", 2, least=1, most=9, argument="factor"),
    ),
    method="weigh",
    answer=Distance,
    needs="types",
)


class WeighingClient(Client):
    """A client with a method for the new extension."""

    def weigh(self, partition, cursor, factor):
        return blocking(self._answer("weighing", partition, cursor, factor))


@pytest.fixture
def weighing(monkeypatch):
    """A row for a new extension, and the query that answers it."""

    def weigh(self, connection, partition, cursor, *, factor):
        return Distance(cursor, factor * self.lag(connection, partition, cursor).events)

    monkeypatch.setitem(EXTENSIONS, "weighing", ROW)
    monkeypatch.setattr(Reader, "weigh", weigh, raising=False)


@pytest.mark.parametrize("driver", ["pysqlite", "aiosqlite"])
def test_new_extension_is_a_row_and_a_query(weighing, sqlite, driver):
    """Route, checks, rights, discovery and the client follow from an extension's row."""
    fill(sqlite)
    engine = sqlite
    if driver == "aiosqlite":
        engine = create_async_engine(sqlite.url.set(drivername="sqlite+aiosqlite"))
    place = {"token": "1", "partition": 0, "cursor": FIRST}
    feed = TableFeed(orders, data="data", type="kind")
    with mounted(feed, engine) as url, httpx.Client() as session:
        client = WeighingClient(url, session)
        assert "weighing" in client.discover().extensions
        assert session.get(f"{url}/weight", params=place).json() == {"cursor": FIRST, "weight": 20}
        assert client.weigh(0, FIRST, 3) == Distance(FIRST, 30)
        for wrong in ({"factor": 0}, {"factor": "x"}, {"partition": 7}):
            assert kind(session.get(f"{url}/weight", params=place | wrong)) == "bad-request"
        assert session.get(f"{url}/weight", params=place | {"token": "2"}).status_code == 409
    some = Principal(name="reader", types=TypeFilter(frozenset({"placed"})))
    with mounted(feed, sqlite, authorize=lambda _: some) as url, client_of(url) as client:
        assert "weighing" not in client.discover().extensions
        assert httpx.get(f"{url}/weight", params=place).status_code == 404


class Heavy:
    """A feed of eight partitions, each with three events of a mebibyte."""

    def info(self):
        return FeedInfo.of(8)

    def read(self, partition, cursor, limit):
        number = int({FIRST: 0, LAST: 3}.get(cursor, cursor))
        events = [Event.of(f"{partition}-{number}" + "x" * 2**20)] if number < 3 else []
        return Page(events, str(number + len(events)))


def test_answer_of_version_1_is_bounded_as_a_whole():
    """An answer is bounded and has a cursor for each partition, with which published clients go on.

    Partitions take turns, so that each is read; one whose end is requested gets it at once.
    """
    cursors, got = {f"cursor{number}": FIRST for number in range(8)}, []
    with mounted(Heavy(), capacity=Capacity(page_bytes=2**20)) as url:
        for _ in range(200):
            answer = httpx.get(url, params={"n": 8, **cursors})
            assert len(answer.content) < 3 * 2**20
            lines = [json.loads(line) for line in answer.text.splitlines()]
            got += [line["data"][:3] for line in lines if "data" in line]
            cursors = {f"cursor{x['partition']}": x["cursor"] for x in lines if "cursor" in x}
            if len(got) == 24:
                break
        assert sorted(got) == [f"{partition}-{n}" for partition in range(8) for n in range(3)]
        ends = httpx.get(url, params={"n": 8, **dict.fromkeys(cursors, FIRST), "cursor7": LAST})
        assert '{"partition":7,"cursor":"3"}' in ends.text


ROUTES = ["schemas", "schema", "asyncapi"]


@dataclass
class Address:
    """Where an order goes."""

    street: str


@dataclass
class Placed:
    """An order that was placed."""

    n: int
    to: Address | None = None


@dataclass
class Paid:
    """An order that was paid."""

    n: int


MODELS = {"placed": Placed, "paid": Paid, EVERY_TYPE: Paid}
READERS = {
    "everything": (Principal(name="everything"), ["placed", "paid", EVERY_TYPE]),
    "half": (Principal(name="half", partitions={0}), ["placed", "paid", EVERY_TYPE]),
    "paid": (Principal(name="paid", types=["PAID"]), ["paid"]),
    "unpaid": (
        Principal(name="unpaid", types=TypeFilter(frozenset({"paid"}), skip=True)),
        ["placed"],
    ),
    "nothing": (Principal(name="nothing", types=()), []),
}


def described(schemas=MODELS, **options):
    """A feed over the orders that describes their data."""
    options = {"type": "kind", "cloudevents": True, **options}
    return TableFeed(orders, data="data", schemas=schemas, **options)


@contextmanager
def session(engine, reader, **options):
    """Yield a session of a reader of a feed."""
    hook = bearer_tokens(
        {f"{name}-0123456789abcdef": principal for name, (principal, _) in READERS.items()}
    )
    with mounted(described(**options), engine, authorize=hook) as url:
        headers = {"Authorization": f"Bearer {reader}-0123456789abcdef"}
        with httpx.Client(base_url=url, headers=headers) as http:
            yield http


@pytest.mark.parametrize("reader", READERS)
def test_reader_sees_the_schemas_of_its_types_in_every_form(sqlite, reader):
    """What a reader may not see has no schema: in the answer of all, alone, and in AsyncAPI."""
    _, seen = READERS[reader]
    with session(fill(sqlite), reader) as http:
        assert [*http.get("/schemas").json()["schemas"]] == seen
        channel = http.get("/asyncapi").json()["channels"]["events"]
        assert [one["name"] for one in channel["messages"].values()] == seen
        for name in MODELS:
            answer = http.get("/schema", params={"type": name})
            assert answer.status_code == (200 if name in seen else 404)
            assert name in seen or kind(answer) == "not-found"
        texts = "".join(http.get(f"/{route}", params={"type": "paid"}).text for route in ROUTES)
        assert ("street" in texts) is ("placed" in seen)


@pytest.mark.parametrize("is_async", [False, True])
def test_client_gets_what_was_published(sqlite, is_async):
    """A client gets the schemas and the envelope, of feeds with sync and async engines."""
    engine = fill(sqlite)
    if is_async:
        engine = create_async_engine(engine.url.set(drivername="sqlite+aiosqlite"))
    with mounted(described(), engine) as url, client_of(url) as client:
        found = client.schemas()
        assert "schemas" in client.discover().extensions
    assert (set(found.types), found.envelope) == (set(MODELS), "cloudevents")
    placed = found.types["placed"]
    assert set(placed["$defs"]) == {"Placed", "Address"}
    jsonschema.validate({"n": 1, "to": {"street": "s"}}, placed)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"n": 1, "to": {}}, placed)


@pytest.mark.parametrize(
    ("options", "name", "envelope"),
    [
        ({}, EVERY_TYPE, "cloudevents"),
        ({"type": None}, "orders", "cloudevents"),
        ({"type": None, "cloudevents": False}, EVERY_TYPE, None),
    ],
)
def test_one_model_describes_all_events(sqlite, options, name, envelope):
    """One model is the schema of the feed's one type, or of events of every type."""
    found = described(Paid, **options).bind(fill(sqlite)).schemas()
    assert [*found.types] == [name]
    assert found.envelope == envelope


def test_message_of_asyncapi_is_the_event_on_the_wire(sqlite):
    """A payload describes the whole event, and its references lead to the document's parts."""
    metadata.create_all(sqlite)
    add(sqlite, orders, [{"kind": "placed", "data": {"n": 1, "to": {"street": "s"}}}])
    for envelope in (True, False):
        with mounted(described(cloudevents=envelope), sqlite) as url, client_of(url) as client:
            answer = httpx.get(f"{url}/asyncapi")
            (event,) = client.fetch(0, FIRST).events
        assert answer.headers["content-type"].startswith("application/vnd.aai.asyncapi+json")
        document = answer.json()
        assert (document["asyncapi"], document["info"]["title"]) == ("3.0.0", "feed")
        channel = document["channels"]["events"]
        assert channel["address"] == "/orders/events"
        payloads = {one["name"]: one["payload"] for one in channel["messages"].values()}
        for name, fits in (("placed", True), ("paid", not envelope)):
            checker = jsonschema.Draft202012Validator({**document, **payloads[name]})
            assert checker.is_valid(event.data) is fits
        data = event.data["data"] if envelope else event.data
        del data["to"]["street"]
        checker = jsonschema.Draft202012Validator({**document, **payloads["placed"]})
        assert not checker.is_valid(event.data)


@pytest.mark.parametrize("is_added", [False, True])
def test_asyncapi_names_the_address_before_a_proxy(sqlite, is_added):
    """The channel has the prefix that a proxy removes, whether or not the server adds it again."""
    metadata.create_all(sqlite)
    application = Starlette(routes=feed_routes("/orders", described(), sqlite))

    async def below(scope, receive, send):
        if scope["type"] == "http":
            path = f"/shop{scope['path']}" if is_added else scope["path"]
            scope = {**scope, "root_path": "/shop", "path": path}
        await application(scope, receive, send)

    with serving(below) as url:
        document = httpx.get(f"{url}/orders/asyncapi").json()
    assert document["channels"]["events"]["address"] == "/shop/orders/events"


def test_envelope_names_its_schema(any_engine):
    """The attribute dataschema is an expression of the type, and a reader finds a schema there."""
    metadata.create_all(any_engine)
    add(
        any_engine, orders, [{"kind": "placed", "data": {"n": 1}}, {"kind": None, "data": {"n": 2}}]
    )
    address = "https://shop.example/orders/schema?type=" + orders.c.kind
    feed = described(attributes={"dataschema": address})
    with mounted(feed, any_engine) as url, client_of(url) as client:
        one, other = client.fetch(0, FIRST).events
        path = one.data["dataschema"].removeprefix("https://shop.example/orders")
        answer = httpx.get(f"{url}{path}")
    assert answer.headers["content-type"] == "application/schema+json"
    jsonschema.validate(one.data["data"], answer.json())
    assert "dataschema" not in other.data


@pytest.mark.parametrize("route", ROUTES)
def test_feed_without_schemas_has_none_of_their_routes(sqlite, route):
    """A feed that does not describe its events does not list the extension, and answers 404."""
    with mounted(described(None), fill(sqlite)) as url, client_of(url) as client:
        assert "schemas" not in client.discover().extensions
        assert kind(httpx.get(f"{url}/{route}")) == "not-found"
        with pytest.raises(ConfigurationError, match="extension schemas"):
            client.schemas()
    with pytest.raises(ConfigurationError, match="does not describe"):
        described(None).bind(sqlite).schemas()


def test_feed_of_one_s_own_shows_only_what_a_reader_may_see(sqlite):
    """The server leaves out types for a feed that returns all of its schemas."""

    class Described(Numbers):
        def info(self):
            known = super().info()
            extensions = {"schemas", "event-types"}
            return type(known)(known.partitions, known.token, extensions=frozenset(extensions))

        def schemas(self):
            return Schemas({"a": {"type": "object"}, "b": {"type": "object"}})

    hook = bearer_tokens({"only-b-0123456789abcdef": Principal(name="b", types={"b"})})
    with mounted(Described(), authorize=hook) as url:
        headers = {"Authorization": "Bearer only-b-0123456789abcdef"}
        assert [*httpx.get(f"{url}/schemas", headers=headers).json()["schemas"]] == ["b"]
