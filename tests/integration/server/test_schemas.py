"""The schemas of a feed's events: for whom, in which forms, and where."""

from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import jsonschema
import pytest
from harness.readers import Numbers, client_of, kind, mounted
from harness.shop import fill, metadata, orders
from harness.statements import add
from sqlalchemy.ext.asyncio import create_async_engine

from zeroeventhub import FIRST, Principal, TableFeed, TypeFilter, bearer_tokens
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import EVERY_TYPE, Schemas

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


def source(schemas=MODELS, **options):
    """A feed over the orders that describes their data."""
    options = {"type": "kind", "cloudevents": True, **options}
    return TableFeed(orders, data="data", schemas=schemas, **options)


@contextmanager
def session(engine, reader, **options):
    """Yield a session of a reader of a feed."""
    hook = bearer_tokens(
        {f"{name}-0123456789abcdef": principal for name, (principal, _) in READERS.items()}
    )
    with mounted(source(**options), engine, authorize=hook) as url:
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
    with mounted(source(), engine) as url, client_of(url) as client:
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
    found = source(Paid, **options).bind(fill(sqlite)).schemas()
    assert [*found.types] == [name]
    assert found.envelope == envelope


def test_message_of_asyncapi_is_the_event_on_the_wire(sqlite):
    """A payload describes the whole event, and its references lead to the document's parts."""
    metadata.create_all(sqlite)
    add(sqlite, orders, [{"kind": "placed", "data": {"n": 1, "to": {"street": "s"}}}])
    for envelope in (True, False):
        with mounted(source(cloudevents=envelope), sqlite) as url, client_of(url) as client:
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


def test_envelope_names_its_schema(any_engine):
    """The attribute dataschema is an expression of the type, and a reader finds a schema there."""
    metadata.create_all(any_engine)
    add(
        any_engine, orders, [{"kind": "placed", "data": {"n": 1}}, {"kind": None, "data": {"n": 2}}]
    )
    address = "https://shop.example/orders/schema?type=" + orders.c.kind
    feed = source(attributes={"dataschema": address})
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
    with mounted(source(None), fill(sqlite)) as url, client_of(url) as client:
        assert "schemas" not in client.discover().extensions
        assert kind(httpx.get(f"{url}/{route}")) == "not-found"
        with pytest.raises(ConfigurationError, match="extension schemas"):
            client.schemas()
    with pytest.raises(ConfigurationError, match="does not describe"):
        source(None).bind(sqlite).schemas()


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
