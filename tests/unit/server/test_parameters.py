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
from zeroeventhub.server.parameters import (
    CountRequest,
    CursorRequest,
    EventsRequest,
    HttpFeedRequest,
    LagRequest,
    SplitsRequest,
    StreamRequest,
    V1Request,
    is_v1,
    read_count_request,
    read_cursor_request,
    read_events_request,
    read_http_feed_request,
    read_lag_request,
    read_splits_request,
    read_stream_request,
    read_v1_request,
)

TWO = FeedInfo.of(2)
EVERYTHING = frozenset({EVENT_TYPES, STOP, WAIT})
HOSTILE_NUMBERS = [
    *["", " ", "-1", "+1", " 1", "1 ", "1\n", "1.0", "1e3", "0x1", "1_0", "true", "null", "\x00"],
    *["\uff11", "\u0661", "\u00b2", "\u00bd", "\u2460", "\U0001d7cf", "1\u200b"],
]
HOSTILE_CURSORS = ["", "\n", "1-1\n", "a\x00", "\x7f", "\t", "å", "\u2028", "\ud800", "a" * 4097]


def query(**parameters):
    """A query string of these parameters, read; a list gives a parameter more than once."""
    return QueryParams([(name, value) for name in parameters for value in listed(parameters[name])])


def listed(value):
    """A list of one value, or the list that it is already."""
    return value if isinstance(value, list) else [value]


def read(*, extensions=EVERYTHING, **parameters):
    """Read a v2 request that is complete but for what is given here."""
    return read_events_request(
        query(**{"token": "t", "partition": "0", "cursor": "c"} | parameters), extensions
    )


def read_splits(**parameters):
    """Read a request for pieces that is complete but for what is given here."""
    return read_splits_request(query(**{"token": "t", "partition": "0", "count": "4"} | parameters))


def read_count(**parameters):
    """Read a request for the cursor of a count, with what it needs at least."""
    whole = {"token": "t", "partition": "0", "cursor": "c", "events": "4"}
    return read_count_request(query(**whole | parameters))


def read_moment(time):
    """Read the moment of a request for its cursor."""
    return read_cursor_request(query(token="t", partition="0", time=time)).moment


def read_v1(**parameters):
    """Read a v1 request to a feed of two partitions."""
    return read_v1_request(query(**parameters), TWO, 2)


def test_v2_request_is_read():
    """A v2 request says token, partition and cursor, and may say how many events it wants."""
    assert read() == EventsRequest("t", 0, "c", None)
    assert read(partition="17", cursor=FIRST, pagesizehint="1000") == (
        EventsRequest("t", 17, FIRST, 1000)
    )


def test_parameters_of_a_newer_protocol_are_passed_over():
    """Parameters that are not of the protocol change nothing, even there twice."""
    assert read(newer=["1", "2"]) == read()


@pytest.mark.parametrize("name", ["token", "partition", "cursor"])
def test_missing_parameter_is_named(name):
    """A request without one of the three is refused, and told which."""
    parameters = {"token": "t", "partition": "0", "cursor": "c"}
    del parameters[name]
    with pytest.raises(BadRequest, match=f"{name} is missing"):
        read_events_request(query(**parameters), EVERYTHING)


@pytest.mark.parametrize(
    "name",
    [
        *["token", "partition", "cursor", "pagesizehint"],
        *["event-types", "skip-event-types", "stop", "wait"],
    ],
)
def test_parameter_that_is_there_twice_is_refused(name):
    """A parameter is there once, even if both say the same."""
    with pytest.raises(BadRequest, match=f"{name} is there more than once"):
        read(**{name: ["1", "1"]})


READ_BY = {
    "partition": read,
    "pagesizehint": read,
    "n": lambda **number: read_v1(cursor0="c", **number),
    "count": read_splits,
    "events": read_count,
    "timeout": lambda **number: read_http_feed_request(query(**number)),
}


@pytest.mark.parametrize("name", READ_BY)
def test_number_is_of_ascii_digits(name):
    """A number is written in ASCII digits and nothing else."""
    for number in HOSTILE_NUMBERS:
        with pytest.raises(BadRequest, match=f"{name} is not a whole number"):
            READ_BY[name](**{name: number})


def test_numbers_of_pieces_and_events_have_bounds():
    """A number that is none, or too large, is refused and not taken for another."""
    for wrong in ("0", "1001", "9" * 5000):
        with pytest.raises(BadRequest, match="count"):
            read_splits(count=wrong)
    for wrong in ("0", "1000001", "9" * 5000):
        with pytest.raises(BadRequest, match="events"):
            read_count(events=wrong)


@pytest.mark.parametrize("digits", ["9" * 18, "9" * 19, "9" * 5000])
def test_long_number_stays_large(digits):
    """A number of any length is read as some number that no feed has a use for."""
    request = read(partition=digits, pagesizehint=digits)
    assert request.partition >= 10**18 - 1
    assert request.limit >= 10**18 - 1


def test_cursor_is_of_printable_ascii():
    """A cursor or stop that is empty, too long, or not of printable ASCII is a bad one."""
    for cursor in HOSTILE_CURSORS:
        for asked in (
            lambda: read(cursor=cursor),  # noqa: B023 - called at once
            lambda: read(stop=cursor),  # noqa: B023
            lambda: read_splits(stop=cursor),  # noqa: B023
            lambda: read_v1(n="2", cursor1=cursor),  # noqa: B023
        ):
            with pytest.raises(BadCursor):
                asked()


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=4096))
def test_any_printable_cursor_is_let_through(cursor):
    """A cursor of printable ASCII is passed to the feed as it is."""
    assert read(cursor=cursor).cursor == cursor


def test_v1_is_known_by_n():
    """A request that says n speaks v1."""
    assert is_v1(query(n="2", cursor0="c"))
    assert is_v1(query(n=""))
    assert not is_v1(query(token="t", partition="0", cursor="c"))


def test_v1_request_is_read():
    """A v1 request says a cursor for each partition that it wants, and names of headers."""
    assert read_v1(n="2", cursor1="c") == V1Request({1: "c"}, None, frozenset())
    assert read_v1(n="2", cursor0="a", cursor1="b", pagesizehint="5", headers="x,y") == (
        V1Request({0: "a", 1: "b"}, 5, frozenset({"x", "y"}))
    )


def test_empty_names_of_headers_are_passed_over():
    """A comma too many asks for no header without a name."""
    for names in ("x,", ",x", "x,,x", ",x,", "", ",", ",,"):
        expected = {"x"} if "x" in names else set()
        assert read_v1(n="2", cursor0="c", headers=names).headers == expected


@pytest.mark.parametrize("n", ["0", "1", "3", "32768", "9" * 5000])
def test_n_is_the_number_of_partitions(n):
    """A consumer that expects another number of partitions is refused."""
    with pytest.raises(BadRequest, match="n partitions"):
        read_v1(n=n, cursor0="c")


@pytest.mark.parametrize("name", ["n", "cursor0", "cursor1", "pagesizehint", "headers"])
def test_v1_parameter_that_is_there_twice_is_refused(name):
    """A parameter of a v1 request is there once as well."""
    parameters = {"n": "2", "cursor0": "c"}
    with pytest.raises(BadRequest, match=f"{name} is there more than once"):
        read_v1(**parameters | {name: ["2", "2"]})


@pytest.mark.parametrize("name", ["cursor2", "cursor", "cursor00", "cursor-1", "Cursor0", "other"])
def test_v1_request_names_a_partition_that_there_is(name):
    """A request without the cursor of one of the partitions is refused."""
    with pytest.raises(BadRequest, match="cursor is missing"):
        read_v1(**{"n": "2", name: "c"})


def test_partitions_need_not_be_numbered_from_0():
    """A v1 request names partitions by the ids that they have."""
    info = FeedInfo((Partition(7), Partition(3)), token="t")
    assert read_v1_request(query(n="2", cursor7="c"), info, 2).cursors == {7: "c"}


def test_extensions_are_read():
    """A request may say which types it wants, where it stops, and how long it waits."""
    assert read(**{"event-types": "A;b;;a"}).types == TypeFilter(frozenset({"a", "b"}))
    assert read(**{"skip-event-types": ";A"}).types == TypeFilter(frozenset({"a"}), skip=True)
    assert read(stop="d").stop == "d"
    assert (read(wait="12").wait, read(wait="0.5").wait, read().wait) == (12.0, 0.5, 0.0)


def test_extensions_that_a_feed_lacks_are_passed_over():
    """What belongs to an extension of other feeds is not even read, but for one mistake."""
    assert read(extensions=frozenset(), stop="\n", wait="x") == read()
    assert read(extensions=frozenset(), **{"event-types": "a"}) == read()
    assert read(extensions={STOP}, stop="d", wait="1", **{"event-types": "a"}) == read(stop="d")
    with pytest.raises(BadRequest, match="at the same time"):
        read(extensions=frozenset(), **{"event-types": "a", "skip-event-types": "a"})


@pytest.mark.parametrize("name", ["event-types", "skip-event-types"])
@pytest.mark.parametrize(
    "types",
    [
        *["", ";", ";;;", " ", "a b", "a; b", "a\t", "a\n", "\x00", "\x7f", "\u00e5", "\u212a"],
        *["\uff1b", "x" * 257, ";".join(f"t{number}" for number in range(101)), "a;\ud800"],
    ],
    ids=lambda types: ascii(types[:20]),
)
def test_types_are_of_printable_ascii(name, types):
    """A list that names no type, too many or too long ones, or not in ASCII, is refused."""
    with pytest.raises(BadRequest):
        read(**{name: types})


def test_as_many_types_as_are_allowed():
    """A hundred types, each of 256 characters, are not too many."""
    names = [f"{number:x>256}" for number in range(100)]
    assert len(read(**{"event-types": ";".join(names * 2)}).types.names) == 100


@given(st.sets(st.from_regex(r"[!-:<-~]{1,20}", fullmatch=True), min_size=1, max_size=20))
def test_any_names_of_types_are_let_through(names):
    """Names are kept as they are, but in lower case."""
    types = read(**{"event-types": ";".join(names)}).types
    assert types == TypeFilter(frozenset(name.lower() for name in names))


@pytest.mark.parametrize(
    "wait",
    [
        *["", ".", ".5", "5.", "-1", "+1", " 1", "1 ", "1e1", "1_0", "0x1", "inf", "nan", "1,5"],
        *[
            "1.2.3",
            "1\n",
            "\u0661",
            "\uff11",
            "\u00bd",
            "1" * 10,
            "1." + "1" * 10,
            "Infinity",
            "\x00",
        ],
    ],
    ids=ascii,
)
def test_wait_is_a_number_of_seconds(wait):
    """Seconds are written in ASCII digits with at most one dot between them."""
    with pytest.raises(BadRequest, match="wait is not a number of seconds"):
        read(wait=wait)


@given(st.integers(0, 10**9 - 1), st.none() | st.from_regex(r"[0-9]{1,9}", fullmatch=True))
def test_any_number_of_seconds_is_read(seconds, fraction):
    """Whatever is a number is read, however large: the endpoint knows how long is long enough."""
    text = str(seconds) if fraction is None else f"{seconds}.{fraction}"
    assert read(wait=text).wait == float(text)


def test_splits_request_is_read():
    """A request for pieces says how many, and may say where they start and end."""
    assert read_splits() == SplitsRequest("t", 0, 4, FIRST, None)
    assert read_splits(count="1000", cursor="a", stop="b") == SplitsRequest("t", 0, 1000, "a", "b")
    for wrong in [{"stop": FIRST}, {"stop": LAST}, {"cursor": LAST}, {"cursor": ""}]:
        with pytest.raises(BadCursor):
            read_splits(**wrong)


def test_count_request_is_read():
    """A request for the cursor of a count says from where and how many, and may say up to where."""
    assert read_count() == CountRequest("t", 0, "c", 4, None)
    whole = read_count(cursor=FIRST, events="01000000", stop="b")
    assert whole == CountRequest("t", 0, FIRST, 1_000_000, "b")
    for wrong in [{"stop": FIRST}, {"stop": LAST}, {"cursor": LAST}, {"cursor": ""}, {"stop": ""}]:
        with pytest.raises(BadCursor):
            read_count(**wrong)
    needed = {"token": "t", "partition": "0", "cursor": "c", "events": "4"}
    for name in needed:
        with pytest.raises(BadRequest, match=name):
            read_count_request(query(**{key: needed[key] for key in needed if key != name}))


def test_lag_request_is_read():
    """A request for a lag has a place, which may be any cursor."""
    whole = {"token": "t", "partition": "0", "cursor": "c"}
    for cursor in ("c", FIRST, LAST):
        request = read_lag_request(query(**whole | {"cursor": cursor}))
        assert request == LagRequest("t", 0, cursor)
    for name in whole:
        with pytest.raises(BadRequest, match=name):
            read_lag_request(query(**{key: whole[key] for key in whole if key != name}))
    with pytest.raises(BadCursor):
        read_lag_request(query(**whole | {"cursor": "\n"}))


def test_moment_is_read_in_utc():
    """A moment is read with its zone, and known in UTC."""
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    for time in [
        "2026-03-01T12:00:00Z",
        "2026-03-01t13:30:00.000+01:30",
        "2026-03-01T00:00:00-12:00",
    ]:
        assert read_moment(time) == noon
        assert read_moment(time).tzinfo is UTC
    assert read_moment("2026-03-01T12:00:00.1234569Z") == noon.replace(microsecond=123456)
    request = read_cursor_request(query(token="t", partition="1", time="2026-03-01T12:00:00z"))
    assert request == CursorRequest("t", 1, noon)


@given(
    st.datetimes(min_value=datetime(1, 1, 3), max_value=datetime(9999, 12, 29)),  # noqa: DTZ001
    st.integers(-1439, 1439),
)
def test_any_moment_is_read(moment, minutes):
    """Every moment of Python's that has a zone of whole minutes is read as it is."""
    zoned = moment.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    assert read_moment(zoned.isoformat()) == zoned


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
        moment = read_moment(time)
    except BadRequest:
        return
    assert moment.tzinfo is UTC
    assert _RFC3339.fullmatch(time)


def test_http_feed_request_is_read():
    """HTTP Feeds has milliseconds, and an id; without a value there is none."""
    assert read_http_feed_request(query()) == HttpFeedRequest(None, None, 0.0)
    assert read_http_feed_request(query(lastEventId="", timeout="1500", partition="3")) == (
        HttpFeedRequest(3, None, 1.5)
    )
    assert read_http_feed_request(query(lastEventId="\u00e5 b")).last_event_id == "\u00e5 b"
    for name in ("lastEventId", "timeout", "partition"):
        with pytest.raises(BadRequest):
            read_http_feed_request(query(**{name: ["1", "1"]}))


def test_stream_request_is_read():
    """The id of a client that has been cut off counts before the cursor that it began with."""
    assert read_stream_request(query(), None) == StreamRequest(None, FIRST, None)
    assert read_stream_request(query(cursor="a", partition="2"), "") == StreamRequest(2, "a", None)
    assert read_stream_request(query(cursor="a"), "b").cursor == "b"
    for cursor in filter(None, HOSTILE_CURSORS):
        with pytest.raises(BadCursor):
            read_stream_request(query(), cursor)


names = st.sampled_from(
    [
        *["n", "token", "partition", "cursor", "cursor0", "cursor1", "pagesizehint", "headers"],
        *["event-types", "skip-event-types", "stop", "wait", "time", "count"],
        *["lastEventId", "timeout"],
    ]
)
values = st.sampled_from(["0", "1", "2", "c", *HOSTILE_NUMBERS, *HOSTILE_CURSORS]) | st.text()
pairs = st.lists(st.tuples(names | st.text(max_size=3), values), max_size=8)
query_strings = st.text() | pairs.map(
    lambda pairs: urlencode(pairs, encoding="utf-8", errors="surrogatepass")
)


READERS = [
    lambda parameters: read_events_request(parameters, EVERYTHING),
    lambda parameters: read_events_request(parameters, frozenset()),
    lambda parameters: read_v1_request(parameters, TWO, 2),
    read_cursor_request,
    read_lag_request,
    read_count_request,
    read_splits_request,
    read_http_feed_request,
    lambda parameters: read_stream_request(parameters, None),
]


@given(query_strings, st.sampled_from(READERS))
def test_any_query_is_a_request_or_a_bad_one(text, reader):
    """Whatever is asked is a request or a bad request: never another exception."""
    try:
        request = reader(QueryParams(text))
    except BadRequest:
        return
    assert getattr(request, "limit", None) is None or request.limit >= 0
    assert 0 <= getattr(request, "wait", 0.0) < float("inf")
    assert getattr(request, "cursor", "c").isprintable()
