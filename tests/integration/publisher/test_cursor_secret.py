"""Cursors that show nothing of the events at which they stand, on every database."""

from hashlib import blake2b

import pytest
from harness.shop import metadata, orders
from sqlalchemy import insert, update

from zeroeventhub import FIRST, LAST, TableFeed
from zeroeventhub.errors import Diverged
from zeroeventhub.publisher.cursor import Place

SECRET = "a secret of sixteen characters or more"


@pytest.fixture
def shop(engine):
    """An engine of a database with two orders in each of two partitions, the same in both."""
    metadata.create_all(engine)
    with engine.begin() as connection:
        rows = [{"part": number % 2, "data": {"n": number // 2}} for number in range(4)]
        connection.execute(insert(orders), rows)
    return engine


def feed(engine, secret=SECRET, **options):
    """A feed of two partitions."""
    source = TableFeed(
        orders, data="data", partition="part", partitions=2, cursor_secret=secret, **options
    )
    return source.bind(engine)


def test_guess_of_a_hidden_event_is_not_confirmed_by_a_cursor(shop):
    """The cursor of the head stands at an event of another partition, and says nothing of it."""
    guessed = blake2b(b'{"n": 1}', digest_size=5).hexdigest()
    assert feed(shop, None).read(0, LAST, 1).cursor.endswith(guessed)
    sealed = feed(shop)
    head = Place.of(sealed.read(0, LAST, 1).cursor)
    seen = Place.of(sealed.read(0, FIRST, 10).cursor)
    assert head.position == 4
    assert head.check not in {guessed, seen.check}
    # Nor by trying: what a reader can compute is another history.
    with pytest.raises(Diverged):
        sealed.read(0, str(Place(4, head.recipe, guessed)), 1)


def test_history_is_checked_as_without_a_secret(shop):
    """Cursors are the same in all processes of one secret, and refused where the event is not."""
    cursor = feed(shop).read(0, FIRST, 1).cursor
    assert feed(shop).read(0, cursor, 1).events[0].data == {"n": 1}
    assert feed(shop, SECRET.encode()).read(0, FIRST, 1).cursor == cursor
    with shop.begin() as connection:
        connection.execute(update(orders).where(orders.c.id == 1).values(data={"n": 7}))
    with pytest.raises(Diverged):
        feed(shop).read(0, cursor, 1)


def test_cursors_outlive_their_secret(shop):
    """With another secret, or none, or the first one, only the positions are compared."""
    plain, sealed = (feed(shop, secret).read(0, FIRST, 1).cursor for secret in (None, SECRET))
    with shop.begin() as connection:
        connection.execute(update(orders).where(orders.c.id == 1).values(data={"n": 7}))
    for cursor, secret in [(plain, SECRET), (sealed, None), (sealed, SECRET[::-1])]:
        assert feed(shop, secret).read(0, cursor, 1).events[0].data == {"n": 1}
        beyond = cursor.replace("2-1-", "2-99-")
        with pytest.raises(Diverged):
            feed(shop, secret).read(0, beyond, 1)


def test_mutable_feed_needs_no_secret(shop):
    """Where only positions are compared, a cursor holds nothing else."""
    assert feed(shop, mutable=True).read(0, FIRST, 1).cursor == "1-1"
