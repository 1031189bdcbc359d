"""What the clients ask of feeds that can do more, and what they make of the answers."""

import json
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx
import pytest
from harness.shop import metadata, orders, place
from harness.web import answering, serving
from sqlalchemy import insert
from starlette.applications import Starlette

from zeroeventhub import FIRST, LAST, AsyncClient, Client, TableFeed, TypeFilter, feed_routes
from zeroeventhub.errors import ConfigurationError, NotFound, ProtocolError, Trimmed, Unreachable
from zeroeventhub.protocol import (
    CAUGHT_UP,
    CURSOR_OF_COUNT,
    CURSOR_OF_TIME,
    EVENT_TYPES,
    LAG,
    SPLITS,
    STOP,
    WAIT,
    CountedCursor,
    Lag,
)

EVERYTHING = frozenset(
    {CAUGHT_UP, CURSOR_OF_COUNT, CURSOR_OF_TIME, EVENT_TYPES, LAG, SPLITS, STOP, WAIT}
)
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
PAGE = b'{"data":{"n":1}}\n{"cursor":"a"}\n'


def call_sync(url, method, *arguments, session=None, feed=None, **options):
    """Call a method of a client of a feed."""
    with httpx.Client(**session or {}) as http:
        return getattr(Client(url, http, **feed or {}), method)(*arguments, **options)


def call_async(url, method, *arguments, session=None, feed=None, **options):
    """Call a method of an async client of a feed."""

    async def call():
        async with httpx.AsyncClient(**session or {}) as http:
            client = AsyncClient(url, http, **feed or {})
            return await getattr(client, method)(*arguments, **options)

    return anyio.run(call)


@pytest.fixture(params=[call_sync, call_async], ids=["sync", "async"])
def call(request):
    """A function that calls a method of either client."""
    return request.param


@pytest.fixture
def shop(sqlite):
    """The engine of a shop of 100 orders, one a minute from noon on, of two kinds in turn."""
    metadata.create_all(sqlite)
    with sqlite.begin() as connection:
        connection.execute(
            insert(orders),
            [
                {
                    "part": number % 2,
                    "kind": ("placed", "Paid")[number // 2 % 2],
                    "placed": NOON + timedelta(minutes=number),
                    "data": {"n": number},
                }
                for number in range(100)
            ],
        )
    return sqlite


@pytest.fixture
def url(shop):
    """The URL of the shop's orders, in 2 partitions."""
    feed = TableFeed(
        orders, partition="part", partitions=2, data="data", type="kind", time="placed"
    )
    with serving(Starlette(routes=feed_routes("/orders", feed, shop))) as root:
        yield f"{root}/orders"


def numbers(page):
    """The numbers of a page's orders."""
    return [event.data["n"] for event in page.events]


def test_feed_over_a_table_announces_everything(call, url):
    """Discovery names what the feed can do."""
    assert call(url, "discover").extensions == EVERYTHING


def test_types_are_chosen_or_skipped(call, url):
    """Events of the types that were asked for come, whatever the case of their letters."""
    paid, other = range(2, 100, 4), range(0, 100, 4)
    assert numbers(call(url, "fetch", 0, FIRST, types=TypeFilter({"PAID"}))) == list(paid)
    skipped = TypeFilter(frozenset({"paid", "nothing"}), skip=True)
    assert numbers(call(url, "fetch", 0, FIRST, types=skipped)) == list(other)
    both = TypeFilter(frozenset({"paid", "placed"}))
    assert len(numbers(call(url, "fetch", 0, FIRST, types=both))) == 50


def test_checkpoint_moves_over_events_that_were_left_out(call, url):
    """Where all events were left out, the page is empty and at the head."""
    page = call(url, "fetch", 0, FIRST, types=TypeFilter({"nothing"}))
    assert (numbers(page), page.caught_up) == ([], True)
    assert page.cursor == call(url, "fetch", 0, LAST).cursor


def test_page_says_that_it_was_the_last(call, url):
    """Only a page that held everything is caught up."""
    first = call(url, "fetch", 1, FIRST, limit=49)
    assert not first.caught_up
    second = call(url, "fetch", 1, first.cursor)
    assert (numbers(second), second.caught_up) == ([99], True)
    assert call(url, "fetch", 1, LAST).caught_up


def test_read_stops_where_it_is_told(call, url):
    """A read ends at a cursor, in as many pages as it takes, and says so."""
    stop = call(url, "fetch", 0, FIRST, limit=10).cursor
    one = call(url, "fetch", 0, FIRST, limit=7, stop=stop)
    two = call(url, "fetch", 0, one.cursor, limit=7, stop=stop)
    assert (numbers(one), one.stop_reached) == (list(range(0, 14, 2)), False)
    assert (numbers(two), two.cursor, two.stop_reached) == ([14, 16, 18], stop, True)
    nothing = call(url, "fetch", 0, stop, stop=stop)
    assert (numbers(nothing), nothing.cursor, nothing.stop_reached) == ([], stop, True)


def test_pieces_are_the_whole(call, url):
    """Between the cursors of splits lies every event once."""
    cursors = call(url, "splits", 0, 4)
    assert len(cursors) == 5
    pieces = [numbers(call(url, "fetch", 0, start, stop=stop)) for start, stop in pairwise(cursors)]
    assert sum(pieces, []) == list(range(0, 100, 2))  # noqa: RUF017 - four lists
    inner = call(url, "splits", 0, 3, start=cursors[1], stop=cursors[3])
    assert (inner[0], inner[-1]) == (cursors[1], cursors[3])


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=5, minutes=30))])
def test_cursor_of_a_moment_stands_before_it(call, url, zone):
    """A moment is found, whatever zone it is written in."""
    moment = (NOON + timedelta(minutes=50)).astimezone(zone)
    for partition in range(2):
        cursor = call(url, "cursor_at", moment, partition)
        assert numbers(call(url, "fetch", partition, cursor))[0] == 50 + partition
    assert call(url, "cursor_at", moment) == call(url, "cursor_at", moment, 0)


@pytest.mark.parametrize(
    "moment",
    [
        NOON.replace(tzinfo=None),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=1))),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))),
    ],
)
def test_moment_that_cannot_be_said_is_refused(call, url, moment):
    """A moment without a zone, or outside of UTC's years, is not sent."""
    with pytest.raises(ConfigurationError, match="moment"):
        call(url, "cursor_at", moment)


def test_feed_waits_at_its_head(call, url, shop):
    """An answer at the head is held back until its time is over; elsewhere it comes at once."""
    head = call(url, "fetch", 0, LAST).cursor
    started = time.monotonic()
    assert numbers(call(url, "fetch", 0, FIRST, wait=20)) == list(range(0, 100, 2))
    assert time.monotonic() - started < 5
    started = time.monotonic()
    page = call(url, "fetch", 0, head, wait=0.5)
    assert (page.events, page.cursor, page.caught_up) == ([], head, True)
    assert time.monotonic() - started >= 0.5


def test_wait_ends_with_the_first_news(call, url, shop):
    """An event that is committed while the feed waits ends the wait."""
    head = call(url, "fetch", 0, LAST).cursor
    started = time.monotonic()
    with later(0.3, lambda: append(shop)):
        page = call(url, "fetch", 0, head, wait=20)
    assert numbers(page) == [100]
    assert 0.3 <= time.monotonic() - started < 5


@contextmanager
def later(seconds, action):
    """Do something in another thread, some time from now."""
    timer = threading.Timer(seconds, action)
    timer.start()
    yield
    timer.join()


def append(engine):
    """Append an order to partition 0."""
    with engine.begin() as connection:
        place(connection, 1, first=100)


def http(body, *, status="200 OK", kind="application/x-ndjson"):
    """Write an answer whose end is the end of its connection."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


def discovery(*extensions):
    """A discovery document of one partition."""
    return json.dumps({"token": "t", "partitions": [{"id": "0"}], "extensions": extensions})


@contextmanager
def feed(answer=None, *, extensions=()):
    """A feed of raw answers: its URL, and the requests that came to it, discovery aside."""
    seen = []

    def reply(target):
        if target == "/":
            return http(discovery(*extensions).encode(), kind="application/json")
        parts = urlsplit(target)
        seen.append((parts.path, parse_qs(parts.query, keep_blank_values=True)))
        return http(PAGE) if answer is None else answer

    with answering(reply) as url:
        yield url, seen


@pytest.mark.parametrize(
    ("extension", "method", "arguments", "options"),
    [
        (STOP, "fetch", (0, FIRST), {"stop": "a"}),
        (CURSOR_OF_TIME, "cursor_at", (NOON,), {}),
        (LAG, "lag", (0, FIRST), {}),
        (SPLITS, "splits", (0, 4), {}),
        (CURSOR_OF_COUNT, "cursor_of_count", (0, FIRST, 4), {}),
    ],
)
def test_what_a_feed_does_not_announce_is_refused(call, extension, method, arguments, options):
    """What the answer would be wrong without is not asked of a feed that does not announce it."""
    others = sorted(EVERYTHING - {extension})
    refused = pytest.raises(ConfigurationError, match=f"extension {extension}:")
    with feed(extensions=others) as (url, seen), refused:
        call(url, method, *arguments, **options)
    assert seen == []


def test_wait_is_left_out_where_it_is_not_announced(call):
    """A feed that does not wait is asked as always."""
    with feed(extensions=[CAUGHT_UP]) as (url, seen):
        call(url, "fetch", 0, FIRST, wait=5)
    assert seen == [("/events", {"token": ["t"], "partition": ["0"], "cursor": [FIRST]})]


def test_types_are_asked_for_in_any_case(call):
    """FeedAPI v2 has filters of its own, and feeds of it announce nothing."""
    with feed() as (url, seen):
        call(url, "fetch", 0, FIRST, types=TypeFilter({"B", "a"}))
        call(url, "fetch", 0, FIRST, types=TypeFilter({"c"}, skip=True))
    assert [query.get("event-types") for _, query in seen] == [["a;b"], None]
    assert [query.get("skip-event-types") for _, query in seen] == [None, ["c"]]


@pytest.mark.parametrize(
    ("wait", "written"),
    [
        (5, ["5"]),
        (0.5, ["0.5"]),
        (10.0, ["10"]),
        (0.00001, ["0"]),
        (123456.7891, ["123456.789"]),
        (0, None),
        (None, None),
    ],
)
def test_wait_is_written_in_digits(call, wait, written):
    """Seconds are sent without an exponent, which no feed would take."""
    with feed(extensions=[WAIT]) as (url, seen):
        call(url, "fetch", 0, FIRST, wait=wait)
    assert seen[0][1].get("wait") == written


@pytest.mark.parametrize("wait", [-1, -0.1, float("inf"), float("nan"), 1e6])
def test_wait_that_is_no_time_is_refused(call, wait):
    """What cannot be waited for is not sent."""
    refused = pytest.raises(ConfigurationError, match="wait for 0 to 999,999 seconds")
    with feed(extensions=[WAIT]) as (url, seen), refused:
        call(url, "fetch", 0, FIRST, wait=wait)
    assert seen == []


@contextmanager
def late(seconds, *extensions):
    """A feed whose pages come so many seconds late."""

    def reply(target):
        if target == "/":
            return http(discovery(*extensions).encode(), kind="application/json")
        time.sleep(seconds)
        return http(PAGE)

    with answering(reply) as url:
        yield url


@pytest.mark.parametrize(
    "patience", [0.4, httpx.Timeout(0.4), httpx.Timeout(0.1, read=0.4), None, httpx.Timeout(None)]
)
def test_wait_makes_the_client_as_patient(call, patience):
    """The read timeout of the caller's httpx client begins where the feed's wait ends."""
    with late(0.7, WAIT) as url:
        page = call(url, "fetch", 0, FIRST, wait=1, session={"timeout": patience})
    assert page.cursor == "a"


@pytest.mark.parametrize("patience", [None, httpx.Timeout(5, read=None)])
def test_client_without_a_timeout_stays_so(call, patience):
    """Who waits for ever does so for a feed that waits longer than it was asked to as well."""
    with late(0.7, WAIT) as url:
        page = call(url, "fetch", 0, FIRST, wait=0.1, session={"timeout": patience})
    assert page.cursor == "a"


@pytest.mark.parametrize("patience", [0.2, httpx.Timeout(5, read=0.2)])
@pytest.mark.parametrize(("extensions", "wait"), [((), 1), ((WAIT,), 0), ((WAIT,), None)])
def test_client_is_not_more_patient_than_the_feed_waits(call, patience, extensions, wait):
    """A feed that was not asked to wait has no longer than the caller's timeout."""
    with late(0.6, *extensions) as url, pytest.raises(Unreachable):
        call(url, "fetch", 0, FIRST, wait=wait, session={"timeout": patience})


def test_patience_has_an_end(call):
    """A feed that holds an answer back for longer than it was asked to is given up."""
    with late(1.0, WAIT) as url, pytest.raises(Unreachable):
        call(url, "fetch", 0, FIRST, wait=0.3, session={"timeout": 0.2})


def trimmed(**members):
    """An answer that says that a cursor's events are gone."""
    document = {"type": "urn:zeroeventhub:problem/trimmed", "detail": "Too old.", **members}
    return http(json.dumps(document).encode(), status="410 Gone", kind="application/problem+json")


@pytest.mark.parametrize(
    ("members", "earliest"),
    [
        ({"earliestCursor": "2-17"}, "2-17"),
        ({}, None),
        ({"earliestCursor": ""}, None),
        ({"earliestCursor": None}, None),
        ({"earliestCursor": 17}, None),
        ({"earliestCursor": ["2-17"]}, None),
    ],
)
def test_trimmed_tells_where_history_begins(call, members, earliest):
    """Where the feed says which cursor can still be read from, the exception has it."""
    with feed(trimmed(**members)) as (url, _), pytest.raises(Trimmed, match="Too old") as caught:
        call(url, "fetch", 0, "1-1")
    assert caught.value.earliest == earliest


@pytest.mark.parametrize("detail", [None, 7, ["a"], {}, ""])
def test_detail_of_another_form_is_passed_over(call, detail):
    """A problem whose detail is no text is told in the client's own words."""
    with feed(trimmed(detail=detail)) as (url, _), pytest.raises(Trimmed) as caught:
        call(url, "fetch", 0, "1-1")
    assert str(caught.value) == f"{url} answered with status 410."


@pytest.mark.parametrize(
    "body", [b'{"type":"\xff"}', b'{"type":"x/trimmed","detail":"\xff"}', b"[" * 10_000, b"\xff"]
)
def test_problem_that_cannot_be_read_is_known_by_its_status(call, body):
    """What is no JSON in an answer's body never hides the answer."""
    with feed(http(body, status="404 Not Found")) as (url, _), pytest.raises(NotFound):
        call(url, "fetch", 0, FIRST)


@pytest.mark.parametrize(
    ("extensions", "known"),
    [
        ("null", set()),
        ('"wait"', set()),
        ('{"wait":true}', set()),
        ("7", set()),
        ("true", set()),
        ("[]", set()),
        ('["wait",1,null,["stop"],{"a":"b"},"new"]', {"wait", "new"}),
        ('["wait","wait"]', {"wait"}),
    ],
)
def test_extensions_of_another_form_are_passed_over(call, extensions, known):
    """What is not a list of names announces nothing, and names that are not known do no harm."""
    body = b'{"token":"t","partitions":[{"id":"0"}],"extensions":%b}' % extensions.encode()
    with answering(lambda _: http(body)) as url:
        assert call(url, "discover").extensions == known


@pytest.mark.parametrize("value", ["null", '"true"', "1", "false", "{}", "[true]"])
@pytest.mark.parametrize("flag", ["caughtUp", "stopReached"])
def test_flag_of_another_form_counts_as_absent(call, flag, value):
    """Only `true` says that a page reached the head, or its stop."""
    with feed(http(b'{"cursor":"a","%b":%b}\n' % (flag.encode(), value.encode()))) as (url, _):
        page = call(url, "fetch", 0, FIRST)
    assert (page.cursor, page.caught_up, page.stop_reached) == ("a", False, False)


def test_flags_are_those_of_the_last_checkpoint(call):
    """What an earlier checkpoint says means nothing, and a tail means that more is there."""
    flags = b'"caughtUp":true,"stopReached":true}\n'
    bodies = {
        b'{"cursor":"a",' + flags: (True, True),
        b'{"cursor":"a",' + flags + b'{"cursor":"b"}\n': (False, False),
        b'{"cursor":"a"}\n{"cursor":"b",' + flags: (True, True),
        b'{"cursor":"a",' + flags + b'{"data":1}\n': (False, True),
        b'{"cursor":"a",' + flags + b'{"command":"new"}\n': (True, True),
    }
    for body, expected in bodies.items():
        with feed(http(body)) as (url, _):
            page = call(url, "fetch", 0, FIRST)
        assert (page.caught_up, page.stop_reached) == expected


@pytest.mark.parametrize(
    "body", [b"", b"{}", b'{"cursor":null}', b'{"cursor":""}', b'{"cursor":"\xff"}', b'["a"]']
)
def test_answer_that_is_no_cursor_is_refused(call, body):
    """A cursor that is not of the protocol is an error, whatever came."""
    with feed(http(body), extensions=[CURSOR_OF_TIME]) as (url, _), pytest.raises(ProtocolError):
        call(url, "cursor_at", NOON)


@pytest.mark.parametrize(
    "body",
    [
        *[b"", b"{}", b'{"cursors":[]}', b'{"cursors":["a"]}', b'{"cursors":["a",""]}'],
        *[b'{"cursors":["a",1]}', b'{"cursors":["a","\xff"]}', b'{"cursors":"ab"}'],
    ],
)
def test_answer_that_is_no_list_of_cursors_is_refused(call, body):
    """Pieces that are not of the protocol are an error, whatever came."""
    with feed(http(body), extensions=[SPLITS]) as (url, _), pytest.raises(ProtocolError):
        call(url, "splits", 0, 4)


@pytest.mark.parametrize(
    "body",
    [
        *[b"", b"{}", b"[]", b'{"events":null}', b'{"events":-1}', b'{"events":"1"}'],
        *[b'{"events":1.5}', b'{"events":true}', b'{"events":1,"seconds":-0.1}'],
        *[b'{"events":1,"seconds":"1"}', b'{"events":1,"seconds":NaN}', b'{"events":1}\xff'],
    ],
)
def test_answer_that_is_no_lag_is_refused(call, body):
    """A lag that is not of the protocol is an error, whatever came."""
    with feed(http(body), extensions=[LAG]) as (url, _), pytest.raises(ProtocolError):
        call(url, "lag", 0, FIRST)


def test_lag_is_what_lies_behind_a_cursor(call, url):
    """The lag of a cursor is the number of events that follow it, and the age of the first."""
    cursor = call(url, "fetch", 1, FIRST, limit=20).cursor
    for where, events, first in [(FIRST, 50, 1), (cursor, 30, 41)]:
        lag = call(url, "lag", 1, where)
        age = datetime.now(UTC) - (NOON + timedelta(minutes=first))
        assert (lag.events, lag.exact) == (events, True)
        assert 0 <= age.total_seconds() - lag.seconds < 10
    assert call(url, "lag", 1, LAST) == Lag(0, 0.0)


@pytest.mark.parametrize(
    "body",
    [
        *[b"", b"{}", b"[]", b'{"cursor":"a"}', b'{"events":1}', b'{"cursor":"a","events":null}'],
        *[b'{"cursor":null,"events":1}', b'{"cursor":"","events":1}'],
        *[b'{"cursor":"_first","events":0}', b'{"cursor":"a","events":-1}'],
        *[b'{"cursor":"a","events":"1"}', b'{"cursor":"a","events":1.5}'],
        *[b'{"cursor":"a","events":true}', b'{"cursor":"a","events":1}\xff'],
    ],
)
def test_answer_that_is_no_counted_cursor_is_refused(call, body):
    """The cursor of a count that is not of the protocol is an error, whatever came."""
    with feed(http(body), extensions=[CURSOR_OF_COUNT]) as (url, _), pytest.raises(ProtocolError):
        call(url, "cursor_of_count", 0, FIRST, 4)


def test_cursor_of_a_count_ends_a_read(call, url):
    """A read up to the cursor of a count brings so many events, or what there is before a stop."""
    ten = call(url, "cursor_of_count", 1, FIRST, 10)
    assert ten.events == 10
    page = call(url, "fetch", 1, FIRST, stop=ten.cursor)
    assert (numbers(page), page.stop_reached) == (list(range(1, 20, 2)), True)
    assert call(url, "cursor_of_count", 1, FIRST, 30, stop=ten.cursor) == ten
    rest = call(url, "cursor_of_count", 1, ten.cursor, 1_000_000)
    assert rest == CountedCursor(call(url, "fetch", 1, LAST).cursor, 40)


def test_what_is_asked_for_is_written_as_the_protocol_has_it(call):
    """The requests of the extensions hold a place, and what is asked about it."""
    place = {"token": ["t"], "partition": ["0"]}
    with feed(http(b'{"cursor":"a"}'), extensions=[CURSOR_OF_TIME]) as (url, seen):
        call(url, "cursor_at", NOON)
    assert seen == [("/cursor", {**place, "time": ["2026-01-31T12:00:00Z"]})]
    with feed(http(b'{"cursors":["a","b"]}'), extensions=[SPLITS]) as (url, seen):
        assert call(url, "splits", 0, 7, start="c", stop="s+") == ["a", "b"]
        call(url, "splits", 0, 7)
    with feed(http(b'{"events":7,"more":true,"newer":[]}'), extensions=[LAG]) as (url, asked):
        assert call(url, "lag", 0, "c+") == Lag(7, None, exact=False)
    assert asked == [("/lag", {**place, "cursor": ["c+"]})]
    with feed(http(b'{"cursor":"d","events":3}'), extensions=[CURSOR_OF_COUNT]) as (url, asked):
        assert call(url, "cursor_of_count", 0, "c+", 5, stop="s+") == CountedCursor("d", 3)
        call(url, "cursor_of_count", 0, FIRST, 5)
    five = {**place, "events": ["5"]}
    assert asked == [
        ("/cursor-of-count", {**five, "cursor": ["c+"], "stop": ["s+"]}),
        ("/cursor-of-count", {**five, "cursor": [FIRST]}),
    ]
    asked = {**place, "count": ["7"]}
    assert seen == [
        ("/splits", {**asked, "cursor": ["c"], "stop": ["s+"]}),
        ("/splits", {**asked, "cursor": [FIRST]}),
    ]


@contextmanager
def first_version():
    """A feed of ZeroEventHub v1: its URL, and the requests that came to it."""
    seen = []

    def reply(target):
        seen.append(target)
        body = b'{"partition":0,"cursor":"5"}\n'
        return http(body) if "n=" in target else http(b"", status="400 Bad Request")

    with answering(reply) as url:
        yield url, seen


V1 = {"feed": {"partitions": 1}}


@pytest.mark.parametrize(
    ("method", "arguments", "options"),
    [
        ("fetch", (0, FIRST), {"types": TypeFilter({"a"})}),
        ("fetch", (0, FIRST), {"stop": "5"}),
        ("cursor_at", (NOON,), {}),
        ("splits", (0, 2), {}),
        ("lag", (0, FIRST), {}),
        ("cursor_of_count", (0, FIRST, 4), {}),
    ],
)
def test_first_version_is_not_asked_for_what_it_cannot_do(call, method, arguments, options):
    """A feed of ZeroEventHub v1 has no extensions, and no filter."""
    with first_version() as (url, seen), pytest.raises(ConfigurationError):
        call(url, method, *arguments, **options, **V1)
    assert seen == ["/"]


def test_first_version_does_not_wait(call):
    """A feed of ZeroEventHub v1 is asked as always."""
    with first_version() as (url, seen):
        assert call(url, "fetch", 0, FIRST, wait=5, **V1).cursor == "5"
    assert seen[1] == "/?n=1&cursor0=_first"
