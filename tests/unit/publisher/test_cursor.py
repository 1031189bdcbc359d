"""The cursors of a table's feed: their one form, their digest, and the secret in it."""

import re
from hashlib import blake2b

import pytest
from harness.shop import metadata, orders
from harness.statements import execute
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, insert, update

from zeroeventhub import FIRST, LAST, TableFeed
from zeroeventhub.errors import BadCursor, ConfigurationError, Diverged, Gone

SECRET = "a secret of sixteen characters or more"
HIGHEST = 2**63 - 1
EDGES = [1, 2**31, 2**32, 2**53, HIGHEST - 100]

CURSORS = ["1-0", "1-1", f"1-{HIGHEST}", "2-1-0000-0000000000", f"2-{HIGHEST}-0a1b-0123456789"]
INSERTED = st.sampled_from([*"019aAG-_. \n\x00\u2212", "\ufeff"]) | st.characters(categories=["N"])
near_misses = st.builds(
    lambda cursor, at, length, inserted: cursor[:at] + inserted + cursor[at + length :],
    st.sampled_from(CURSORS),
    st.integers(0, 40),
    st.integers(0, 2),
    st.just("") | INSERTED,
)


@pytest.fixture(scope="module")
def feed(memory):
    """A feed that all examples share."""
    return TableFeed(orders, data="data").bind(memory)


def is_taken(feed, cursor):
    """Tell whether a text is a cursor, be it of this feed's history or of another one's."""
    try:
        feed.read(0, cursor, 1)
    except BadCursor:
        return False
    except Gone:
        pass
    return True


@settings(max_examples=30)
@given(st.sampled_from(EDGES), st.integers(0, 100), st.booleans())
def test_cursor_keeps_positions_of_any_size(memory, edge, offset, mutable):
    """A cursor is of characters that no URL escapes, and leads back behind its event."""
    with memory.begin() as connection:
        connection.execute(delete(orders))
        connection.execute(insert(orders), {"id": edge + offset, "data": {}})
    feed = TableFeed(orders, data="data", mutable=mutable).bind(memory)
    page = feed.read(0, FIRST, 1)
    assert len(page.events) == 1
    assert re.fullmatch("[0-9a-f-]{3,40}", page.cursor)
    assert page.cursor.split("-")[1] == str(edge + offset)
    assert feed.read(0, page.cursor, 1).events == []
    assert feed.read(0, f"1-{edge + offset - 1}", 1).cursor == page.cursor


@settings(max_examples=150)
@given(st.text() | near_misses)
@example("2-0-0000-0000000000")
@example(f"2-{HIGHEST + 1}-0000-0000000000")
@example("1-" + "9" * 5000)
@example("1-" + "0" * 5000)
@example("1-\ud800")
def test_any_text_is_a_cursor_in_its_one_form_or_refused(feed, text):
    """The publisher takes whole numbers without zeros in front, alone or with both digests."""
    form = re.fullmatch(r"1-(0|[1-9]\d*)|2-([1-9]\d*)-[0-9a-f]{4}-[0-9a-f]{10}", text, re.ASCII)
    number = (form[1] or form[2]) if form else "9" * 20
    known = text in {FIRST, LAST} or (len(number), number) <= (19, str(HIGHEST))
    assert is_taken(feed, text) is known


@pytest.fixture
def shop(sqlite):
    """An engine of a database with two orders in each of two partitions, the same in both."""
    metadata.create_all(sqlite)
    with sqlite.begin() as connection:
        rows = [{"part": number % 2, "data": {"n": number // 2}} for number in range(4)]
        connection.execute(insert(orders), rows)
    return sqlite


def feed_of(engine, secret=SECRET, **options):
    """A feed of two partitions."""
    two = {"partition": "part", "partitions": 2}
    return TableFeed(orders, data="data", cursor_secret=secret, **two, **options).bind(engine)


def first_cursor(engine, secret):
    """The cursor behind the first event."""
    return feed_of(engine, secret).read(0, FIRST, 1).cursor


def test_guess_of_a_hidden_event_is_not_confirmed_by_a_cursor(shop):
    """The cursor of the head stands at an event of another partition, and says nothing of it."""
    guessed = blake2b(b'{"n": 1}', digest_size=5).hexdigest()
    assert feed_of(shop, None).read(0, LAST, 1).cursor.endswith(guessed)
    sealed = feed_of(shop)
    _, position, recipe, check = sealed.read(0, LAST, 1).cursor.split("-")
    seen = sealed.read(0, FIRST, 10).cursor
    # The last events of both partitions are the same, and nothing shows it.
    assert position == "4"
    assert check not in {guessed, seen.split("-")[3]}
    # Nor does trying: what a reader can compute is another history.
    with pytest.raises(Diverged):
        sealed.read(0, f"2-4-{recipe}-{guessed}", 1)


def test_secret_is_in_both_digests(shop):
    """With a secret both digests are others, and with another secret others again."""
    secrets = [None, SECRET, SECRET + ".", SECRET.upper()]
    found = [first_cursor(shop, secret).split("-")[2:] for secret in secrets]
    for digests in zip(*found, strict=True):
        assert len({*digests}) == len(secrets)


def test_cursors_outlive_their_secret(shop):
    """Cursors are the same with one secret; with another, only positions are compared."""
    plain, sealed = (first_cursor(shop, secret) for secret in (None, SECRET))
    assert feed_of(shop).read(0, sealed, 1).events[0].data == {"n": 1}
    assert first_cursor(shop, SECRET.encode()) == sealed
    execute(shop, update(orders).where(orders.c.id == 1).values(data={"n": 7}))
    with pytest.raises(Diverged):
        feed_of(shop).read(0, sealed, 1)
    for cursor, secret in [(plain, SECRET), (sealed, None), (sealed, SECRET[::-1])]:
        assert feed_of(shop, secret).read(0, cursor, 1).events[0].data == {"n": 1}
        with pytest.raises(Diverged):
            feed_of(shop, secret).read(0, cursor.replace("2-1-", "2-99-"), 1)


@pytest.mark.parametrize(
    "secret", ["", b"", "x" * 15, b"x" * 15, 12345678901234567890, bytearray(16)], ids=repr
)
def test_secret_that_could_be_guessed_is_refused(secret):
    """A secret has at least sixteen characters; the error does not repeat it."""
    with pytest.raises(ConfigurationError, match="secret") as caught:
        TableFeed(orders, data="data", cursor_secret=secret)
    assert "xxx" not in str(caught.value)
