"""What the clients ask of a feed, and what they make of any answer: a feed's, or a proxy's."""

import asyncio
import gzip
import math
from datetime import UTC, datetime, timedelta, timezone

import httpx
import pytest
from harness.calling import INFO, PAGE, answer, async_call, discovery, pool_call, problem, raw_feed
from harness.web import answering

from zeroeventhub import FIRST, TypeFilter, errors, extensions, protocol

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
ZONE = timezone(timedelta(hours=5, minutes=30))
HTML = b"<html>\n<body><h1>502 Bad Gateway</h1><hr>nginx</body></html>"
PACKED = gzip.compress(PAGE, mtime=0)


def html(status, *fields):
    """Answer with a page for people, as a proxy does."""
    return answer(HTML, f"Content-Length: {len(HTML)}", *fields, status=status, kind="text/html")


def chunked(*chunks, end=b"0\r\n\r\n"):
    """Answer in chunks."""
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return answer(b"", "Transfer-Encoding: chunked") + body + end


# Answers that are no page.

ANSWERS = {
    # The next time these may be better.
    "502": (html("502 Bad Gateway"), errors.Unavailable),
    "503": (html("503 Service Unavailable"), errors.Unavailable),
    "520 of one proxy alone": (html("520 "), errors.Unavailable),
    "429": (html("429 Too Many Requests"), errors.TooManyRequests),
    "a login form": (html("200 OK"), errors.Unavailable),
    "events as a page for people": (answer(PAGE, kind="text/html"), errors.Unavailable),
    "nothing, and the end": (answer(), errors.CutPage),
    "nothing but an event": (answer(b'{"data":1}\n'), errors.CutPage),
    "an error's text, cut": (answer(b"upstream request timeout"), errors.CutPage),
    "an error of the Go peer after an event": (
        answer(b'{"data":1}\nInternal server error\n', kind="text/plain; charset=utf-8"),
        errors.CutPage,
    ),
    "a length too short": (answer(PAGE, "Content-Length: 20"), errors.CutPage),
    "a length too long": (answer(PAGE[:20], "Content-Length: 50"), errors.CutPage),
    "two lengths": (answer(PAGE, "Content-Length: 64", "Content-Length: 65"), errors.Unreachable),
    "chunks that are none": (answer(b"", "Transfer-Encoding: chunked") + PAGE, errors.CutPage),
    "a framing of gzip": (answer(PAGE, "Transfer-Encoding: gzip"), errors.Unreachable),
    "an answer of another protocol": (b"SSH-2.0-OpenSSH_9.6\r\n", errors.Unreachable),
    "nothing at all": (b"", errors.Unreachable),
    # No waiting mends these.
    "text before a checkpoint": (answer(b"[warning]\n" + PAGE), errors.ProtocolError),
    "a byte order mark": (answer(b"\xef\xbb\xbf" + PAGE), errors.ProtocolError),
    "NaN": (answer(b'{"data":NaN}\n{"cursor":"1"}\n'), errors.ProtocolError),
    "204": (answer(status="204 No Content"), errors.BadRequest),
    "206": (answer(PAGE[:40], status="206 Partial Content"), errors.BadRequest),
    "304": (answer(status="304 Not Modified"), errors.BadRequest),
    "300 that leads nowhere": (answer(status="300 Multiple Choices"), errors.BadRequest),
    "400": (html("400 Bad Request"), errors.BadRequest),
    "401": (html("401 Unauthorized"), errors.Unauthorized),
    "403": (html("403 Forbidden"), errors.Forbidden),
    "404": (html("404 Not Found"), errors.NotFound),
    "409": (html("409 Conflict"), errors.TokenChanged),
    "410": (html("410 Gone"), errors.Gone),
    "bad cursor": (problem("bad-cursor", status="400 No"), errors.BadCursor),
    "diverged": (problem("diverged"), errors.Diverged),
    "trimmed": (problem("trimmed"), errors.Trimmed),
    "trimmed elsewhere": (answer(b'{"type":"https://x/trimmed"}', status="400 No"), errors.Trimmed),
    "an unknown problem": (problem("newer"), errors.Gone),
}


@pytest.mark.parametrize(("sent", "error"), ANSWERS.values(), ids=ANSWERS)
def test_answer_that_is_no_page_is_an_error_of_its_kind(any_call, sent, error):
    """What a proxy or a feed answers in place of a page is transient, or ends the reading."""
    with raw_feed(sent) as (url, _), pytest.raises(error) as caught:
        any_call(url)
    assert type(caught.value) is error


def refuse(response):
    """Raise for a refusal, as httpx shows it for hooks of its clients."""
    response.raise_for_status()


def read_and_refuse(response):
    """Raise for a refusal when it was read."""
    response.read()
    response.raise_for_status()


async def refuse_later(response):
    """Raise for a refusal in an async client."""
    response.raise_for_status()


async def read_and_refuse_later(response):
    """Raise for a refusal in an async client when it was read."""
    await response.aread()
    response.raise_for_status()


REFUSED = [
    ("503 No", refuse, refuse_later, errors.Unavailable),
    ("409 No", refuse, refuse_later, errors.TokenChanged),
    ("410 No", refuse, refuse_later, errors.Gone),
    ("410 No", read_and_refuse, read_and_refuse_later, errors.Trimmed),
]


@pytest.mark.parametrize(("status", "hook", "async_hook", "error"), REFUSED)
def test_refusal_for_which_a_hook_raises_is_read_as_any_other(
    call, status, hook, async_hook, error
):
    """A hook of the caller's does not turn an outage, or other partitions, into another error."""
    chosen = async_hook if call is async_call else hook
    with raw_feed(problem("trimmed", status=status)) as (url, _), pytest.raises(error) as caught:
        call(f"{url}?key=canary", session={"event_hooks": {"response": [chosen]}})
    assert type(caught.value) is error
    assert "canary" not in str(caught.value)


class Refreshing(httpx.Auth):
    """Waits for a task that another caller has cancelled, as one that renews a token for all."""

    async def async_auth_flow(self, request):
        if request.url.path == "/events":
            task = asyncio.ensure_future(asyncio.sleep(60))
            task.cancel()
            await task
        yield request


def test_cancelled_task_of_an_auth_flow_is_an_outage():
    """A CancelledError that cancels no reader is transient, instead of ending it unnoticed."""
    with raw_feed() as (url, _), pytest.raises(errors.Unreachable, match="CancelledError"):
        async_call(url, session={"auth": Refreshing()})


WHOLE = {
    "text/plain": answer(PAGE, kind="text/plain"),
    "JSON": answer(PAGE, kind="application/json; charset=utf-8"),
    "HTTP/1.0": answer(PAGE).replace(b"HTTP/1.1", b"HTTP/1.0"),
    "chunks of a byte": chunked(*[PAGE[n : n + 1] for n in range(len(PAGE))]),
    "chunks without their end": chunked(PAGE, end=b""),
    "a length too long": answer(PAGE, "Content-Length: 1000"),
    "news before it": b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + answer(PAGE),
    "an error of the Go peer after it": answer(
        PAGE + b'{"data":{"n":4}}\nInternal server error\n', kind="text/plain; charset=utf-8"
    ),
    "lines of others": answer(b'\r\n \t\n{"comment":"proxied"}\n' + PAGE + b"\n\n"),
    "packed, though nobody asked": answer(PACKED, "Content-Encoding: gzip"),
}


@pytest.mark.parametrize("sent", WHOLE.values(), ids=WHOLE)
def test_page_is_a_page_whatever_a_proxy_says_beside_it(any_call, sent):
    """Media types, lengths and headers that a proxy changes keep no event from the consumer."""
    with raw_feed(sent) as (url, _):
        found = any_call(url)
    assert ([event.data["n"] for event in found.events], found.cursor) == ([1, 2, 3], "b")


# Redirections.


@pytest.mark.parametrize(("where", "status"), [("discovery", "301"), ("page", "307")])
def test_credentials_go_nowhere_else(call, where, status):
    """A redirection is an error that says where to, and no request goes there."""
    elsewhere = []
    with answering(lambda target: elsewhere.append(target) or answer(INFO)) as away:
        moved = answer(b"", f"Location: {away}/feed?code=canary", status=f"{status} Moved")
        info = moved if where == "discovery" else None
        secret = {
            "auth": ("user", "canary"),
            "headers": {"X-API-Key": "canary"},
            "cookies": {"session": "canary"},
            "follow_redirects": True,
        }
        with (
            raw_feed(moved, info=info) as (url, _),
            pytest.raises(errors.NotFound, match=f"has moved to {away}/feed;"),
        ):
            call(url, session=secret)
    assert elsewhere == []


# Requests.


def test_query_of_the_url_is_kept(any_call):
    """Parameters and escapes that are part of a feed's URL are sent with every request."""
    seen = []

    def reply(target):
        seen.append(target)
        return answer(PAGE if "/events" in target else INFO)

    with answering(reply) as url:
        any_call(f"{url}/my%2Ffeed?code=1")
    assert seen == [
        "/my%2Ffeed?code=1",
        "/my%2Ffeed/events?code=1&token=t&partition=0&cursor=_first",
    ]


def test_types_are_sent_as_they_are_spelled(any_call):
    """A filter sends the names of types as they were given, as some publishers compare them."""
    for skip, name in ((False, "event-types"), (True, "skip-event-types")):
        with raw_feed() as (url, seen):
            any_call(url, types=TypeFilter({"PaymentCaptured", "order.Paid"}, skip=skip))
        assert seen[-1][1][name] == ["PaymentCaptured;order.Paid"]


def test_parameters_of_the_callers_client_are_added(call):
    """Parameters of an httpx client are sent beside those of the URL and of the request."""
    session = {"params": {"key": "k", "cursor": "not this one"}}
    sequence, url_has = extensions.PRODUCER_SEQUENCE, {"code": ["1+"], "key": ["k"]}
    page, info = answer(b'{"sequence":3}'), answer(discovery(sequence))
    with raw_feed(page, info=info) as (url, seen):
        found = call(f"{url}?code=1%2B", "producer_sequence", "p", session=session)
    with raw_feed() as (url, pages):
        call(f"{url}?code=1%2B", session=session)
    assert found == 3
    [(_, asked)], [(_, paged)] = seen, pages
    assert {"producer": ["p"], **url_has}.items() <= asked.items()
    assert {**HERE, "cursor": [FIRST], **url_has} == paged


HERE = {"token": ["t"], "partition": ["0"]}
SPLIT, KEY = b'{"cursors":["a","b"]}', b'{"events":[{"version":3,"data":1}]}'
ASKED = [
    # What a client is asked for, and the request; the answer, and what is returned.
    (
        (
            extensions.CURSOR_OF_TIME,
            "cursor_at",
            (NOON.replace(microsecond=7).astimezone(ZONE),),
            {},
        ),
        ("/cursor", {**HERE, "time": ["2026-01-31T12:00:00.000007Z"]}),
        (b'{"cursor":"a"}', "a"),
    ),
    (
        (extensions.SPLITS, "splits", (0, 7), {"start": "c", "stop": "s+"}),
        ("/splits", {**HERE, "count": ["7"], "cursor": ["c"], "stop": ["s+"]}),
        (SPLIT, ["a", "b"]),
    ),
    (
        (extensions.LAG, "lag", (0, "c+"), {}),
        ("/lag", {**HERE, "cursor": ["c+"]}),
        (b'{"events":7,"more":true}', protocol.Lag(7, None, exact=False)),
    ),
    (
        (extensions.CURSOR_OF_COUNT, "cursor_of_count", (0, "c", 5), {"stop": "s+"}),
        ("/cursor-of-count", {**HERE, "cursor": ["c"], "events": ["5"], "stop": ["s+"]}),
        (b'{"cursor":"d","events":3}', protocol.CountedCursor("d", 3)),
    ),
    (
        (extensions.SEGMENTS, "segments", (0, "c"), {"stop": "s"}),
        ("/segments", {**HERE, "cursor": ["c"], "stop": ["s"]}),
        (b'{"segments":[],"cursor":"d"}', protocol.Segments((), "d")),
    ),
    (
        (extensions.KEY_HISTORY, "read_key", ("k+",), {"after_version": 2, "limit": 9}),
        ("/key-history", {"key": ["k+"], "after-version": ["2"], "pagesizehint": ["9"]}),
        (KEY, protocol.KeyPage([protocol.Event(b"1")], [3])),
    ),
    (
        (extensions.SCHEMAS, "schemas", (), {}),
        ("/schemas", {}),
        (b'{"schemas":{"a":{"type":"object"}}}', protocol.Schemas({"a": {"type": "object"}})),
    ),
    (
        (extensions.PROGRESS, "register_progress", ("c1", 0, "c"), {}),
        ("/progress", {**HERE, "cursor": ["c"], "consumer": ["c1"]}),
        (b"", None),
    ),
    (
        (extensions.STOP, "fetch", (0, "c"), {"stop": "s+", "limit": 9}),
        ("/events", {**HERE, "cursor": ["c"], "stop": ["s+"], "pagesizehint": ["9"]}),
        (b'{"cursor":"d"}', protocol.Page([], "d")),
    ),
]


@pytest.mark.parametrize("asked", ASKED, ids=[f"{one[0][1]}-{len(one[0][3])}" for one in ASKED])
def test_extension_is_asked_as_the_protocol_has_it(any_call, asked):
    """A request of an extension says what is asked where, and is not sent to a feed without it."""
    (extension, method, arguments, options), request, (body, expected) = asked
    with raw_feed(answer(body), info=answer(discovery(extension))) as (url, seen):
        assert any_call(url, method, *arguments, **options) == expected
    assert seen == [request]
    everything = {one[0][0] for one in ASKED} | {extensions.CAUGHT_UP, extensions.WAIT}
    others = discovery(*sorted(everything - {extension}))
    with (
        raw_feed(answer(body), info=answer(others)) as (url, seen),
        pytest.raises(errors.ConfigurationError, match=f"extension {extension}:"),
    ):
        any_call(url, method, *arguments, **options)
    assert seen == []


@pytest.mark.parametrize(
    ("wait", "written"), [(0.5, "0.5"), (10.0, "10"), (0.00001, "0"), (None, None)]
)
def test_wait_is_written_in_digits(any_call, wait, written):
    """Seconds are sent without an exponent, and only to a feed that waits."""
    for extension, expected in (
        (extensions.WAIT, written and [written]),
        (extensions.CAUGHT_UP, None),
    ):
        with raw_feed(info=answer(discovery(extension))) as (url, seen):
            any_call(url, "fetch", 0, FIRST, wait=wait)
        assert seen[0][1].get("wait") == expected


UNUTTERABLE = [
    *[("fetch", (0, FIRST), {"wait": wait}) for wait in (-1, math.nan, 1e6)],
    *[("cursor_at", (moment,), {}) for moment in (NOON.replace(tzinfo=None), NOON.date(), "12:00")],
    ("read_key", ("k",), {"after_version": -1}),
]


@pytest.mark.parametrize(("method", "arguments", "options"), UNUTTERABLE)
def test_what_cannot_be_asked_is_not_sent(any_call, method, arguments, options):
    """A wait that is no time, a moment without a zone and a version below 1 are refused."""
    info = answer(discovery(extensions.WAIT, extensions.CURSOR_OF_TIME, extensions.KEY_HISTORY))
    sentence = "wait for 0 to 999,999 seconds|moment|start at 1"
    refused = pytest.raises(errors.ConfigurationError, match=sentence)
    with raw_feed(info=info) as (url, seen), refused:
        any_call(url, method, *arguments, **options)
    assert seen == []


# ZeroEventHub v1.

V1 = {"feed": {"partitions": 2}}
V1_PAGE = answer(b'{"partition":0,"data":{"n":1}}\n{"partition":0,"cursor":"5"}\n')


def test_v1_feed_is_read_where_its_partitions_are_known(call):
    """A feed that refuses discovery is read by v1 where that does all that is asked for."""
    seen = []

    def reply(target):
        seen.append(target)
        return V1_PAGE if "n=" in target else answer(status="400 Bad Request")

    with answering(reply) as url:
        page = call(url, wait=5, **V1)
        assert [event.data for event in page.events] == [{"n": 1}]
        call(url, "fetch", 0, FIRST, limit=3, headers=["a", "b"], **V1)
        call(url, "fetch", 0, FIRST, headers="_all", **V1)
        for method, options, reason in (
            ("fetch", {}, "partitions"),
            ("fetch", {"types": TypeFilter({"a"}), **V1}, "filter by types"),
            ("lag", V1, "lag"),
        ):
            with pytest.raises(errors.ConfigurationError, match=reason):
                call(url, method, 0, FIRST, **options)
    first = "/?n=2&cursor0=_first"
    named = "/?pagesizehint=3&n=2&cursor0=_first&headers=a%2Cb"
    assert seen == ["/", first, "/", named, "/", f"{first}&headers=_all", *["/"] * 3]


def test_problem_of_discovery_is_not_taken_for_v1(any_call):
    """A feed that says what is wrong with the request is not one of v1."""
    info = problem("bad-request", status="400 No", detail="No.")
    with raw_feed(info=info) as (url, _), pytest.raises(errors.BadRequest, match=r"^No\."):
        any_call(url, "discover")


@pytest.mark.parametrize("address", ["javascript:alert(1)", "https://x/\x1b[2J", "https://x y", 7])
def test_help_that_is_no_address_is_not_repeated(any_call, address):
    """Only an address that a terminal can show without harm is repeated from a problem."""
    info = problem("bad-request", status="400 No", detail="No.", help=address)
    with raw_feed(info=info) as (url, _), pytest.raises(errors.BadRequest) as caught:
        any_call(url, "discover")
    assert "See" not in str(caught.value)


@pytest.mark.parametrize("name", ["shop..example", f"{'a' * 64}.example"])
def test_name_that_no_host_can_have_is_an_error_at_once(name):
    """A host whose name has an empty part, or one of more than 63 letters, is not waited for."""
    with pytest.raises(errors.ConfigurationError, match="its address or a header"):
        pool_call(f"http://{name}/orders", "discover")


def test_address_of_pages_is_not_that_of_a_feed(any_call):
    """A client with the address of a feed's pages gets an error that names the feed's address."""
    refused = problem("bad-request", status="400 No", detail="The parameter token is missing.")
    with (
        answering(lambda _: refused) as url,
        pytest.raises(errors.ConfigurationError, match="without /events"),
    ):
        any_call(f"{url}/orders/events", "discover")
