"""The conformance kit: it finds planted faults, passes right feeds, and our consumers pass it."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import count, product

import anyio
import httpx
import pytest
from harness.calling import answer
from harness.mutant_publishers import MUTANTS, publisher
from harness.peer import peer_python, run_peer
from harness.readers import mounted
from harness.shop import metadata, orders
from harness.statements import add
from harness.stores import new_store
from harness.web import answering, serving
from sqlalchemy import MetaData, NullPool, create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette

from zeroeventhub import (
    AsyncClient,
    AsyncConsumer,
    Client,
    Consumer,
    CursorStore,
    EventLog,
    NewEvent,
    TableFeed,
    errors,
    feed_routes,
)
from zeroeventhub.conformance import all_checks, check_feed
from zeroeventhub.conformance.misbehaving import all_scenarios, expand, misbehaving

__all__ = ["peer_python"]

pytestmark = pytest.mark.timeout(600)  # the first run installs the peer

EVERYTHING = pytest.mark.test_all


def check(url, **options):
    """Check a feed; return the results by name."""
    with httpx.Client(verify=False) as http:
        return {result.name: result for result in check_feed(url, http, **options)}


def outcomes(results, outcome):
    """Return the reasons of all results that ended in one way, by name."""
    return {name: result.reason for name, result in results.items() if result.outcome == outcome}


# Our own publishers.


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
    metadata.create_all(engine)
    add(engine, orders, rows)


def check_table(engine, left_out=()):
    """Check the feed of a table that shows all that an event can have, but for some things."""
    metadata.create_all(engine)
    columns = {"data": "data", "type": "kind", "time": "placed", "id": "id", "partition": "part"}
    columns |= {"headers": {"customer": "customer"}, "cloudevents": True}
    columns = {name: column for name, column in columns.items() if name not in left_out}
    partitions = 2 if "partition" in columns else None
    feed = TableFeed(orders, partitions=partitions, **columns)
    with mounted(feed, engine, arrow=True) as url:
        return check(url)


OF_KEYS = {f"key-history{what}" for what in ("", "-pages", "-nothing", "-malformed")}
"""Checks of what only a feed with versions has."""

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
    ],
    ids=" ".join,
)
def test_our_publisher_conforms_without(sqlite, left_out):
    """A table's feed without some of the optional columns fails no check either."""
    place(sqlite, 60)
    results = check_table(sqlite, left_out)
    assert outcomes(results, "fail") == outcomes(results, "note") == {}


def test_one_broken_connection_is_one_finding(sqlite):
    """Of all checks that meet the same fault one fails, and the others say which one."""
    place(sqlite, 20)
    feed = TableFeed(orders, data="data", cloudevents=True)
    application = Starlette(routes=feed_routes("/orders", feed, sqlite))

    async def breaking(scope, receive, send):
        if scope["type"] == "lifespan" or scope["path"] == "/orders":
            return await application(scope, receive, send)
        head = {"type": "http.response.start", "status": 200}
        await send({**head, "headers": [(b"content-length", b"9")]})
        return await send({"type": "http.response.body", "body": b"{"})

    with serving(breaking) as url:
        results = check(f"{url}/orders")
    broken = [name for name, reason in outcomes(results, "fail").items() if "no whole" in reason]
    assert len(broken) == 1
    others = [reason for reason in outcomes(results, "skip").values() if "no whole" in reason]
    assert any(one.startswith(f"It meets the fault that {broken[0]} has") for one in others)
    assert len(others) > 5
    assert not {name for name in outcomes(results, "pass") if name.startswith("problem")}


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
    """A log's feed that shows the history of keys fails no check, and none of keys is skipped."""
    tables = MetaData()
    log = EventLog(tables, "log", partitions=2)
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


@EVERYTHING
def test_our_publisher_conforms_without_events(sqlite):
    """An empty table's feed fails no check; those that need events are skipped."""
    results = check_table(sqlite)
    assert outcomes(results, "fail") == {}
    assert "page-sizes" in outcomes(results, "skip")


@pytest.mark.slow
def test_publisher_that_is_written_to_conforms(sqlite):
    """Events that come in while a feed is checked make nothing fail."""
    metadata.create_all(sqlite)
    done = threading.Event()

    def write():
        for first in count(0, 4):
            if done.wait(0.01):
                return
            place(sqlite, 4, first)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            results = check_table(sqlite)
        finally:
            done.set()
        writing.result(timeout=30)
    assert outcomes(results, "fail") == {}


@pytest.mark.slow
def test_publisher_in_memory_conforms():
    """The feed that the mutants are made from fails no check."""
    with serving(publisher()) as url:
        results = check(f"{url}/feed")
    assert outcomes(results, "fail") == {}
    assert set(outcomes(results, "skip")) == {"closed", "token-rotation", "event-types-unlisted"}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name):
    """A publisher that breaks one rule fails the check of that rule."""
    caught_by, _ = MUTANTS[name]
    with serving(publisher(MUTANTS[name])) as url:
        result = check(f"{url}/feed", only=[caught_by])[caught_by]
    assert result.outcome == "fail", result.reason
    assert result.answer is not None


def test_most_checks_have_a_mutant():
    """Most checks have been seen to fail."""
    names = {name for name, check in all_checks().items() if not check.v1}
    assert len(names & {caught_by for caught_by, _ in MUTANTS.values()}) > len(names) / 2


def test_garbage_is_reported_and_breaks_nothing():
    """Discovery documents of every wrong form make checks fail or skip, and no check crash."""
    garbage = [b"[]", b"{}", b"\xff", b'{"token":[],"partitions":{}}', b"[" * 5000]
    garbage += [
        b'{"token":"1","partitions":[1,{"id":{}},{"id":"\xd9\xa1"},{"id":true}],"extensions":{}}',
        b'{"token":"1","partitions":[{"id":"0","closed":1,"startsAfterPartition":[]}]}',
        b'{"token":"1","partitions":[{"id":"0","cursorFromPartitions":"0"}],"extensions":[1]}',
    ]
    for body in garbage:
        with answering(lambda _, body=body: answer(body)) as url:
            assert outcomes(check(f"{url}/feed"), "fail"), body


@pytest.mark.slow
def test_slow_publisher_is_not_waited_for(monkeypatch):
    """When the time for all checks is over, what is left is skipped, and nothing fails for it."""
    monkeypatch.setattr("zeroeventhub.conformance.run.LONGEST", 1.0)
    application = publisher()

    async def slowly(scope, receive, send):
        if scope["type"] == "http":
            await anyio.sleep(0.15 if scope["path"] == "/feed" else 1.5)
        await application(scope, receive, send)

    began = time.monotonic()
    with serving(slowly) as url:
        results = check(f"{url}/feed")
    assert time.monotonic() - began < 8
    assert outcomes(results, "fail") == {}
    assert results["discovery-document"].outcome == "pass"
    assert "time" in results["splits"].reason


KNOWN_OF_PYTHON = {
    "v1-pagesizehint-zero",  # a 200 without a checkpoint
    "v1-pagesizehint-malformed",  # -1 reaches the reader
    "v1-lines-strict",  # NaN is sent
    "v1-parameters-twice",  # the last one counts
    "v1-cursor-malformed",  # the reader's error cuts a 200
    "v1-problem-documents",
    "v1-caching-no-store",
}
"""Checks that the published Python peer fails."""


def test_checks_find_what_is_known_of_the_python_peer(peer_python):
    """The published Python peer fails the checks of its known defects."""
    with run_peer(peer_python, "server.py", "trusting") as process:
        port = process.stdout.readline().strip()
        try:
            results = check(f"http://127.0.0.1:{port}/feed/v1", partitions=2)
        finally:
            process.terminate()
    assert set(outcomes(results, "fail")) >= KNOWN_OF_PYTHON
    right = {"several-cursors", "negotiation", "partition-count", "page-media-type"}
    assert {f"v1-{name}" for name in right} <= set(outcomes(results, "pass"))


# Our clients, and publishers that misbehave.

ERRORS = {
    "protocol": errors.ProtocolError,
    "moved": errors.NotFound,
    "trimmed": errors.Trimmed,
    "diverged": errors.Diverged,
    "gone": errors.Gone,
    "forbidden": errors.Forbidden | errors.Unauthorized,
    "refused": errors.ZeroEventHubError,
}
MOST_EVENTS = 50
TO_THE_END = {"follow": False, "attempts": 6}
SCENARIOS = [name for name, scenario in all_scenarios().items() if scenario.sizes is None]
FAMILIES = [name for name, scenario in all_scenarios().items() if scenario.sizes is not None]


@pytest.fixture(scope="module")
def scenarios_url():
    """The URL of a publisher that misbehaves."""
    with misbehaving() as url:
        yield url


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """The path of an SQLite database that has the cursors of all consumers."""
    path = tmp_path_factory.mktemp("kit") / "kit.db"
    engine = create_engine(f"sqlite:///{path}")
    new_store(engine)
    engine.dispose()
    return path


def consume(feed, partitions, path, apply):
    """Read a scenario to its end."""
    store = CursorStore(create_engine(f"sqlite:///{path}", poolclass=NullPool))
    name = feed.rpartition("/")[2]
    with httpx.Client(verify=False) as http:
        client = Client(feed, http, partitions=partitions)
        Consumer(client, store, name, **TO_THE_END).run(apply)


def consume_async(feed, partitions, path, apply):
    """Do the same in asynchronous code."""
    store = CursorStore(create_async_engine(f"sqlite+aiosqlite:///{path}", poolclass=NullPool))
    name = feed.rpartition("/")[2]

    async def apply_async(connection, page):
        apply(connection, page)

    async def run():
        async with httpx.AsyncClient(verify=False) as http:
            client = AsyncClient(feed, http, partitions=partitions)
            await AsyncConsumer(client, store, name, **TO_THE_END).run(apply_async)

    anyio.run(run)


def verdict_on(feed, lines):
    """Say to the publisher what was applied, and how it ended; return its verdict."""
    return httpx.post(f"{feed}/verdict", content="\n".join(lines).encode()).json()


def expect_right(url, name, consume, database):
    """Read a scenario, and expect exactly what a right consumer has applied."""
    scenario = expand(name)
    feed = f"{url}/{name}@{consume.__name__}"
    applied, error = [], None

    def apply(_, page):
        applied.extend((page.partition, event.raw.decode()) for event in page.events)
        assert len(applied) < MOST_EVENTS, "events come again and again"

    try:
        consume(feed, scenario.v1, database, apply)
    except errors.ZeroEventHubError as refusal:
        error = refusal
    lines = [f'{{"partition":{partition},"data":{data}}}' for partition, data in applied]
    lines += ['{"error":"it ended"}'] if error else []
    assert verdict_on(feed, lines) == {"passed": True, "reasons": []}
    if error is not None and scenario.may_fail:
        return
    assert (error is None) == (scenario.error is None), error
    assert error is None or isinstance(error, ERRORS[scenario.error])
    for partition, events in scenario.applied.items():
        assert [data for number, data in applied if number == partition] == list(events)


WHOLE_WAYS = {"good", "tail", "failed-once", "trimmed", "token-changed", "children", "v1-good"}
"""Scenarios that both consumers read in `make test`; they decide by the same code."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "consume"),
    [
        *product(SCENARIOS, [consume]),
        *(
            pytest.param(name, consume_async, marks=() if name in WHOLE_WAYS else EVERYTHING)
            for name in SCENARIOS
        ),
    ],
)
def test_our_consumers_come_through(scenarios_url, database, name, consume):
    """Whatever a publisher does, events are applied once, in order, or an error says why not."""
    expect_right(scenarios_url, name, consume, database)


@pytest.mark.slow
@pytest.mark.parametrize("rest", [False, pytest.param(True, marks=EVERYTHING)])
@pytest.mark.parametrize("family", FAMILIES)
def test_our_consumers_come_through_every_cut(scenarios_url, database, family, rest):
    """An answer that breaks off at any byte leads to each event being applied once."""
    for offset in range(all_scenarios()[family].sizes):
        if bool(offset % 17) == rest:
            expect_right(scenarios_url, f"{family}-{offset}", consume, database)


@pytest.mark.parametrize("applied", ["01", "01223", "0132", "0123!"])
def test_verdict_says_what_is_wrong(scenarios_url, applied):
    """A client that loses, repeats or shuffles events does not pass, and neither does an error."""
    lines = ['{"error":1}' if n == "!" else f'{{"data":{{"n":{n}}}}}' for n in applied]
    verdict = verdict_on(f"{scenarios_url}/good", lines)
    assert not verdict["passed"]
    reason = "error" if "!" in applied else "4 events should have been applied"
    assert reason in verdict["reasons"][0]


def test_index_lists_every_scenario(scenarios_url):
    """The address of the scenarios lists them, with what a right client has applied."""
    listed = httpx.get(f"{scenarios_url}/").json()
    assert [entry["name"] for entry in listed] == list(all_scenarios())
    assert listed[0]["applied"] == {"0": [json.dumps({"n": n}).replace(" ", "") for n in range(4)]}
    assert httpx.get(f"{scenarios_url}/nothing").status_code == 404
    assert httpx.get(f"{scenarios_url}/cut-3/expected").json()["name"] == "cut-3"


def test_redirection_that_is_followed_is_held_against_a_client(scenarios_url):
    """A client that follows a redirection to another origin does not pass."""
    feed = f"{scenarios_url}/redirect@follower"
    httpx.get(feed, follow_redirects=True)
    assert "redirection" in verdict_on(feed, ['{"error":"moved"}'])["reasons"][0]
