import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeroeventhub.errors import BadCursor, ConfigurationError
from zeroeventhub.protocol import FIRST, LAST
from zeroeventhub.publisher.cursor import HIGHEST_POSITION, Place, Seal, digest

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


hexadecimal = st.text("0123456789abcdef", min_size=4, max_size=4)
bare = st.builds(Place, positions)
checked = st.builds(
    Place,
    st.integers(1, HIGHEST_POSITION),
    hexadecimal,
    st.binary().map(lambda content: digest(content, digits=10)),
)


@given(bare | checked)
def test_cursor_gives_its_place_back(place):
    """Every place has a cursor, and its cursor is of that place."""
    assert Place.of(str(place)) == place


@given(st.integers(0, 100), st.sampled_from([0, 2**31, 2**32, 2**53, 2**63 - 101]))
def test_cursor_holds_at_the_edges(offset, edge):
    """Positions around the sizes of numbers are kept exactly."""
    assert Place.of(str(Place(edge + offset))).position == edge + offset


@given(bare | checked)
def test_cursor_is_printable_ascii(place):
    """A cursor is of the characters that ZeroEventHub v1 allows, and needs no escape in a URL."""
    assert re.fullmatch("[0-9a-f-]{3,40}", str(place))


@given(st.text() | near_misses)
def test_any_text_is_the_cursor_of_its_place_or_refused(text):
    """A text is a cursor if it is the one that its place has, and else a bad one."""
    try:
        place = Place.of(text)
    except BadCursor:
        return
    assert str(place) == text
    assert 0 <= place.position <= HIGHEST_POSITION


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
            "2-0",
            "2-1",
            "2-0-0000-0000000000",
            "2-1-0000-000000000",
            "2-1-0000-00000000000",
            "2-1-000-0000000000",
            "2-1-0000-000000000G",
            "2-1-0000-000000000A",
            "2-01-0000-0000000000",
            "2-1-0000-0000000000-",
            "1-1-0000-0000000000",
            "2-9223372036854775808-0000-0000000000",
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
        Place.of(cursor)


SECRET = "a secret of sixteen characters or more"


def test_secret_is_in_the_digest_and_in_the_recipe():
    """With a secret both are others, and with another secret others again."""
    plain, sealed = Seal("abcd"), Seal("abcd", SECRET)
    assert (plain.recipe, plain.check(7, b"{}")) == ("abcd", digest(b"{}", digits=10))
    others = [Seal("abcd", SECRET + "."), Seal("abcd", SECRET.upper()), plain]
    assert all(other.recipe != sealed.recipe for other in others)
    assert all(other.check(7, b"{}") != sealed.check(7, b"{}") for other in others)
    assert Seal("abcd", SECRET.encode()).check(7, b"{}") == sealed.check(7, b"{}")
    assert Place.of(str(Place(7, sealed.recipe, sealed.check(7, b"{}")))).position == 7


def test_sealed_digest_does_not_show_that_two_events_are_the_same():
    """Without the position in it, a reader could compare a hidden event with those it sees."""
    plain, sealed = Seal("abcd"), Seal("abcd", SECRET)
    assert plain.check(7, b"{}") == plain.check(8, b"{}")
    assert sealed.check(7, b"{}") != sealed.check(8, b"{}")


@pytest.mark.parametrize(
    "secret", ["", b"", "x" * 15, b"x" * 15, 12345678901234567890, bytearray(16)]
)
def test_secret_that_could_be_guessed_is_refused(secret):
    """A secret has at least sixteen characters; the error does not repeat it."""
    with pytest.raises(ConfigurationError, match="secret") as caught:
        Seal("abcd", secret)
    assert "xxx" not in str(caught.value)
