"""Batches that writers send over HTTP: appended wholly or not at all, once, and within bounds."""

import gzip
import json
import socket
import threading
import time
import traceback
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from select import select
from typing import TypedDict
from urllib.parse import urlsplit

import anyio
import httpx
import pytest
import sqlalchemy as sa
import zstandard
from harness.appended import ids
from harness.readers import engine_of, kind, mounted
from harness.waiting import until
from starlette.applications import Starlette

from zeroeventhub import (
    AppendRight,
    Capacity,
    Client,
    ConnectionPool,
    EventLog,
    FeedInfo,
    Partition,
    Principal,
    everybody,
    feed_routes,
)
from zeroeventhub.errors import Unavailable
from zeroeventhub.extensions import APPEND
from zeroeventhub.partitions import key_hash

LINES = "application/x-ndjson"
BATCH = "application/cloudevents-batch+json"


def made(engine, **options):
    """Create a log of four partitions that takes events over HTTP."""
    metadata = sa.MetaData()
    log = EventLog(metadata, "events", **{"partitions": 4, "append": True} | options)
    metadata.create_all(engine)
    return log


@pytest.fixture
def log(engine):
    """A log that takes events over HTTP, on each database."""
    return made(engine)


@pytest.fixture
def own(sqlite):
    """A log that takes events over HTTP, on SQLite."""
    return made(sqlite)


@contextmanager
def taking(engine, log, **options):
    """Serve a log; yield the address for appends, and the feed's."""
    with mounted(log.feed(), engine, **options) as url:
        yield f"{url}/append"


def events(*numbers, **more):
    """Events of these numbers."""
    return [
        {"id": f"e{n}", "type": "counted", "data": {"n": n}, "key": f"k{n % 3}", **more}
        for n in numbers
    ]


def text(batch):
    """Write a batch of lines."""
    return b"".join(json.dumps(event).encode() + b"\n" for event in batch)


def post(url, batch, *, form=LINES, headers=None, **query):
    """Append a batch; a list is written as lines."""
    body = batch if isinstance(batch, bytes) else text(batch)
    headers = {"Content-Type": form, **(headers or {})}
    return httpx.post(url, content=body, headers=headers, params=query, timeout=60)


def accepted(answer):
    """What an answer says of the events."""
    assert answer.status_code == 201, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"
    return answer.json()["events"]


def refused(answer, status, problem):
    """Expect a problem; return its members."""
    assert (answer.status_code, kind(answer)) == (status, problem), answer.text
    return answer.json()


def places(batch):
    """What an answer says of events without versions."""
    return [
        {"partition": key_hash(one.get("key", one["id"])) % 4, "id": one["id"]} for one in batch
    ]


@pytest.mark.parametrize("driver", ["sync", "async"])
def test_batch_is_appended_and_read(engine, log, driver):
    """Events of either form are appended in order, and read as if the service had written them."""
    with taking(engine_of(driver, engine), log) as url:
        batch = [*events(0, 1, 2, 3), {"id": "ë", "type": "noted", "data": ["ë", None, 0.5]}]
        assert accepted(post(url, batch)) == places(batch)
        cloud = [
            {"specversion": "1.0", "source": "/x", "subject": "k0", **each, "id": f"c{each['id']}"}
            for each in events(1, 2)
        ]
        answer = post(url, json.dumps(cloud).encode(), form=f"{BATCH}; charset=utf-8")
        assert [one["id"] for one in accepted(answer)] == ["ce1", "ce2"]
        assert ids(engine, log) == ["e0", "e1", "e2", "e3", "ë", "ce1", "ce2"]
        with ConnectionPool() as http:
            client = Client(url.removesuffix("/append"), http)
            assert {"append", "producer-sequence"} <= client.discover().extensions
            (place,) = places(batch[4:])
            page = client.fetch(place["partition"], "_first")
            assert batch[4]["data"] in [event.data for event in page.events]


def test_refused_batch_of_a_producer_does_not_count(engine, log):
    """After a batch that is refused, the next one of its producer has the same sequence."""
    with taking(engine, log) as url:
        accepted(post(url, events(1), producer="p", sequence=1))
        other = {**events(1)[0], "data": {"n": 2}}
        refused(post(url, [other], producer="p", sequence=2), 409, "id-reused")
        accepted(post(url, events(3), producer="q", sequence=1))
        accepted(post(url, events(2), producer="p", sequence=2))
        assert sorted(ids(engine, log)) == ["e1", "e2", "e3"]


def test_one_producer_of_two_processes(engine, log, pool):
    """Of two processes that append the same batch number of one producer, one is refused."""
    with taking(engine, log) as one, taking(engine, log) as other:
        for sequence in range(1, 9):
            asked = [
                pool.submit(post, url, events(number), producer="p", sequence=sequence)
                for url, number in ((one, 2 * sequence), (other, 2 * sequence + 1))
            ]
            statuses = sorted(each.result().status_code for each in asked)
            assert statuses in ([201, 409], [201, 503]), statuses
    assert len(ids(engine, log)) == 8


def test_writer_that_leaves_asks_again(engine, log):
    """A writer that vanishes before the answer finds out by sending the batch again."""
    with taking(engine, log) as url:
        for n in range(1, 6):
            with begun(url, text(events(n))) as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            assert accepted(post(url, events(n))) == places(events(n))
        assert ids(engine, log) == [f"e{n}" for n in range(1, 6)]


def test_writer_that_is_cancelled_takes_no_other_with_it(sqlite, own):
    """Writers whose batches wait together get their answers without the first of them, whose
    events no later writer appends.
    """
    committing, may_commit = threading.Semaphore(0), threading.Semaphore(0)

    def commit(_):
        committing.release()
        may_commit.acquire(timeout=20)

    sa.event.listen(sqlite, "commit", commit)
    app = Starlette(routes=feed_routes("", own.feed(), sqlite))
    statuses = []

    async def write(number, scope):
        with scope:
            form = {"Content-Type": LINES}
            answer = await http.post("/append", content=text(events(number)), headers=form)
            statuses.append(answer.status_code)

    async def run():
        scopes = [anyio.CancelScope() for _ in range(4)]
        async with http, anyio.create_task_group() as group:
            for number, scope in enumerate(scopes):
                group.start_soon(write, number, scope)
                if number == 0:
                    await anyio.to_thread.run_sync(committing.acquire)
            await anyio.sleep(0.2)  # the others wait for the first
            scopes[1].cancel()
            await anyio.sleep(0.1)
            may_commit.release(9)

    http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x")
    anyio.run(run)
    assert statuses == [201, 201, 201]
    assert ids(sqlite, own) == ["e0", "e2", "e3"]


def test_writers_take_turns(sqlite, own):
    """A writer whose batches wait in a long line leaves the next turn to another writer."""
    committing, may_commit = threading.Semaphore(0), threading.Semaphore(0)
    commits = []

    def commit(_):
        commits.append(1)
        committing.release()
        may_commit.acquire(timeout=20)

    app = Starlette(routes=feed_routes("", own.feed(), sqlite, authorize=by_name(AppendRight())))
    order = []

    async def write(name, batch):
        form = {"Content-Type": LINES, "name": name}
        answer = await http.post("/append", content=text(batch), headers=form)
        assert answer.status_code == 201
        order.append(name)

    async def run():
        large = [events(*range(first, first + 5_001)) for first in range(0, 40_000, 5_001)]
        # With the last two of these, other writers' batches form a group.
        large[-1] = large[-1][:4_000]
        async with http, anyio.create_task_group() as group:
            for number, batch in enumerate(large):
                group.start_soon(write, "greedy", batch)
                if number == 0:
                    await anyio.to_thread.run_sync(committing.acquire)
            await anyio.sleep(1)  # the others wait for the first
            for number in (50_001, 50_002):
                group.start_soon(write, f"other{number}", events(number))
            await anyio.sleep(0.2)
            may_commit.release(99)

    http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x", timeout=60)
    sa.event.listen(sqlite, "commit", commit)
    anyio.run(run)
    assert len(commits) == 7  # the last one of three writers
    assert {*order[:5]} == {"greedy", "other50001", "other50002"}


def test_error_of_a_group_does_not_grow_with_its_writers():
    """Writers whose batches fail together raise one error, whose traceback does not grow."""
    failure = Unavailable("The log is away.")

    class Away:
        async def info(self):
            return FeedInfo((Partition(0),), "1", extensions=frozenset({APPEND}))

        async def read(self, partition, cursor, limit):
            raise failure

        async def append(self, batches):
            await anyio.sleep(0.1)  # for all others to come
            raise failure

    async def write(number):
        form = {"Content-Type": LINES}
        answer = await http.post("/append", content=text(events(number)), headers=form)
        assert answer.status_code == 503

    async def run():
        async with http, anyio.create_task_group() as group:
            for number in range(100):
                group.start_soon(write, number)

    app = Starlette(routes=feed_routes("", Away()))
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x")
    anyio.run(run)
    assert len(traceback.extract_tb(failure.__traceback__)) < 30  # all of them would be 300


@contextmanager
def begun(url, body, *, length=None, headers=""):
    """Send a request, or a part of it; yield the connection."""
    parts = urlsplit(url)
    head = f"POST {parts.path} HTTP/1.1\r\nHost: x\r\nContent-Type: {LINES}\r\n{headers}"
    size = len(body) if length is None else length
    with socket.create_connection((parts.hostname, parts.port)) as connection:
        connection.settimeout(20)
        connection.sendall(f"{head}Content-Length: {size}\r\n\r\n".encode() + body)
        yield connection


def expect_refusal(*connections):
    """Wait until one of several bodies that are held back is refused."""
    answered, _, _ = select(connections, [], [], 20)
    answer = answered[0].recv(65536).lower()
    assert b" 503 service" in answer
    assert b"retry-after: 1" in answer


def test_upload_that_breaks_appends_nothing(sqlite, own):
    """A body that ends early, or stays away, appends nothing, and frees what it held."""
    capacity = Capacity(receiving_seconds=0.2)
    body = text(events(1))
    with taking(sqlite, own, capacity=capacity) as url:
        with begun(url, body, length=len(body) + 1):
            pass
        with begun(url, body, length=len(body) + 1) as connection:
            assert b"503 Service" in connection.recv(65536)
        assert accepted(post(url, events(2)))
        assert ids(sqlite, own) == ["e2"]


def test_bodies_may_be_compressed(sqlite, own):
    """Batches come compressed by gzip or zstd, and broken ones are refused."""
    with taking(sqlite, own) as url:
        for number, (name, compress) in enumerate(
            {"gzip": gzip.compress, "zstd": zstandard.compress, "identity": bytes}.items()
        ):
            packed = compress(text(events(*range(number * 9, number * 9 + 5))))
            coding = {"Content-Encoding": name}
            accepted(post(url, packed, headers=coding))
            if name != "identity":
                refused(post(url, packed[:-3], headers=coding), 400, "bad-request")
                refused(post(url, b"x" + packed, headers=coding), 400, "bad-request")
        for other in ("br", "gzip, gzip", "deflate"):
            answer = post(url, b"x", headers={"Content-Encoding": other})
            refused(answer, 415, "unsupported-media-type")
    assert len(ids(sqlite, own)) == 15


def test_bombs_stop_at_the_bound(sqlite, own):
    """A body that is huge when it is decompressed is given up at the bound."""
    packer = zlib.compressobj(wbits=31)
    bomb = b"".join(packer.compress(b" " * 2**20) for _ in range(32)) + packer.flush()
    nested = gzip.compress(gzip.compress(b" " * 2**20))
    with taking(sqlite, own) as url:
        began = time.process_time()
        refused(post(url, bomb, headers={"Content-Encoding": "gzip"}), 413, "too-large")
        packed = zstandard.compress(b" " * 2**25)
        refused(post(url, packed, headers={"Content-Encoding": "zstd"}), 413, "too-large")
        refused(post(url, nested, headers={"Content-Encoding": "gzip"}), 400, "bad-request")
        assert time.process_time() - began < 2


def test_bytes_and_requests_at_a_time_are_bounded(sqlite, own):
    """Bodies that are held back do not use more memory than allowed, and other writers go on."""
    capacity = Capacity(receiving_bytes=100_000, queue=3)
    with taking(sqlite, own, capacity=capacity) as url:
        held = b" " * 60_000
        with begun(url, held, length=70_000) as one, begun(url, held, length=70_000) as other:
            expect_refusal(one, other)
            assert accepted(post(url, events(2)))
            with ExitStack() as more:
                expect_refusal(*(more.enter_context(begun(url, b" ", length=9)) for _ in range(3)))
        big = text([{**events(1)[0], "data": "x" * 60_000}])
        until(lambda: post(url, big).status_code == 201, "the bytes are given back")


def test_memory_of_short_events_is_bounded(sqlite, own):
    """Short events, which take many times their bytes in memory, count as what they take."""
    committing, may_commit = threading.Semaphore(0), threading.Semaphore(0)

    def commit(_):
        committing.release()
        may_commit.acquire(timeout=20)

    capacity = Capacity(receiving_bytes=1_000_000)
    with taking(sqlite, own, capacity=capacity) as url, ThreadPoolExecutor() as threads:
        sa.event.listen(sqlite, "commit", commit)
        first = threads.submit(post, url, events(*range(1_000)))
        committing.acquire()
        refused(post(url, events(*range(1_000, 2_000))), 503, "unavailable")
        small = threads.submit(post, url, events(*range(2_000, 2_100)))
        may_commit.release(9)
        assert [one.result().status_code for one in (first, small)] == [201, 201]
        accepted(post(url, events(*range(1_000, 2_000))))


def test_writer_leaves_places_to_others(sqlite, own):
    """A writer that holds many batches back is refused before other writers are."""
    capacity, hook = Capacity(queue=4), by_name(AppendRight())
    with taking(sqlite, own, authorize=hook, capacity=capacity) as url, ExitStack() as held:
        bodies = (begun(url, b" ", length=9, headers="name: greedy\r\n") for _ in range(4))
        expect_refusal(*map(held.enter_context, bodies))
        assert accepted(post(url, events(1)))


@pytest.mark.parametrize("name", ["", "w"])
def test_batch_that_is_alone_may_exceed_the_bytes_at_a_time(sqlite, own, name):
    """A batch of any allowed size comes through when no other one is there."""
    options = {"authorize": lambda _: Principal(name=name, append=AppendRight())}
    with taking(sqlite, own, capacity=Capacity(receiving_bytes=1_000), **options) as url:
        big = text([{**events(1)[0], "data": "x" * 1_000_000}])

        def is_refused():
            # The smaller batch is the one that is refused if the big one comes first.
            with begun(url, b" ", length=9):
                return post(url, big).status_code == 503

        until(is_refused, "other bytes are held")
        until(lambda: post(url, big).status_code == 201, "the bytes are given back")


def test_log_takes_events_only_where_it_is_switched_on(sqlite):
    """A log that was made without appends has no such route, nor a table for producers."""
    log = made(sqlite, append=False)
    with taking(sqlite, log) as url:
        refused(post(url, events(1)), 404, "not-found")
        assert httpx.get(url, params={"producer": "p"}).status_code == 404
    assert sa.inspect(sqlite).get_table_names() == ["events"]


class Counted(TypedDict):
    """The data of events that are counted."""

    n: int


@pytest.mark.parametrize("schemas", [{"counted": Counted}, {"*": Counted}, Counted])
def test_event_that_does_not_fit_its_schema_is_refused(sqlite, own, schemas):
    """An event that is not of its type's model is refused with the path of what does not fit."""
    feed = own.feed(schemas=schemas)
    with mounted(feed, sqlite) as url:
        wrong = [{"id": "x", "type": "counted", "data": {"n": [1]}}]
        found = refused(post(f"{url}/append", [*events(1), *wrong]), 422, "invalid-event")
        assert found["path"] == "$[1].data.n"
        assert ids(sqlite, own) == []
        accepted(post(f"{url}/append", events(1)))


def test_schema_is_of_its_type_in_any_case(sqlite, own):
    """No case of a type leads past its schema to readers who ask for the type."""
    feed = own.feed(schemas={"Counted": Counted})
    with mounted(feed, sqlite) as url:
        for name in ("Counted", "counted", "cOUNTED"):
            wrong = [{"id": name, "type": name, "data": {"n": "x"}}]
            refused(post(f"{url}/append", wrong), 422, "invalid-event")
            accepted(post(f"{url}/append", [{"id": name, "type": name, "data": {"n": 1}}]))


@pytest.mark.parametrize(("others", "third"), [("other", "third"), ("*", "counted")])
def test_types_without_a_model_take_any_data(sqlite, own, others, third):
    """Types that a log does not describe, or only by a schema, are not compared."""
    feed = own.feed(schemas={"counted": {"type": "string"}, others: Counted})
    with mounted(feed, sqlite) as url:
        accepted(post(f"{url}/append", [*events(1), {"id": "x", "type": third, "data": []}]))


def by_name(right):
    """A hook that lets one writer append by a right."""

    async def authorize(request):
        return Principal(name=request.headers.get("name", "shop"), append=right)

    return authorize


def test_principal_appends_only_what_it_may(sqlite, own):
    """A principal may append nothing unless its right says so: types, keys, partitions."""
    for hook in (everybody, by_name(None)):
        with taking(sqlite, own, authorize=hook) as url:
            refused(post(url, events(1)), 403, "forbidden")
    key, partition = "k1", key_hash("k1") % 4
    other = next(n for n in (0, 2) if key_hash(f"k{n}") % 4 != partition)
    for right in (AppendRight(types={"counted"}, keys=[key]), AppendRight(partitions=[partition])):
        with taking(sqlite, own, authorize=by_name(right)) as url:
            accepted(post(url, events(1, 4)))
            refused(post(url, events(1, other)), 403, "forbidden")
    with taking(sqlite, own, authorize=by_name(AppendRight(types=["noted"]))) as url:
        refused(post(url, events(1)), 403, "forbidden")
    with taking(sqlite, own, authorize=by_name(AppendRight(keys={"k1"}))) as url:
        refused(post(url, [{"id": "x", "type": "counted", "data": {}}]), 403, "forbidden")
    with taking(sqlite, own, authorize=by_name(AppendRight())) as url:
        accepted(post(url, events(7)))
    assert ids(sqlite, own) == ["e1", "e4", "e7"]


def test_version_of_a_key_is_hidden_where_nothing_may_be_appended(sqlite, own):
    """A writer learns nothing of the keys in partitions that it may not append to."""
    with taking(sqlite, own) as url:
        accepted(post(url, events(0, 3, expectedVersion=0)[:1]))
    elsewhere = {0, 1, 2, 3} - {key_hash("k0") % 4}
    with taking(sqlite, own, authorize=by_name(AppendRight(partitions=elsewhere))) as url:
        found = refused(post(url, events(6, expectedVersion=9)), 403, "forbidden")
        assert "version" not in found


def test_producers_of_two_principals_are_two(sqlite, own):
    """A principal neither moves nor sees the sequence of another one's producer."""
    with taking(sqlite, own, authorize=by_name(AppendRight())) as url:
        for number, name in enumerate(("shop", "till")):
            headers = {"name": name}
            asked = httpx.get(url, params={"producer": "p"}, headers=headers)
            assert asked.json() == {"sequence": 0}
            accepted(post(url, events(number), headers=headers, producer="p", sequence=1))
            assert httpx.get(url, params={"producer": "p"}, headers=headers).json() == {
                "sequence": 1
            }


def test_engine_that_commits_each_statement_is_the_fault_of_no_writer(sqlite, own):
    """Writers of a log that cannot append send again, while its publisher reads why."""
    engine = sa.create_engine(sqlite.url, isolation_level="AUTOCOMMIT")
    with taking(engine, own) as url:
        refused(post(url, events(1)), 500, "failed")
    engine.dispose()


def test_full_and_read_only_databases_say_so(tmp_path):
    """A database without room answers 507, and one that is read-only 503; nothing is written."""
    file = tmp_path / "log.db"
    engine = sa.create_engine(f"sqlite:///{file}")
    log = made(engine)

    @sa.event.listens_for(engine, "connect")
    def limit(connection, _):
        connection.execute(f"PRAGMA max_page_count = {limit.pages}")

    with engine.connect() as connection:
        limit.pages = connection.exec_driver_sql("PRAGMA page_count").scalar() + 2
    engine.dispose()
    with taking(engine, log) as url:
        big = [{**event, "data": "x" * 9000} for event in events(*range(9))]
        answer = post(url, big)
        refused(answer, 507, "storage-full")
        assert int(answer.headers["retry-after"]) >= 1
        assert accepted(post(url, events(20)))
    assert ids(engine, log) == ["e20"]
    engine.dispose()
    closed = sa.create_engine(f"sqlite:///file:{file}?mode=ro&uri=true")
    with taking(closed, log) as url:
        refused(post(url, events(21)), 503, "unavailable")
    closed.dispose()


@pytest.mark.parametrize("database", ["postgresql", "mariadb"])
def test_read_only_server_says_so(request, database):
    """A server that takes no writes answers 503."""
    engine = request.getfixturevalue(database)
    log = made(engine)
    statement = {
        "postgresql": "SET default_transaction_read_only = on",
        "mariadb": "SET SESSION TRANSACTION READ ONLY",
    }[database]

    @sa.event.listens_for(engine, "connect")
    def close(connection, _):
        with connection.cursor() as cursor:
            cursor.execute(statement)
        connection.commit()

    engine.dispose()
    with taking(engine, log) as url:
        refused(post(url, events(1)), 503, "unavailable")
        refused(post(url, events(1), producer="p", sequence=1), 503, "unavailable")
