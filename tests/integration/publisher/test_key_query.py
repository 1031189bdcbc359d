"""One key's history over HTTP: what a feed shows of it, to whom, and how it is read to its end."""

from contextlib import contextmanager

import httpx
import pytest
import sqlalchemy as sa
from harness.readers import client_of, mounted
from harness.statements import execute
from harness.tables import event_table

from zeroeventhub import FIRST, EventLog, NewEvent, Principal, TableFeed, bearer_tokens
from zeroeventhub.errors import ConfigurationError, FeedFailure, NotFound, ProtocolError
from zeroeventhub.partitions import key_hash
from zeroeventhub.publisher import key_query
from zeroeventhub.wire.documents import decode_key_page

KEYS = ["ada", "Ada", "漢字 & 😀", "a/b?c=d#e%20", "' OR 1=1 --", "17"]


@pytest.fixture
def log(ordered):
    """A log with five events of each key on each database, and its engine."""
    return filled(*ordered)


def filled(engine, ordering=None):
    """Make a log with five events of each key, and an event without a version."""
    metadata = sa.MetaData()
    log = EventLog(metadata, "orders", partitions=4, ordering=ordering)
    metadata.create_all(engine)
    with engine.begin() as connection:
        for key in KEYS:
            events = [
                NewEvent(f"kind{n % 2}", {"n": n, "of": key}, id=f"{key} {n}") for n in range(1, 6)
            ]
            log.append_to(connection, key, events, expected_version=0)
        log.append(connection, [NewEvent("kind0", {"n": 0}, key="ada")])
    return log, engine


@contextmanager
def serve(feed, engine=None, **options):
    """Serve a feed, and yield a client of it and the address of its histories."""
    with mounted(feed, engine, **options) as url, client_of(url) as client:
        yield client, f"{url}/key-history"


def whole(client, key, **options):
    """The versions and numbers of a key, read page by page."""
    found, after = [], 0
    while True:
        page = client.read_key(key, after_version=after, **options)
        found += [(v, e.data["n"]) for v, e in zip(page.versions, page.events, strict=True)]
        if not page.more:
            return found
        after = page.versions[-1]


def test_history_of_a_key_is_read_to_its_end(log):
    """Pages of any size have all events of the key, whatever its characters, and no others."""
    publisher, engine = log
    with serve(publisher.feed(key_history=True), engine) as (client, _):
        for key, limit in zip(KEYS, [None, 1, 2, 3, 4, 5], strict=True):
            assert whole(client, key, limit=limit) == [(n, n) for n in range(1, 6)]
        for key in ["nobody", "ADA", "ada ", "", "a\0b", "x" * 5000]:
            assert whole(client, key) == []
        page = client.read_key("ada", after_version=3)
        assert (page.versions, page.more) == ([4, 5], False)
        assert client.read_key("ada", after_version=10**17).events == []


def test_event_of_a_history_is_the_one_of_the_feed(engine):
    """The bytes of an event are those of its line in a page."""
    publisher, _ = filled(engine)
    for envelope in (False, "/shop"):
        feed = publisher.feed(key_history=True, cloudevents=envelope).bind(engine)
        shown = {one.raw for part in range(4) for one in feed.read(part, FIRST, 100).events}
        for key in KEYS:
            found = {one.raw for one in feed.read_key(key, 0, 100).events}
            assert len(found) == 5
            assert found <= shown


def test_event_that_cannot_be_published_is_an_error_of_the_feed(sqlite):
    """A value that its column does not declare is an error of the feed, which says where it is."""
    columns = {"key": sa.String(20), "n": sa.Integer(), "at": sa.DateTime()}
    table = event_table("log", sa.UniqueConstraint("key", "n"), **columns)
    table.metadata.create_all(sqlite)
    rows = "('ada', 1, '2026-01-31 12:00:00'), ('ada', 2, 'yesterday')"
    execute(sqlite, f"INSERT INTO log (key, n, at) VALUES {rows}")
    feed = TableFeed(table, data=["at"], key="key", version="n", key_history=True).bind(sqlite)
    assert len(feed.read_key("ada", 0, 1).events) == 1
    with pytest.raises(FeedFailure, match="key 'ada' after version 1 cannot be published"):
        feed.read_key("ada", 1, 1)


def test_history_is_off_unless_asked_for(sqlite):
    """A feed answers requests for a key only with `key_history`."""
    log, engine = filled(sqlite)
    with serve(log.feed(), engine) as (client, address):
        assert "key-history" not in client.discover().extensions
        answer = httpx.get(address, params={"key": "ada"})
        assert answer.status_code == NotFound.status
        with pytest.raises(ConfigurationError, match="key-history"):
            client.read_key("ada")
    with serve(log.feed(key_history=True), engine) as (client, address):
        assert "key-history" in client.discover().extensions


def test_bytes_bound_a_page(sqlite, monkeypatch):
    """A page ends at its limit of bytes, and has one event at least."""
    monkeypatch.setattr(key_query, "MOST_BYTES", 60)
    log, engine = filled(sqlite)
    with engine.begin() as connection:
        log.append_to(
            connection, "ada", [NewEvent("x", {"n": 6, "text": "x" * 100})], expected_version=5
        )
    feed = log.feed(key_history=True).bind(engine)
    sizes, after = [], 0
    while True:
        page = feed.read_key("ada", after, 100)
        sizes.append(len(page.events))
        if not page.more:
            break
        after = page.versions[-1]
    assert sum(sizes) == 6
    assert max(sizes) == 3
    assert min(sizes[:-1]) >= 1


READERS = {
    "all": Principal(name="all"),
    "typed": Principal(name="typed", types={"kind1"}),
    **{f"part{n}": Principal(name=f"part{n}", partitions={n}) for n in range(4)},
    "nowhere": Principal(name="nowhere", partitions=()),
}


def token(name):
    """The bearer token of a reader."""
    return f"{name}-0123456789abcdef"


def test_reader_sees_keys_of_its_partitions_only(any_engine):
    """A key in a hidden partition has no events; a reader of some types gets 404."""
    publisher, engine = filled(any_engine)
    hook = bearer_tokens({token(name): principal for name, principal in READERS.items()})

    def ask(url, name, key):
        headers = {"Authorization": f"Bearer {token(name)}"}
        return httpx.get(f"{url}/key-history", params={"key": key}, headers=headers)

    with mounted(publisher.feed(key_history=True), engine, authorize=hook) as url:
        assert httpx.get(f"{url}/key-history", params={"key": "ada"}).status_code == 401
        assert ask(url, "typed", "ada").status_code == 404
        for key in KEYS:
            own = key_hash(key) % 4
            for part in range(4):
                found = ask(url, f"part{part}", key).json()["events"]
                assert len(found) == (5 if part == own else 0)
            assert ask(url, "nowhere", key).json() == {"events": []}
            assert len(ask(url, "all", key).json()["events"]) == 5


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{}", b"[]", b'{"events":['),
        *(b'{"events":[{"version":0,"data":1}]}', b'{"events":[{"version":7,"data":1}]}'),
        *(b'{"events":[{"version":8}]}', b'{"events":[{"version":"8","data":1}]}'),
        b'{"events":[{"version":9,"data":1},{"version":9,"data":1}]}',
        b'{"events":[{"version":9,"data":1},{"version":8,"data":1}]}',
        *(b'{"events":[],"more":true}', b'{"events":[{"version":9,"data":"\xff"}]}'),
    ],
)
def test_answer_that_is_no_history_is_refused(body):
    """A client refuses a body that was cut, or whose versions do not rise."""
    with pytest.raises(ProtocolError):
        decode_key_page(body, 7)
