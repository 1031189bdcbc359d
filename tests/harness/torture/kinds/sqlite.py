"""Kinds of writers that only SQLite has."""

from sqlalchemy import insert

from harness.torture.kinds.portable import THINKING
from harness.torture.pen import Pen
from harness.torture.schema import events


def upsert(pen: Pen) -> None:
    """Write events of which one is there already."""
    first, second = pen.rows(pen.key(), 2)
    pen.write([first])
    pen.connection.execute(insert(events).prefix_with("OR IGNORE").values([first, second]))
    pen.pause(THINKING / 5)


def closed(pen: Pen) -> None:
    """Close the connection in the middle."""
    pen.append(pen.key())
    pen.lose()


KINDS = (upsert, closed)
