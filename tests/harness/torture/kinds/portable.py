"""Kinds of writers that every database has."""

from sqlalchemy import insert, literal, select

from harness.torture.pen import Pen
from harness.torture.schema import NUMBERS, elsewhere, events, numbers, others, requests

THINKING = 0.05
"""Seconds at most that a writer thinks with a transaction open."""


def early_write(pen: Pen) -> None:
    """Write elsewhere first and think, so that the transaction is older than its number."""
    pen.connection.execute(insert(elsewhere).values(n=1))
    pen.pause(THINKING)
    pen.append(pen.key())


def thinking(pen: Pen) -> None:
    """Think between the event and its commit."""
    pen.append(pen.key())
    pen.pause(THINKING)


def many_rows(pen: Pen) -> None:
    """Write several events of a key in one statement, and then more of it."""
    key = pen.key()
    pen.append(key, pen.dice.randint(2, 20))
    pen.pause(THINKING / 5)
    pen.append(key, 2)


def many_keys(pen: Pen) -> None:
    """Write events of several keys, and so of several partitions."""
    for key in pen.keys(4):
        pen.append(key)
        pen.pause(THINKING / 10)


def two_feeds(pen: Pen) -> None:
    """Write events to two feeds in one transaction."""
    for key in pen.keys(2):
        pen.append(key)
    pen.pause(THINKING / 5)
    for key in pen.keys(2, others):
        pen.append(key, feed=others)


def savepoints(pen: Pen) -> None:
    """Write events under a savepoint that is rolled back, and then others."""
    first, second = pen.keys(2)
    with pen.connection.begin_nested() as savepoint:
        pen.append(first, 3)
        pen.pause(THINKING / 5)
        savepoint.rollback()
    pen.append(first)
    with pen.connection.begin_nested():
        pen.append(second)
    pen.pause(THINKING / 5)


def select_into(pen: Pen) -> None:
    """Write events by INSERT … SELECT."""
    rows = pen.rows(pen.key(), 5)
    (part, key), before = (rows[0]["part"], rows[0]["key"]), rows[0]["n"] - 1
    pen.connection.execute(_selected(part, key, before, len(rows)))
    pen.pause(THINKING / 5)


def by_trigger(pen: Pen) -> None:
    """Write to a table whose trigger writes the event."""
    pen.connection.execute(insert(requests), pen.rows(pen.key(), 2))
    pen.pause(THINKING / 5)


def one_row_transactions(pen: Pen) -> None:
    """Write one event a transaction, as fast as can be, and wait for nobody."""
    for _ in range(pen.dice.randint(1, 40)):
        if not pen.stop.is_set():
            pen.write(pen.own())
            pen.commit()


def bulk(pen: Pen) -> None:
    """Write many events in one transaction."""
    rows = pen.own(NUMBERS)
    pen.connection.execute(_selected(rows[0]["part"], rows[0]["key"], rows[0]["n"] - 1, NUMBERS))
    pen.commit()


def _selected(part: int, key: int, before: int, count: int):
    chosen = select(literal(part), literal(key), before + numbers.c.n)
    return insert(events).from_select(
        ["part", "key", "n"], chosen.where(numbers.c.n <= count).order_by(numbers.c.n)
    )


KINDS = (
    early_write,
    thinking,
    many_rows,
    many_keys,
    two_feeds,
    savepoints,
    select_into,
    by_trigger,
)
