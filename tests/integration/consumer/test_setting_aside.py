"""Events that fail are set aside, in the transaction that moves the cursor behind them."""

import pytest
from harness.deliveries import NAME, Poison, Shop, effects, event, failing, write, write_page
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Session

from zeroeventhub import Event, Failures
from zeroeventhub.errors import Fenced

ASIDE = Failures(tries=3, then="set-aside")
HELD = Failures(tries=2, then="set-aside", hold_back=True)


class Base(DeclarativeBase):
    """What the tests' classes are mapped on."""


class Effect(Base):
    """An effect, mapped."""

    __table__ = effects


def with_events(apply):
    """Make a function that takes events of one that takes a connection and an event."""

    def applying(connection: Connection, one: Event) -> None:
        apply(connection, one)

    return applying


@pytest.mark.parametrize("poison", [(1,), (2,), (3,), (1, 3), (1, 2, 3), ()])
def test_what_fails_is_set_aside_and_the_rest_is_applied(shop, poison):
    """A poison event leaves nothing but its letter, wherever in the page it stands."""
    seen = []
    deliveries = shop.to(with_events(failing(*poison, seen=seen)), failures=ASIDE)
    deliveries.deliver(shop.step(event(1), event(2), event(3), set_aside=True))
    assert shop.landed() == [n for n in (1, 2, 3) if n not in poison]
    assert shop.letters() == [(n, "failed", 3) for n in poison]
    assert shop.place().cursor == "1"
    assert seen == [n for n in (1, 2, 3) for _ in range(3 if n in poison else 1)]
    assert shop.observer["set aside"] == ([[len(poison), 0]] if poison else [])
    assert shop.observer["failed"] == [["Poison", number] for _ in poison for number in (1, 2, 3)]
    assert shop.observer["committed"] == [[3]]


def test_letter_tells_what_happened_and_where(sync_shop):
    """A letter holds the event as it came, its key, and the error with its traceback."""
    poison = event(1, "ada", amount=12)
    deliveries = sync_shop.to(with_events(failing(1)), failures=ASIDE)
    deliveries.deliver(sync_shop.step(poison, set_aside=True))
    with sync_shop.engine.connect() as connection:
        (letter,) = sync_shop.store.dead_letters.letters(connection, NAME)
    assert (letter.event, letter.key, letter.partition) == (poison, "ada", 0)
    assert letter.error == "harness.deliveries.Poison: event 1 is poison"
    assert "in apply" in letter.traceback


def test_event_that_succeeds_at_last_is_no_letter(shop):
    """An event is tried as often as may be."""
    left = [1, 1]

    def apply(connection: Connection, one: Event) -> None:
        """Fail twice."""
        write(connection, [one])
        if left:
            left.pop()
            raise Poison

    shop.to(apply, failures=ASIDE).deliver(shop.step(event(1), set_aside=True))
    assert (shop.landed(), shop.letters()) == ([1], [])
    assert shop.observer["failed"] == [["Poison", 1], ["Poison", 2]]


def test_function_that_takes_pages_gets_pages_of_one_event(shop):
    """Who takes pages is shown each event as a page of its own, at the page's cursors."""
    pages = []

    def apply(connection, page):
        """Write a page, unless it has the second event."""
        pages.append((page.previous_cursor, page.cursor, [one.data["n"] for one in page.events]))
        write_page(connection, page)
        if pages[-1][2] == [2]:
            raise Poison

    step = shop.step(event(1), event(2), event(3), set_aside=True)
    shop.to(apply, failures=Failures(tries=1, then="set-aside")).deliver(step)
    assert pages == [("_first", "1", [1]), ("_first", "1", [2]), ("_first", "1", [3])]
    assert (shop.landed(), shop.letters()) == ([1, 3], [(2, "failed", 1)])


def test_error_of_the_database_is_undone_to_the_savepoint(shop):
    """A violated constraint fails one event, through a connection and through a session."""

    def with_connection(connection: Connection, one: Event) -> None:
        """Write, and violate a constraint at the second event."""
        write(connection, [one])
        if one.data["n"] == 2:
            connection.execute(effects.insert().values(n=None))

    def with_session(session: Session, one: Event) -> None:
        """Do the same, which shows when the session is flushed."""
        n = one.data["n"]
        session.add(Effect(n=None if n == 2 else n))

    for cursor, apply in enumerate([with_connection, with_session]):
        step = shop.step(event(1), event(2), event(3), to=str(cursor), set_aside=True)
        shop.to(apply, failures=Failures(tries=2, then="set-aside")).deliver(step)
    assert shop.landed() == [1, 3, 1, 3]
    assert shop.letters() == [(2, "failed", 2)] * 2


def test_error_that_was_swallowed_fails_the_event(postgresql):
    """PostgreSQL aborts at an error: who swallows it has failed, and the others have not."""
    shop = Shop(postgresql)

    def apply(connection: Connection, one: Event) -> None:
        """Write, and fail in the database without a word."""
        write(connection, [one])
        if one.data["n"] == 2:
            with pytest.raises(IntegrityError):
                connection.execute(effects.insert().values(n=None))

    shop.to(apply, failures=ASIDE).deliver(shop.step(event(1), event(2), event(3), set_aside=True))
    assert (shop.landed(), shop.letters()) == ([1, 3], [(2, "failed", 3)])


def test_plain_psycopg_connection_is_undone_to_the_savepoint(postgresql, postgresql_url):
    """An error of the plain connection fails one event, sync and async."""
    import psycopg

    insert = "INSERT INTO effects (arrival, n) VALUES (%s, %s)"

    def plain(connection: psycopg.Connection, one: Event) -> None:
        """Violate a constraint at the second event."""
        n = one.data["n"]
        connection.execute(insert, (n, n))
        connection.execute(insert, (n + 100, None if n == 2 else n))

    async def async_plain(connection: psycopg.AsyncConnection, one: Event) -> None:
        """Do the same."""
        n = one.data["n"]
        await connection.execute(insert, (n, n))
        await connection.execute(insert, (n + 100, None if n == 2 else n))

    for url, apply in ((None, plain), (postgresql_url, async_plain)):
        shop = Shop(postgresql, url)
        step = shop.step(event(1), event(2), event(3), set_aside=True)
        shop.to(apply, failures=ASIDE).deliver(step)
        assert shop.landed() == [1, 3, 1, 3]
        assert shop.letters() == [(2, "failed", 3)]


def test_event_that_does_not_fit_the_model_is_set_aside(shop):
    """What cannot be decoded fails like a handler that raised."""
    from dataclasses import dataclass

    @dataclass
    class Numbered:
        """An event with a number."""

        n: int
        amount: int = 0

    def apply(connection: Connection, one: Numbered) -> None:
        """Write the number."""
        connection.execute(effects.insert().values(n=one.n))

    step = shop.step(event(1), event(2, amount="much"), event(3), set_aside=True)
    shop.to(apply, failures=ASIDE).deliver(step)
    assert (shop.landed(), shop.letters()) == ([1, 3], [(2, "failed", 3)])


def test_letters_stand_and_fall_with_the_cursor(shop):
    """A transaction that is fenced or fails at its end leaves no letters."""
    step = shop.step(event(1), set_aside=True)
    deliveries = shop.to(with_events(failing(1)), failures=ASIDE)
    deliveries.deliver(step)
    with pytest.raises(Fenced):
        deliveries.deliver(step)
    assert shop.letters() == [(1, "failed", 3)]


def test_rollback_of_everything_is_no_failure_of_one_event(shop):
    """What apply has rolled back takes the letters with it, so that nothing may go on."""
    calls = []

    def apply(connection: Connection, one: Event) -> None:
        """Fail, and at the second event roll everything back first."""
        calls.append(one.data["n"])
        if one.data["n"] == 2:
            connection.rollback()
        raise Poison

    step = shop.step(event(1), event(2), event(3), set_aside=True)
    with pytest.raises(Exception, match="rolled back"):
        shop.to(apply, failures=ASIDE).deliver(step)
    assert calls == [1, 1, 1, 2]
    assert (shop.letters(), shop.place()) == ([], step.place)


# Keys that are held back.


def test_later_events_of_a_key_are_held_back_in_the_same_page(shop):
    """Behind an event that was set aside, those of its key wait; others go on."""
    seen = []
    step = shop.step(
        event(1, "a"), event(2, "b"), event(3, "a"), event(4), event(5, "b"), set_aside=True
    )
    shop.to(with_events(failing(1, seen=seen)), failures=HELD).deliver(step)
    assert seen == [1, 1, 2, 4, 5]
    assert shop.landed() == [2, 4, 5]
    assert shop.letters() == [(1, "failed", 2), (3, "held", 0)]
    assert shop.observer["set aside"] == [[1, 1]]


@pytest.mark.parametrize("set_aside", [False, True])
def test_later_events_of_a_key_are_held_back_in_later_pages(shop, set_aside):
    """A letter's key is held back whatever mode the next page is applied in."""
    deliveries = shop.to(with_events(failing(1)), failures=HELD)
    deliveries.deliver(shop.step(event(1, "a"), set_aside=True))
    page = [event(2, "a"), event(3, "b"), event(4, "a")]
    deliveries.deliver(shop.step(*page, to="2", set_aside=set_aside))
    assert shop.landed() == [3]
    assert shop.letters() == [(1, "failed", 2), (2, "held", 0), (4, "held", 0)]
    assert shop.observer["set aside"] == [[1, 0], [0, 2]]


def test_page_that_is_held_back_whole_is_not_applied(sync_shop):
    """Where nothing is left of a page, apply is not called."""
    calls = []

    def apply(connection, page):
        """Fail."""
        calls.append(page)
        raise Poison

    deliveries = sync_shop.to(apply, failures=HELD)
    deliveries.deliver(sync_shop.step(event(1, "a"), set_aside=True))
    deliveries.deliver(sync_shop.step(event(2, "a"), to="2"))
    assert len(calls) == 2
    assert sync_shop.letters() == [(1, "failed", 2), (2, "held", 0)]
    assert sync_shop.place().cursor == "2"


def test_nothing_is_held_back_unless_asked_for(sync_shop):
    """Without hold_back, later events of the key are applied."""
    deliveries = sync_shop.to(with_events(failing(1)), failures=ASIDE)
    deliveries.deliver(sync_shop.step(event(1, "a"), event(2, "a"), set_aside=True))
    deliveries.deliver(sync_shop.step(event(3, "a"), to="2"))
    assert sync_shop.landed() == [2, 3]
    assert sync_shop.letters() == [(1, "failed", 3)]
