"""What a reader may not see is reported as absent: on every route, over real HTTP."""

import json
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product

import httpx
import pytest
from harness.published import install
from harness.readers import Numbers, client_of, cursor_of, kind, mounted, open_stream
from harness.shop import metadata, orders
from sqlalchemy import event, insert

from zeroeventhub import FeedInfo, Partition, Principal, TableFeed, TypeFilter, bearer_tokens
from zeroeventhub.archive import Archive
from zeroeventhub.extensions import EVENT_TYPES
from zeroeventhub.publisher.progress import Progress
from zeroeventhub.publisher.retention import Retention

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
KINDS = ["placed", "paid", None, "Paid"]
ROUTES = ["events", "cursor", "splits", "lag", "cursor-of-count", "http-feed", "server-sent-events"]
TYPED = {"cursor", "splits", "lag", "cursor-of-count"}  # routes that tell of events of all types
READERS = {
    "everything": Principal(name="everything"),
    "half": Principal(name="half", partitions={0, 2}),
    "one": Principal(name="one", partitions=[1]),
    "nowhere": Principal(name="nowhere", partitions=()),
    "paid": Principal(name="paid", types=["paid"]),
    "unpaid": Principal(name="unpaid", types=TypeFilter(frozenset({"paid"}), skip=True)),
    "nothing": Principal(name="nothing", types=()),
    "both": Principal(name="both", partitions={3}, types={"PAID", "unknown"}),
}


def token(name):
    """The bearer token of a reader."""
    return f"{name}-0123456789abcdef"


@pytest.fixture
def shop(any_engine):
    """An engine of a database with forty orders of four types in four partitions."""
    return fill(any_engine)


def fill(engine):
    """Write the orders; return the engine."""
    metadata.create_all(engine)
    write(engine, range(40))
    return engine


def write(engine, numbers):
    """Append orders, each with its number in its data."""
    with engine.begin() as connection:
        rows = [
            {
                "part": n % 4,
                "kind": KINDS[n // 4 % 4],
                "placed": NOON + timedelta(seconds=n),
                "data": {"n": n},
            }
            for n in numbers
        ]
        connection.execute(insert(orders), rows)


def source(**options):
    """A feed over the orders."""
    options = {"partitions": 4, "type": "kind", "time": "placed", "cloudevents": True, **options}
    return TableFeed(orders, data="data", partition="part", **options)


@contextmanager
def sessions(feed, engine=None, readers=READERS, **options):
    """Serve a feed to its readers; yield a function that gives a reader's session."""
    hook = bearer_tokens({token(name): principal for name, principal in readers.items()})
    options |= {"authorize": hook, "http_feed": True, "server_sent_events": True}
    with mounted(feed, engine, **options) as url, httpx.Client(timeout=20) as client:

        def session(name):
            def ask(path="", headers=None, **parameters):
                headers = {"Authorization": f"Bearer {token(name)}", **(headers or {})}
                address = f"{url}/{path}" if path else url
                return client.get(address, params=parameters, headers=headers)

            ask.url = url
            ask.headers = {"Authorization": f"Bearer {token(name)}"}
            return ask

        yield session


def place(partition, cursor="_first", **more):
    """The parameters of a request to a partition."""
    return {"token": "4", "partition": partition, "cursor": cursor, **more}


def numbers(answer):
    """The numbers of the events of a page."""
    assert answer.status_code == 200, answer.text
    *lines, last = map(json.loads, answer.text.splitlines())
    assert "cursor" in last
    return [line["data"]["data"]["n"] for line in lines]


def streamed(ask, count, **parameters):
    """The numbers of the first events of a stream."""

    def stopped(received):
        return received.count(b"data: ") >= count and received.endswith(b"\n\n")

    received = open_stream(ask.url, stopped, headers=ask.headers, **parameters)
    lines = received.decode().splitlines()
    return [json.loads(line[6:])["data"]["n"] for line in lines if line.startswith("data: ")]


EXTRA = {
    "cursor": {"time": "2026-03-01T12:00:10Z"},
    "splits": {"count": 3},
    "cursor-of-count": {"events": 3},
}


def request_for(route, partition):
    """The parameters of a good request to a route."""
    if route == "http-feed":
        return {"partition": partition}
    return place(partition, **EXTRA.get(route, {}))


def said(answer):
    """What an answer says, without what differs from answer to answer."""
    headers = {name: answer.headers[name] for name in ("content-type", "cache-control", "vary")}
    document = {**answer.json(), "instance": ""}
    return answer.status_code, headers, document, answer.headers.get("content-length")


class Split(Numbers):
    """An own feed whose partitions were split off other partitions."""

    def info(self):
        partitions = [Partition(0, closed=True), Partition(1, starts_after=0, cursor_from=(5, 4))]
        partitions.append(Partition(2, starts_after=0, cursor_from=(4,)))
        return FeedInfo(tuple(partitions), "4", extensions=frozenset({"wait"}))

    def cursor_of(self, event_id, partition):
        return "1"


def test_discovery_does_not_refer_to_hidden_partitions():
    """Discovery names the origin of a partition only to readers who may read the origin."""
    readers = {
        "child": Principal(name="child", partitions={1, 4}),
        "family": Principal(name="family", partitions={0, 2}),
    }
    with sessions(Split(1), readers=readers) as session:
        assert session("child")().json()["partitions"] == [
            {"id": "1", "cursorFromPartitions": ["4"]}
        ]
        assert session("family")().json()["partitions"] == [
            {"id": "0", "closed": True},
            {"id": "2", "startsAfterPartition": "0"},
        ]


def test_feed_that_does_not_know_types_shows_nothing_to_a_reader_of_some(caplog):
    """Where rights could not be enforced there is no answer, and the log says what to change."""
    readers = {"all": Principal(name="all"), "some": Principal(name="some", types={"paid"})}
    with sessions(Split(1), readers=readers) as session:
        for route in ("", "events", "http-feed", "server-sent-events"):
            answer = session("some")(route, **(place(1) if route else {}))
            assert (answer.status_code, kind(answer)) == (500, "failed")
            assert "type" not in answer.json()["detail"]
        assert "name a column of text as the type" in caplog.text
        v1 = session("some")(n=3, cursor0="_first")
        assert v1.status_code == 500
        assert session("all")().status_code == 200


def test_reader_sees_its_partitions_alone(shop):
    """Each reader sees only its own partitions, in discovery and in pages, also of version 1."""
    with sessions(source(), shop) as session:
        seen = {"everything": "0123", "half": "02", "one": "1", "nowhere": "", "both": "3"}
        for name, expected in {**seen, "paid": "0123"}.items():
            document = session(name)().json()
            assert {one["id"] for one in document["partitions"]} == {*expected}
            assert document["token"] == "4"
        found = session("one")("http-feed").json()
        assert [event["data"]["n"] for event in found] == [*range(1, 40, 4)]
        assert streamed(session("one"), 3)[:3] == [1, 5, 9]
        assert session("half")("http-feed").status_code == 400
        ask = session("half")
        assert numbers(ask("events", **place(2))) == [*range(2, 40, 4)]
        assert numbers(session("both")("events", **place(3))) == [7, 15, 23, 31, 39]
        v1 = ask(n=4, cursor0="_first", cursor1="_first", cursor2="_first", cursor3="_first")
        lines = [json.loads(line) for line in v1.text.splitlines()]
        assert {line["partition"] for line in lines} == {0, 2}
        assert sum("data" in line for line in lines) == 20
        hidden, missing = ask(n=4, cursor1="_first"), ask(n=4, cursor17="_first")
        assert hidden.status_code == 400
        assert said(hidden) == said(missing)
        # The number of partitions is the feed's, or version 1 could not be spoken by one who
        # sees some.
        assert ask(n=2, cursor0="_first").status_code == 400


class Relay:
    """A feed of one's own that reads another feed."""

    def __init__(self, client):
        self.client = client

    def info(self):
        return replace(self.client.discover(), extensions=frozenset({EVENT_TYPES}))

    def read(self, partition, cursor, limit, *, types=None):
        return self.client.fetch(partition, cursor, limit=limit, types=types)


def test_reader_sees_no_more_through_a_relay(shop):
    """A reader who may see none of the types that it asks for gets no event through a relay."""

    def answer(name, **asked):
        principal = READERS[name]
        with mounted(Relay(client), authorize=lambda _: principal) as url:
            return httpx.get(f"{url}/events", params=place(0, **asked))

    with mounted(source(), shop) as behind, client_of(behind) as client:
        assert numbers(answer("paid")) == [4, 12, 20, 28, 36]
        refused = [answer("paid", **{"event-types": "placed"}), answer("nothing")]
    assert [one.status_code for one in refused] == [500, 500]


@pytest.mark.parametrize(
    "ordering",
    [None, pytest.param("sequenced", marks=pytest.mark.test_all)],
    ids=["by default", "sequenced"],
)
def test_reader_sees_the_types_that_it_may(engine, ordering):
    """What a reader may see and what it asks for are one filter, on every route with events."""
    shop, feed = fill(engine), source(ordering=ordering)
    install(feed, shop)
    expected = {
        "everything": [0, 4, 8, 12, 16, 20, 24, 28, 32, 36],
        "paid": [4, 12, 20, 28, 36],
        "unpaid": [0, 8, 16, 24, 32],
        "nothing": [],
    }
    with sessions(feed, shop) as session:
        assert session("half")("events", **place(1)).status_code == 400
        for name, all_ in expected.items():
            ask = session(name)
            answer = ask("events", **place(0))
            assert numbers(answer) == all_
            # A reader who sees nothing of a partition gets on in it, and does not read it anew.
            assert int(cursor_of(answer).split("-")[1]) >= 37
            # Nothing that was asked for widens what may be seen.
            only = numbers(ask("events", **place(0, **{"event-types": "paid;placed"})))
            assert only == [n for n in all_ if n // 4 % 4 in {0, 1, 3}]
            skip = numbers(ask("events", **place(0, **{"skip-event-types": "placed"})))
            assert skip == [n for n in all_ if n // 4 % 4]
            v1 = [json.loads(line) for line in ask(n=4, cursor0="_first").text.splitlines()]
            assert [line["data"]["data"]["n"] for line in v1[:-1]] == all_
            feed = ask("http-feed", partition=0).json()
            assert [event["data"]["n"] for event in feed] == all_
            for asked, found in ("placed;paid", only), ("paid", [n for n in only if n // 4 % 2]):
                if found:
                    options = {"event-types": asked, "partition": 0}
                    assert streamed(ask, len(found), **options) == found


def test_readers_who_wait_together_see_what_each_may(shop, watcher, pool):
    """Those who wait at the same place are woken together, and each is given its own page."""
    with sessions(source(), shop, observer=watcher) as session:
        cursor = cursor_of(session("everything")("events", **place(0, "_last")))
        names = {"everything": 10, "paid": 10, "unpaid": 10, "nothing": 0.6}
        waiting = {
            name: pool.submit(session(name), "events", **place(0, cursor, wait=wait))
            for name, wait in names.items()
        }
        watcher.until_waiting(4)
        write(shop, [40, 44])
        found = {name: numbers(answer.result()) for name, answer in waiting.items()}
        assert found == {"everything": [40, 44], "paid": [44], "unpaid": [40], "nothing": []}


def test_routes_that_tell_of_all_types_are_not_there_for_a_part_of_them(shop):
    """Counts, places and times of events of all types are not for readers of some."""
    with sessions(source(), shop) as session:
        for route, reader in product(TYPED, ("paid", "unpaid", "nothing", "both")):
            name = {"cursor": "cursor-of-time"}.get(route, route)
            assert name in session("half")().json()["extensions"]
            ask = session(reader)
            assert name not in ask().json()["extensions"]
            assert {"event-types", "stop", "wait"} <= {*ask().json()["extensions"]}
            answer = ask(route, **request_for(route, 3))
            assert (answer.status_code, kind(answer)) == (404, "not-found")


def test_id_of_an_event_that_may_not_be_seen_is_unknown(shop):
    """An HTTP feed does not tell whether an event of another type or partition has an id."""
    feed = source(id="customer")
    with shop.begin() as connection:
        for type_, part, customer in [("paid", 0, "a"), ("placed", 0, "b"), ("paid", 1, "c")]:
            values = {"kind": type_, "part": part, "customer": customer, "data": {"n": 100}}
            connection.execute(insert(orders), values)
    with sessions(feed, shop) as session:
        ask = session("paid")
        assert ask("http-feed", partition=0, lastEventId="a").status_code == 200
        unknown = ask("http-feed", partition=0, lastEventId="never")
        assert kind(unknown) == "bad-cursor"
        for hidden in ("b", "c"):
            answer = ask("http-feed", partition=0, lastEventId=hidden)
            assert said(answer) == said(unknown)
        everything = session("everything")
        assert everything("http-feed", partition=0, lastEventId="b").status_code == 200


def test_page_of_a_reader_of_some_types_is_not_kept_for_ever(shop):
    """With other rights the same request leads to another page, so that no cache may keep it."""
    with sessions(source(), shop) as session:
        cursor = cursor_of(session("everything")("events", **place(0, pagesizehint=1)))
        full = session("half")("events", **place(0, cursor, pagesizehint=2))
        assert full.headers["cache-control"] == "private, max-age=31536000, immutable"
        assert full.headers["vary"] == "Authorization"
        some = session("paid")("events", **place(0, cursor, pagesizehint=2))
        assert (some.headers["cache-control"], "etag" in some.headers) == ("no-store", False)
        tag = {"If-None-Match": full.headers["etag"]}
        parameters = place(0, cursor, pagesizehint=2)
        kept = session("half")("events", headers=tag, **parameters)
        assert (kept.status_code, kept.headers["vary"]) == (304, "Authorization")
        refused = httpx.get(f"{session('half').url}/events", params=parameters, headers=tag)
        assert (refused.status_code, refused.headers["vary"]) == (401, "Authorization")


def sealed(engine, folder):
    """A feed whose events are in files that are shared, and which notes how far consumers are."""
    fill(engine)
    archive = Archive(folder, shared="https://cdn.example/hoard")
    feed = source(retention=Retention(), archive=archive, progress=Progress())
    install(feed, engine)
    feed.bind(engine).seal(segment_events=9)
    return feed


@pytest.mark.parametrize(("name", "hidden"), [("half", 1), ("one", 3), ("nowhere", 0)])
def test_hidden_partition_is_one_that_does_not_exist(sqlite, tmp_path, name, hidden):
    """Nothing in an answer, and no number of statements, shows that a partition is hidden."""
    statements = []
    event.listen(sqlite, "before_cursor_execute", lambda *given: statements.append(given[2]))
    feed = sealed(sqlite, tmp_path)
    cursors = ["_first", "_last", "1-30", "1-99999", "?"]
    cursors.append(feed.bind(sqlite).read(hidden, "_first", 3).cursor)

    def all_of(partition):
        for route, cursor in product([*ROUTES, "segments", ""], cursors):
            asked = request_for(route, partition)
            asked |= {"cursor": cursor, "stop": cursors[-1]} if "cursor" in asked else {}
            asked |= {"wait": "0.1"} if route == "events" else {}
            statements.clear()
            answer = ask(route, **(asked if route else {"n": 4, f"cursor{partition}": cursor}))
            headers = {name: of for name, of in answer.headers.items() if name != "date"}
            document = {**answer.json(), "instance": ""}
            assert answer.status_code in {400, 404}
            yield route, cursor, answer.status_code, headers, document, list(statements)

    found = []
    for partition in (hidden, 17):
        with sessions(feed, sqlite) as session:
            ask = session(name)
            found.append([*all_of(partition)])
    assert found[0] == found[1]


def test_files_are_for_those_who_see_everything(sqlite, tmp_path):
    """A reader of a part sees no file on any route; a reader of everything sees all."""
    feed = sealed(sqlite, tmp_path)
    with sessions(feed, sqlite) as session:
        for name in set(READERS) - {"everything"}:
            ask = session(name)
            seen = [0 if name in {"half", "paid"} else 1 if name == "one" else 3]
            found = [ask(), ask(n=4, cursor0="_first", cursor1="_first", cursor3="_first")]
            assert "segments" not in found[0].json()["extensions"]
            for route, partition in product([*ROUTES[:-1], "segments"], seen):
                found.append(ask(route, **request_for(route, partition)))
                assert route != "segments" or found[-1].status_code == 404
                answers = name in {"half", "one"} or (route == "events" and name != "nowhere")
                assert not answers or route == "segments" or found[-1].status_code == 200
            shown = "".join(f"{answer.headers} {answer.text}" for answer in found)
            assert not any(word in shown for word in ("hoard", "cdn.", "segments/", str(tmp_path)))
        named = session("everything")("segments", **place(0)).json()
        assert named.keys() == {"segments", "cursor"}
        for one in named["segments"]:
            assert one.keys() == {"url", "size", "after", "upTo", "cursor"}
            assert one["url"].startswith("https://cdn.example/hoard/segments/")
            file = tmp_path / one["url"].removeprefix("https://cdn.example/hoard/")
            assert file.stat().st_size == one["size"]
        assert [(one["after"], one["upTo"]) for one in named["segments"]][:2] == [(0, 9), (9, 18)]
