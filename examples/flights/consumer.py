"""A service that adds up the departures by carrier, in a database of its own."""

import logging

from flights import add_up
from sqlalchemy import Column, Connection, Integer, MetaData, String, Table, create_engine

from zeroeventhub import Client, Consumer, CursorStore, PendingPage

LEASE = 1.0
"""Seconds for which a restarted consumer waits for the lease of the killed one."""

departures_by_carrier = Table(
    "departures_by_carrier",
    MetaData(),
    Column("carrier", String(2), primary_key=True),
    Column("departures", Integer, nullable=False),
    Column("miles", Integer, nullable=False),
)


def consume(database: str, url: str) -> None:
    """Follow the departures until killed."""
    logging.disable(logging.WARNING)  # of a publisher that was killed
    store = CursorStore(create_engine(database))
    options: dict = {"poll_interval": 0.05, "lease": LEASE}
    consumer = Consumer(Client(url), store, "departures_by_carrier", **options)
    consumer.run(count, handle_signals=True)


def count(connection: Connection, page: PendingPage) -> None:
    """Add a page to the totals; its cursor moves in the same transaction."""
    kept = departures_by_carrier.c
    for carrier, (number, miles) in add_up(event.data for event in page.events).items():
        changed = connection.execute(
            departures_by_carrier.update()
            .where(kept.carrier == carrier)
            .values(departures=kept.departures + number, miles=kept.miles + miles)
        )
        if not changed.rowcount:
            row = {"carrier": carrier, "departures": number, "miles": miles}
            connection.execute(departures_by_carrier.insert(), row)


def totals(connection: Connection) -> dict[str, tuple[int, int]]:
    """Read the totals by carrier: departures and miles."""
    rows = connection.execute(departures_by_carrier.select())
    return {row.carrier: (row.departures, row.miles) for row in rows}
