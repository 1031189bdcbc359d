from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import QueryParams

from zeroeventhub import FIRST, FeedInfo, Partition
from zeroeventhub.errors import BadCursor, BadRequest
from zeroeventhub.server.parameters import (
    EventsRequest,
    V1Request,
    is_v1,
    read_events_request,
    read_v1_request,
)

TWO = FeedInfo.of(2)
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


def read(**parameters):
    """Read a v2 request that is complete but for what is given here."""
    return read_events_request(
        query(**{"token": "t", "partition": "0", "cursor": "c"} | parameters)
    )


def read_v1(**parameters):
    """Read a v1 request to a feed of two partitions."""
    return read_v1_request(query(**parameters), TWO)


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
        read_events_request(query(**parameters))


@pytest.mark.parametrize("name", ["token", "partition", "cursor", "pagesizehint"])
def test_parameter_that_is_there_twice_is_refused(name):
    """A parameter is there once, even if both say the same."""
    with pytest.raises(BadRequest, match=f"{name} is there more than once"):
        read(**{name: ["1", "1"]})


@pytest.mark.parametrize("name", ["partition", "pagesizehint"])
@pytest.mark.parametrize("number", HOSTILE_NUMBERS, ids=ascii)
def test_number_is_of_ascii_digits(name, number):
    """A number is written in ASCII digits and nothing else."""
    with pytest.raises(BadRequest, match=f"{name} is not a whole number"):
        read(**{name: number})


@pytest.mark.parametrize("digits", ["9" * 18, "9" * 19, "9" * 5000])
def test_long_number_stays_large(digits):
    """A number of any length is read as some number that no feed has a use for."""
    request = read(partition=digits, pagesizehint=digits)
    assert request.partition >= 10**18 - 1
    assert request.limit >= 10**18 - 1


@pytest.mark.parametrize("cursor", HOSTILE_CURSORS, ids=lambda cursor: ascii(cursor[:20]))
def test_cursor_is_of_printable_ascii(cursor):
    """A cursor that is empty, too long, or not of printable ASCII is a bad one."""
    with pytest.raises(BadCursor):
        read(cursor=cursor)
    with pytest.raises(BadCursor):
        read_v1(n="2", cursor1=cursor)


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


@pytest.mark.parametrize("names", ["x,", ",x", "x,,x", ",x,"])
def test_empty_names_of_headers_are_passed_over(names):
    """A comma too many asks for no header without a name."""
    assert read_v1(n="2", cursor0="c", headers=names).headers == {"x"}


@pytest.mark.parametrize("names", ["", ",", ",,"])
def test_no_names_ask_for_no_headers(names):
    """A list without names asks for no headers."""
    assert read_v1(n="2", cursor0="c", headers=names).headers == frozenset()


@pytest.mark.parametrize("n", ["0", "1", "3", "32768", "9" * 5000])
def test_n_is_the_number_of_partitions(n):
    """A consumer that expects another number of partitions is refused."""
    with pytest.raises(BadRequest, match="n partitions"):
        read_v1(n=n, cursor0="c")


@pytest.mark.parametrize("n", HOSTILE_NUMBERS, ids=ascii)
def test_n_is_of_ascii_digits(n):
    """The number of partitions is written in ASCII digits."""
    with pytest.raises(BadRequest, match="n is not a whole number"):
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
    assert read_v1_request(query(n="2", cursor7="c"), info).cursors == {7: "c"}


names = st.sampled_from(
    ["n", "token", "partition", "cursor", "cursor0", "cursor1", "pagesizehint", "headers"]
)
values = st.sampled_from(["0", "1", "2", "c", *HOSTILE_NUMBERS, *HOSTILE_CURSORS]) | st.text()
pairs = st.lists(st.tuples(names | st.text(max_size=3), values), max_size=8)
query_strings = st.text() | pairs.map(
    lambda pairs: urlencode(pairs, encoding="utf-8", errors="surrogatepass")
)


@given(query_strings)
def test_any_query_is_a_request_or_a_bad_one(text):
    """Whatever is asked is a request or a bad request: never another exception."""
    parameters = QueryParams(text)
    try:
        request = (
            read_v1_request(parameters, TWO)
            if is_v1(parameters)
            else read_events_request(parameters)
        )
    except BadRequest:
        return
    assert isinstance(request, V1Request | EventsRequest)
    assert request.limit is None or request.limit >= 0
