"""Requests as their parameters say them."""

import re
from datetime import UTC, datetime, timedelta, timezone
from urllib.parse import urlencode

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.datastructures import QueryParams

from zeroeventhub import FIRST, LAST, FeedInfo, Partition
from zeroeventhub.errors import BadCursor, BadRequest
from zeroeventhub.protocol import EVENT_TYPES, STOP, WAIT, TypeFilter
from zeroeventhub.server import parameters
from zeroeventhub.server.parameters import (
    CountRequest,
    CursorRequest,
    EventsRequest,
    HttpFeedRequest,
    KeyRequest,
    LagRequest,
    SegmentsRequest,
    SplitsRequest,
    StreamRequest,
    V1Request,
)

EVERYTHING = frozenset({EVENT_TYPES, STOP, WAIT})
HOSTILE_NUMBERS = [
    *["", " ", "-1", "+1", " 1", "1 ", "1\n", "1.0", "1e3", "0x1", "1_0", "true", "null", "\x00"],
    *["\uff11", "\u0661", "\u00b2", "\u00bd", "\u2460", "\U0001d7cf", "1\u200b"],
]
HOSTILE_CURSORS = ["", "\n", "1-1\n", "a\x00", "\x7f", "\t", "å", "\u2028", "\ud800", "a" * 4097]
PLACE = {"token": "t", "partition": "0"}
THERE = {**PLACE, "cursor": "c"}
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)

READERS = {
    "events": (lambda query: parameters.read_events_request(query, EVERYTHING), THERE),
    "v1": (
        lambda query: parameters.read_v1_request(query, FeedInfo.of(2), 2),
        {"n": "2", "cursor0": "c"},
    ),
    "cursor": (parameters.read_cursor_request, {**PLACE, "time": "2026-03-01T12:00:00Z"}),
    "lag": (parameters.read_lag_request, THERE),
    "count": (parameters.read_count_request, {**THERE, "events": "4"}),
    "splits": (parameters.read_splits_request, {**PLACE, "count": "4"}),
    "segments": (parameters.read_segments_request, THERE),
    "key": (parameters.read_key_request, {"key": "k"}),
    "progress": (parameters.read_progress_request, {**THERE, "consumer": "billing"}),
    "http-feed": (parameters.read_http_feed_request, {}),
    "stream": (lambda query: parameters.read_stream_request(query, None), {}),
}
"""What reads a request of each kind, and what it needs at least."""

OPTIONAL = {
    "events": ["pagesizehint", "event-types", "skip-event-types", "stop", "wait"],
    "v1": ["cursor1", "pagesizehint", "headers"],
    "count": ["stop"],
    "splits": ["cursor", "stop"],
    "segments": ["stop"],
    "key": ["after-version", "pagesizehint"],
    "http-feed": ["partition", "lastEventId", "timeout"],
    "stream": ["partition", "cursor", "event-types", "skip-event-types"],
}


def query(asked):
    """A query string, read; a list gives a parameter more than once."""
    listed = {name: value if isinstance(value, list) else [value] for name, value in asked.items()}
    return QueryParams([(name, value) for name in listed for value in listed[name]])


def read(kind="events", asked=None, /, **more):
    """Read a request that is complete but for what is given here."""
    reader, needed = READERS[kind]
    return reader(query({**needed, **(asked or {}), **more}))


@pytest.mark.parametrize(
    ("kind", "asked", "expected"),
    [
        ("events", {}, EventsRequest("t", 0, "c", None)),
        (
            "events",
            {"partition": "17", "cursor": FIRST, "pagesizehint": "1000", "stop": "d", "wait": "12"},
            EventsRequest("t", 17, FIRST, 1000, stop="d", wait=12.0),
        ),
        ("events", {"newer": ["1", "2"]}, EventsRequest("t", 0, "c", None)),
        ("v1", {}, V1Request({0: "c"}, None, frozenset())),
        (
            "v1",
            {"cursor1": "b", "pagesizehint": "5", "headers": ",x,,y,"},
            V1Request({0: "c", 1: "b"}, 5, frozenset({"x", "y"})),
        ),
        ("cursor", {"partition": "1"}, CursorRequest("t", 1, NOON)),
        ("lag", {}, LagRequest("t", 0, "c")),
        ("lag", {"cursor": LAST}, LagRequest("t", 0, LAST)),
        ("count", {}, CountRequest("t", 0, "c", 4, None)),
        (
            "count",
            {"cursor": FIRST, "events": "01000000", "stop": "b"},
            CountRequest("t", 0, FIRST, 1_000_000, "b"),
        ),
        ("splits", {}, SplitsRequest("t", 0, 4, FIRST, None)),
        (
            "splits",
            {"count": "1000", "cursor": "a", "stop": "b"},
            SplitsRequest("t", 0, 1000, "a", "b"),
        ),
        ("segments", {"stop": "d"}, SegmentsRequest("t", 0, "c", "d")),
        ("key", {}, KeyRequest("k", 0, None)),
        ("http-feed", {}, HttpFeedRequest(None, None, 0.0)),
        (
            "http-feed",
            {"lastEventId": "", "timeout": "1500", "partition": "3"},
            HttpFeedRequest(3, None, 1.5),
        ),
        ("http-feed", {"lastEventId": "å b"}, HttpFeedRequest(None, "å b", 0.0)),
        ("stream", {}, StreamRequest(None, FIRST, None)),
        ("stream", {"cursor": "a", "partition": "2"}, StreamRequest(2, "a", None)),
    ],
)
def test_request_is_read(kind, asked, expected):
    """A request says what it needs and may say more; unknown parameters are passed over."""
    assert read(kind, asked) == expected


@pytest.mark.parametrize("kind", READERS)
def test_parameter_is_there_once(kind):
    """A request without a parameter that it needs, or with one twice, is told which one it is."""
    reader, needed = READERS[kind]
    for name in needed:
        with pytest.raises(BadRequest, match=f"{name.rstrip('0')} is missing"):
            reader(query({other: needed[other] for other in needed if other != name}))
    for name in [*needed, *OPTIONAL.get(kind, [])]:
        with pytest.raises(BadRequest, match=f"{name} is there more than once"):
            read(kind, {name: ["2", "2"]})


@pytest.mark.parametrize(
    ("kind", "name", "most"),
    [
        ("events", "partition", None),
        ("events", "pagesizehint", None),
        ("v1", "n", None),
        ("splits", "count", 1_000),
        ("count", "events", 1_000_000),
        ("http-feed", "timeout", None),
        ("key", "after-version", None),
    ],
)
def test_number_is_of_ascii_digits_and_within_its_bounds(kind, name, most):
    """A number is written in ASCII digits, and refused where it is too small or too large."""
    for number in HOSTILE_NUMBERS:
        with pytest.raises(BadRequest, match=f"{name} is not a whole number"):
            read(kind, {name: number})
    for number in ("0", str(most + 1), "9" * 5000) if most else ():
        with pytest.raises(BadRequest, match=name):
            read(kind, {name: number})


def test_long_number_stays_large():
    """A number of any length is read as some number that no feed has a use for."""
    for digits in ("9" * 18, "9" * 19, "9" * 5000):
        request = read(partition=digits, pagesizehint=digits)
        assert min(request.partition, request.limit) >= 10**18 - 1


def test_cursor_is_of_printable_ascii():
    """A cursor or stop that is empty, too long, or not of printable ASCII is a bad one."""
    places = [("events", "cursor"), ("events", "stop"), ("splits", "stop"), ("count", "stop")]
    places += [("lag", "cursor"), ("splits", "cursor"), ("count", "cursor"), ("v1", "cursor1")]
    for cursor in HOSTILE_CURSORS:
        for kind, name in places:
            with pytest.raises(BadCursor):
                read(kind, {name: cursor})
    for cursor in filter(None, HOSTILE_CURSORS):
        with pytest.raises(BadCursor):
            parameters.read_stream_request(query({}), cursor)


def test_place_that_has_no_meaning_is_refused():
    """Nothing is counted, cut or put into files behind the end, and nothing ends at the start."""
    wrong = [(kind, {"stop": stop}) for kind in ("splits", "count") for stop in (FIRST, LAST)]
    wrong += [(kind, {"cursor": LAST}) for kind in ("splits", "count", "segments", "progress")]
    wrong += [("progress", {"cursor": FIRST})]
    for kind, asked in wrong:
        with pytest.raises(BadCursor):
            read(kind, asked)


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=4096))
def test_any_printable_cursor_is_let_through(cursor):
    """A cursor of printable ASCII is passed to the feed as it is."""
    assert read(cursor=cursor).cursor == cursor


def test_v1_is_known_by_n():
    """A request that says n speaks v1."""
    assert parameters.is_v1(query({"n": ""}))
    assert not parameters.is_v1(query(THERE))


def test_v1_request_is_for_the_partitions_that_there_are():
    """A v1 request names partitions by their ids, and says how many the feed has."""
    for n in ("0", "1", "3", "32768", "9" * 5000):
        with pytest.raises(BadRequest, match="n partitions"):
            read("v1", n=n)
    for name in ("cursor2", "cursor", "cursor00", "cursor-1", "Cursor0", "other"):
        with pytest.raises(BadRequest, match="cursor is missing"):
            READERS["v1"][0](query({"n": "2", name: "c"}))
    info = FeedInfo((Partition(7), Partition(3)), token="t")
    asked = query({"n": "2", "cursor7": "c"})
    assert parameters.read_v1_request(asked, info, 2).cursors == {7: "c"}


def test_extensions_that_a_feed_lacks_are_passed_over():
    """What belongs to an extension of other feeds is not even read, but for one mistake."""

    def read_by(*extensions, **asked):
        return parameters.read_events_request(query({**THERE, **asked}), extensions)

    both = {"event-types": "a", "skip-event-types": "a"}
    assert read_by(stop="\n", wait="x", **{"event-types": "a"}) == read()
    assert read_by(STOP, stop="d", wait="1", **{"event-types": "a"}) == read(stop="d")
    for extensions in ((), EVERYTHING):
        with pytest.raises(BadRequest, match="at the same time"):
            read_by(*extensions, **both)


def test_types_are_of_printable_ascii():
    """A list that names no type, too many or too long ones, or not in ASCII, is refused."""
    assert read(**{"event-types": "A;b;;a"}).types == TypeFilter(frozenset({"a", "b"}))
    assert read(**{"skip-event-types": ";A"}).types == TypeFilter(frozenset({"a"}), skip=True)
    names = [f"{number:x>256}" for number in range(100)]
    assert len(read(**{"event-types": ";".join(names * 2)}).types.names) == 100
    wrong = ["", ";", ";;;", " ", "a b", "a; b", "a\t", "a\n", "\x00", "\x7f", "å", "\u212a"]
    wrong += ["\uff1b", "x" * 257, ";".join(f"t{number}" for number in range(101)), "a;\ud800"]
    for types in wrong:
        for name in ("event-types", "skip-event-types"):
            with pytest.raises(BadRequest):
                read(**{name: types})


@given(st.integers(0, 10**9 - 1), st.none() | st.from_regex(r"[0-9]{1,9}", fullmatch=True))
def test_any_number_of_seconds_is_read(seconds, fraction):
    """Whatever is a number is read, however large: the endpoint knows how long is long enough."""
    text = str(seconds) if fraction is None else f"{seconds}.{fraction}"
    assert read(wait=text).wait == float(text)


def test_wait_is_a_number_of_seconds():
    """Seconds are written in ASCII digits with at most one dot between them."""
    wrong = ["", ".", ".5", "5.", "-1", "+1", " 1", "1 ", "1e1", "1_0", "0x1", "inf", "nan", "1,5"]
    wrong += ["1.2.3", "1\n", "\u0661", "\uff11", "\u00bd", "1" * 10, "1." + "1" * 10, "\x00"]
    for wait in wrong:
        with pytest.raises(BadRequest, match="wait is not a number of seconds"):
            read(wait=wait)


@given(
    st.datetimes(min_value=datetime(1, 1, 3), max_value=datetime(9999, 12, 29)),  # noqa: DTZ001
    st.integers(-1439, 1439),
)
def test_any_moment_is_read(moment, minutes):
    """Every moment of Python's that has a zone of whole minutes is read, and known in UTC."""
    zoned = moment.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    found = read("cursor", time=zoned.isoformat()).moment
    assert (found, found.tzinfo) == (zoned, UTC)


def test_moment_finer_than_a_microsecond_is_cut():
    """A moment written to the nanosecond is read to the microsecond before it."""
    found = read("cursor", time="2026-03-01t13:30:00.1234569+01:30").moment
    assert found == NOON.replace(microsecond=123456)


_RFC3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt]([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?"
    r"([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)",
    re.ASCII,
)


@given(st.from_regex(r"\A\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d([.,]\d*)?([Zz]|[+-]\d\d:?\d\d)?\Z"))
@example("2026-03-01T24:00:00Z")
@example("2026-03-01T12:00:00+12:60")
@example("2016-12-31T23:59:60Z")
@example("0001-01-01T00:00:00+00:01")
@example("9999-12-31T23:59:59-00:01")
@example("0000-01-01T00:00:00Z")
def test_only_rfc_3339_is_read(time):
    """What is nearly a moment is a bad request, and nothing else."""
    try:
        moment = read("cursor", time=time).moment
    except BadRequest:
        return
    assert moment.tzinfo is UTC
    assert _RFC3339.fullmatch(time)


def test_id_of_a_stream_that_was_cut_off_counts_before_its_cursor():
    """A client that says which event it has goes on there, wherever it began."""
    for last_event_id, cursor in (("b", "b"), ("", "a"), (None, "a")):
        found = parameters.read_stream_request(query({"cursor": "a"}), last_event_id)
        assert found.cursor == cursor


listed = [name for names in OPTIONAL.values() for name in names]
names = st.sampled_from(sorted({*listed, *THERE, "time", "count", "n", "key"}))
values = st.sampled_from(["0", "1", "2", "c", *HOSTILE_NUMBERS, *HOSTILE_CURSORS]) | st.text()
pairs = st.lists(st.tuples(names | st.text(max_size=3), values), max_size=8)
query_strings = st.text() | pairs.map(
    lambda pairs: urlencode(pairs, encoding="utf-8", errors="surrogatepass")
)


@given(query_strings, st.sampled_from([*READERS]))
def test_any_query_is_a_request_or_a_bad_one(text, kind):
    """Whatever is asked is a request or a bad request: never another exception."""
    try:
        request = READERS[kind][0](QueryParams(text))
    except BadRequest:
        return
    assert getattr(request, "limit", None) is None or request.limit >= 0
    assert 0 <= getattr(request, "wait", 0.0) < float("inf")
    assert getattr(request, "cursor", "c").isprintable()
