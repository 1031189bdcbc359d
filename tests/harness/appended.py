"""A log of eight partitions, batches that are appended to it, and what is there then."""

import sqlalchemy as sa

from zeroeventhub import FIRST, EventLog, NewEvent

DATA = ["ë", None, 0.5]
ORDERED = [(d, o) for d in ("sqlite", "postgresql", "mariadb") for o in (None, "sequenced")]
ORDERED += [("postgresql", "gated")]


def made(engine, *constraints, **options):
    """Create a log with nothing else than its metadata."""
    metadata = sa.MetaData()
    log = EventLog(metadata, "orders", **({"partitions": 8} | options))
    for constraint in constraints:
        log.table.append_constraint(constraint)
    metadata.create_all(engine)
    return log


def batch(count, *, first=0):
    """Events numbered from first on, of seven keys."""
    return [
        NewEvent("placed", {"n": number, "more": DATA}, f"c{number % 7}", f"e{number}")
        for number in range(first, first + count)
    ]


def append(engine, log, events):
    """Append in a transaction of its own."""
    with engine.begin() as connection:
        log.append(connection, events)


def rows(engine, log):
    """All rows in the order of their positions."""
    with engine.connect() as connection:
        return connection.execute(sa.select(log.table).order_by(log.table.c.position)).all()


def ids(engine, log):
    """The ids of all events in the order of their positions."""
    return [row.id for row in rows(engine, log)]


def published(feed, partitions=8):
    """All events that a feed has, by partition."""
    return {
        partition: [each.data for each in feed.read(partition, FIRST, 1000).events]
        for partition in range(partitions)
    }
