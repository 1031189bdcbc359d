import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeroeventhub.errors import BadCursor
from zeroeventhub.protocol import FIRST, LAST
from zeroeventhub.publisher.cursor import HIGHEST_POSITION, decode_position, encode_position

positions = st.integers(0, HIGHEST_POSITION)
digits = st.characters(categories=["Nd", "No", "Nl"])
near_misses = st.builds(
    "{}{}{}{}{}".format,
    st.sampled_from(["", " ", "\n", "v", "-", "+"]),
    st.sampled_from(["0", "1", "2", "01", "11", "\uff11", ""]),
    st.sampled_from(["-", "--", "\u2212", "\u2013", "_", "- ", ""]),
    positions.map(str) | st.text(digits, max_size=20) | st.text(max_size=5),
    st.sampled_from(["", " ", "\n", "\r\n", "\x00", "-", ".0", "_0", "e1"]),
)


@given(positions)
def test_cursor_gives_its_position_back(position):
    """Every position has a cursor, and its cursor has that position."""
    assert decode_position(encode_position(position)) == position


@given(st.integers(0, 100), st.sampled_from([0, 2**31, 2**32, 2**53, 2**63 - 101]))
def test_cursor_holds_at_the_edges(offset, edge):
    """Positions around the sizes of numbers are kept exactly."""
    assert decode_position(encode_position(edge + offset)) == edge + offset


@given(positions)
def test_cursor_is_printable_ascii(position):
    """A cursor is of the characters that ZeroEventHub v1 allows."""
    assert re.fullmatch("1-[0-9]{1,19}", encode_position(position))


@given(st.text() | near_misses)
def test_any_text_is_the_cursor_of_its_position_or_refused(text):
    """A text is a cursor if it is the one that its position has, and else a bad one."""
    try:
        position = decode_position(text)
    except BadCursor:
        return
    assert encode_position(position) == text
    assert 0 <= position <= HIGHEST_POSITION


@pytest.mark.parametrize(
    "cursor",
    [
        *[
            "",
            " ",
            "-",
            "1",
            "1-",
            "-1",
            "1--1",
            "2-1",
            "0-1",
            "11-1",
            "01-1",
            "1-1-1",
            FIRST,
            LAST,
        ],
        *["1-00", "1-01", "1-0000000000000000001", "1-+1", "1--0", "1-1.0", "1-1e3", "1-1_0"],
        *[" 1-1", "1-1 ", "1- 1", "1 -1", "1-1\n", "\n1-1", "1-1\r\n", "1-1\x00", "1-\x001"],
        *["1-\uff11", "\uff11-1", "1-\u0661", "1-\u00b2", "1-\u00bd", "1\u22121", "1-\U0001d7cf"],
        *[
            f"1-{2**63}",
            f"1-{2**64}",
            "1-9999999999999999999",
            "1-" + "9" * 5000,
            "1-" + "0" * 5000,
        ],
        *["1-0x10", "1-a", "1-NaN", "1-\ud800", "1-1\u200b", "\ufeff1-1"],
    ],
    ids=lambda cursor: ascii(cursor[:20]),
)
def test_cursor_of_another_form_is_refused(cursor):
    """A text that no feed over a table has given is a bad cursor."""
    with pytest.raises(BadCursor):
        decode_position(cursor)
