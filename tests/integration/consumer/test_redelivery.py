"""Dead letters that were marked are applied again, in order, fenced like a page."""

import pytest
from harness.deliveries import NAME, Shop, effects, event, failing, write
from sqlalchemy import Connection, text

from zeroeventhub import Event, Failures
from zeroeventhub._follow import Place, Redeliver
from zeroeventhub.errors import Fenced, StoreUnavailable

HELD = Failures(tries=2, then="set-aside", hold_back=True)


@pytest.fixture
def shop(shop):
    """A consumer's database on each server, with letters of events 1, 2 (held), 3 and 5."""
    page = [event(1, "a"), event(2, "a"), event(3, "b"), event(4, "c"), event(5)]
    deliver = shop.to(taking_events(failing(1, 3, 5)), failures=HELD).deliver
    deliver(shop.step(*page, set_aside=True))
    assert shop.landed() == [4]
    assert [n for n, *_ in shop.letters()] == [1, 2, 3, 5]
    shop.observer.told.clear()
    return shop


def taking_events(apply):
    """Say that a function takes events."""

    def applying(connection: Connection, one: Event) -> None:
        apply(connection, one)

    return applying


def test_letters_are_applied_in_order_and_forgotten(shop):
    """Letters that succeed are applied once, those that were held back behind them as well."""
    shop.retry()
    step = shop.redelivery()
    shop.to(taking_events(write_one)).redeliver(step)
    assert shop.landed() == [4, 1, 2, 3, 5]
    assert (shop.letters(), shop.place()) == ([], step.place)
    assert shop.observer["applying"] == [[[n]] for n in (1, 2, 3, 5)]
    assert shop.observer["committed"] == [[1]] * 4


def write_one(connection, one):
    """Write an event."""
    write(connection, [one])


def test_letters_that_nobody_marked_stay(shop):
    """Without a mark nothing is applied."""
    shop.to(taking_events(write_one)).redeliver(shop.redelivery())
    assert shop.landed() == [4]
    assert len(shop.letters()) == 4


def test_letter_that_fails_again_waits_with_those_behind_it(shop):
    """The error is written down, not raised; later letters of the key wait, others go on."""
    shop.retry()
    seen = []
    deliveries = shop.to(taking_events(failing(1, seen=seen)), failures=HELD)
    deliveries.redeliver(shop.redelivery())
    assert seen == [1, 1, 3, 5]
    assert shop.landed() == [4, 3, 5]
    assert shop.letters() == [(1, "failed", 4), (2, "held", 0)]
    assert shop.observer["failed"] == [["Poison", 3], ["Poison", 4]]
    shop.retry()
    shop.to(taking_events(write_one)).redeliver(shop.redelivery())
    assert shop.landed() == [4, 3, 5, 1, 2]


@pytest.mark.parametrize("stale", ["cursor", "epoch"])
def test_process_that_has_lost_its_right_applies_no_letter(shop, stale):
    """Dead letters are fenced like pages, so that no two processes apply one."""
    shop.retry()
    place = shop.place()
    old = Place("0", place.epoch) if stale == "cursor" else Place(place.cursor, place.epoch - 1)
    with pytest.raises(Fenced):
        shop.to(taking_events(write_one)).redeliver(Redeliver(0, old))
    assert shop.landed() == [4]
    assert len(shop.letters()) == 4


def test_letter_that_is_discarded_meanwhile_is_not_applied(sync_shop):
    """What an operator discards while it is applied is undone."""
    shop = sync_shop
    if shop.engine.dialect.name == "sqlite":
        pytest.skip("SQLite has one writer.")
    deliveries = shop.to(taking_events(failing(1)), failures=HELD)
    deliveries.deliver(shop.step(event(1, "a"), set_aside=True))
    shop.retry()

    def apply(connection: Connection, one: Event) -> None:
        """Write, while an operator discards the event."""
        write(connection, [one])
        with shop.engine.begin() as other:
            shop.store.dead_letters.discard(other, NAME)

    with pytest.raises(Fenced):
        shop.to(apply).redeliver(shop.redelivery())
    assert (shop.landed(), shop.letters()) == ([], [])


def test_lost_connection_is_no_failure_of_a_letter(shop):
    """A letter whose transaction was lost stays marked."""
    if shop.engine.dialect.name == "sqlite":
        pytest.skip("SQLite has no connection to lose.")
    shop.retry()

    def apply(connection: Connection, one: Event) -> None:
        """Lose the connection."""
        postgresql = shop.engine.dialect.name == "postgresql"
        asked = "pg_backend_pid()" if postgresql else "connection_id()"
        number = connection.scalar(text(f"SELECT {asked}"))
        kill = f"SELECT pg_terminate_backend({number})" if postgresql else f"KILL {number}"
        with shop.engine.connect() as other:
            other.exec_driver_sql(kill)
        write(connection, [one])

    with pytest.raises(StoreUnavailable):
        shop.to(apply).redeliver(shop.redelivery())
    assert shop.letters()[0] == (1, "retry", 2)
    assert shop.landed() == [4]


def test_letter_whose_transaction_cannot_be_committed_has_failed(postgresql):
    """A constraint that is checked at the end fails the letter, and not the consumer."""
    shop = Shop(postgresql)
    deliveries = shop.to(taking_events(failing(1)), failures=HELD)
    deliveries.deliver(shop.step(event(1, "a"), event(2, "b"), set_aside=True))
    with postgresql.begin() as connection:
        connection.execute(
            text(
                "ALTER TABLE effects ADD CONSTRAINT once UNIQUE (unique_n) DEFERRABLE INITIALLY "
                "DEFERRED"
            )
        )
    shop.retry()

    def apply(connection: Connection, one: Event) -> None:
        """Write the same number twice."""
        for _ in range(2):
            connection.execute(effects.insert().values(n=one.data["n"], unique_n=7))

    shop.to(apply, failures=HELD).redeliver(shop.redelivery())
    assert (shop.landed(), shop.letters()) == ([2], [(1, "failed", 3)])
    assert shop.observer["failed"][-1] == ["IntegrityError", 3]
