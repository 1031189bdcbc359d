import json
import math

import pytest
from harness.json_values import json_values, numbers
from hypothesis import given
from hypothesis import strategies as st

from zeroeventhub import Event, FeedInfo, Partition, TypeFilter
from zeroeventhub.errors import ConfigurationError, ProtocolError

ITSELF, DEEP = [], []
ITSELF.append(ITSELF)
for _ in range(100_000):
    DEEP = [DEEP]


@given(json_values(numbers | st.text()))
def test_event_is_one_line_of_compact_json(data):
    """An event's text is JSON in UTF-8, on one line, with no space or escape that it can spare."""
    raw = Event.of(data).raw
    assert b"\n" not in raw
    assert json.loads(raw.decode()) == data
    assert Event.of({"a": [1, "å\u2028"]}).raw == '{"a":[1,"å\u2028"]}'.encode()


@pytest.mark.parametrize(
    "data",
    [
        *[float("nan"), float("inf"), -float("inf"), [float("nan")], {"a": float("inf")}],
        *[{1, 2}, b"bytes", object(), 1j, {"a": {1}}, {(1, 2): 3}, {b"a": 1}, range(3)],
        *["\ud800", "\udc00a", ["\ud800"], {"\ud800": 1}, {"a": "\ud83d"}],
        *[ITSELF, DEEP],
    ],
    ids=lambda data: type(data).__name__,
)
def test_data_without_a_json_form_is_refused(data):
    """Data that has no JSON form is refused when the event is made, not when it is read."""
    with pytest.raises(ConfigurationError, match="no JSON form"):
        Event.of(data)


@pytest.mark.parametrize(
    "raw",
    [
        *[b"1e400", b"-1e400", b'{"a":[1e400]}', b"1" * 5000, b"[" * 100_000 + b"]" * 100_000],
        *[b"", b"NaN", b"01", b"[1,]", b'"\\ud800"', b"{} {}"],
    ],
    ids=lambda raw: repr(raw[:20]),
)
def test_data_that_python_cannot_hold_is_an_error_and_raw_remains(raw):
    """What is no JSON, or none that Python can hold exactly, is not decoded; its text remains."""
    event = Event(raw)
    with pytest.raises(ProtocolError, match=r"event\.raw has it"):
        _ = event.data
    assert event.raw == raw


EXACT = [
    (b"1e-400", 0.0),
    (b"9007199254740993", 2**53 + 1),
    (b"9223372036854775808", 2**63),
    (b"18446744073709551616", 2**64),
    (b"9" * 30, int("9" * 30)),
    (b"0." + b"1" * 5000, float("0." + "1" * 5000)),
    (b"-0", 0),
    (b"-0.0", -0.0),
    (b"1E+2", 100.0),
    (b'{"a":1,"a":2}', {"a": 2}),
    (b'"\\ud83d\\ude00"', "😀"),
    (b'"\\u0000"', "\x00"),
    ('"\u0085\u2028\ufeff\U0010ffff"'.encode(), "\u0085\u2028\ufeff\U0010ffff"),
    ('"e\u0301é"'.encode(), "e\u0301é"),
    (b' \t{ "a"\r:\t[ 1 , 2 ] } ', {"a": [1, 2]}),
    (b"null", None),
]


@pytest.mark.parametrize(("raw", "data"), EXACT, ids=lambda value: repr(value)[:20])
def test_data_is_exact(raw, data):
    """Numbers and characters that readers get wrong are decoded as they were meant."""
    found = Event(raw).data
    assert (type(found), found) == (type(data), data)
    if isinstance(data, float):
        assert math.copysign(1, found) == math.copysign(1, data)


def test_raw_is_kept_byte_for_byte():
    """Decoding the data, which happens once, leaves the text with its spaces, keys and digits."""
    raw = b'{ "a":1.00, "a":2E+2,\t"b":"\\u00e5" }'
    event = Event(raw)
    assert event.data == {"a": 200.0, "b": "å"}
    assert event.data is event.data
    assert event.raw == raw


@given(st.integers() | st.sampled_from([0, 32767, -1, 32768]))
def test_partition_ids_go_from_0_to_32767(number):
    """Every id from 0 to 32767 is a partition's and no other, wherever it stands."""
    for make in (
        lambda: Partition(number),
        lambda: Partition(1, starts_after=number),
        lambda: Partition(1, cursor_from=(0, number)),
    ):
        if 0 <= number <= 32767:
            assert make()
            continue
        with pytest.raises(ConfigurationError, match="0 to 32767"):
            make()


@given(st.integers(-1, 50) | st.sampled_from([32768, 32769]))
def test_feed_of_n_partitions_numbers_them_from_0(count):
    """A feed of N partitions has those of ids 0 to N-1, all open, and a token of that number."""
    if not 1 <= count <= 32768:
        with pytest.raises(ConfigurationError, match="1 to 32768"):
            FeedInfo.of(count)
        return
    info = FeedInfo.of(count)
    assert [partition.id for partition in info.partitions] == list(range(count))
    assert not any(partition.closed for partition in info.partitions)
    assert info.token == FeedInfo.of(count).token != FeedInfo.of(count % 7 + 51).token


@pytest.mark.parametrize(
    "names", ["order.paid", [], None, [1], ["a;b"], ["a*"], ["ü"], ["x" * 257]]
)
def test_filter_names_whole_types(names):
    """A filter without a name, of one text in place of names, or of a malformed name is refused."""
    with pytest.raises(ConfigurationError, match=r"[Tt]ype"):
        TypeFilter(names)


def test_names_and_parents_may_come_from_an_iterator():
    """What can be read only once is kept: a filter without its names would show what it hides."""
    shown = TypeFilter(iter(["order.paid"]))
    hidden = TypeFilter(map(str.upper, ["order.paid"]), skip=True)
    assert shown.lets_through("order.paid")
    assert not hidden.lets_through("order.paid")
    assert Partition(2, cursor_from=iter([0, 1])).cursor_from == (0, 1)
