"""The consumer's process: departures by carrier, kept in its own database."""

import logging
from collections import Counter

import httpx
from sqlalchemy import Column, Connection, Integer, MetaData, String, Table, create_engine, select
from sqlalchemy.dialects.sqlite import insert

from zeroeventhub.client import Client
from zeroeventhub.consumer.consumer import Consumer
from zeroeventhub.consumer.page import PendingPage
from zeroeventhub.consumer.store.store import CursorStore

__all__ = ["consume", "consumed", "departures_by_carrier"]

LEASE = 1.0
"""Seconds that the next consumer waits for one that was killed."""

departures_by_carrier = Table(
    "departures_by_carrier",
    MetaData(),
    Column("carrier", String(2), primary_key=True),
    Column("departures", Integer, nullable=False),
    Column("miles", Integer, nullable=False),
)


def consume(database: str, url: str) -> None:
    """Follow the departures until stopped; a kill at any point does no harm."""
    logging.disable(logging.WARNING)
    engine = create_engine(database)
    store = CursorStore(engine)
    with engine.begin() as connection:
        store.create_tables(connection)
        departures_by_carrier.metadata.create_all(connection)
    with httpx.Client() as http:
        Consumer(
            Client(url, http), store, "departures_by_carrier", poll_interval=0.05, lease=LEASE
        ).run(count, handle_signals=True)


def count(connection: Connection, page: PendingPage) -> None:
    """Add a page to the totals; its cursor moves in the same transaction."""
    departures: Counter[str] = Counter()
    miles: Counter[str] = Counter()
    for event in page.events:
        departures[event.data["carrier"]] += 1
        miles[event.data["carrier"]] += event.data["miles"]
    statement = insert(departures_by_carrier)
    table = departures_by_carrier.c
    connection.execute(
        statement.on_conflict_do_update(
            set_={
                "departures": table.departures + statement.excluded.departures,
                "miles": table.miles + statement.excluded.miles,
            }
        ),
        [
            {"carrier": carrier, "departures": number, "miles": miles[carrier]}
            for carrier, number in departures.items()
        ],
    )


def consumed(connection: Connection) -> dict[str, tuple[int, int]]:
    """Read the totals by carrier: departures and miles."""
    rows = connection.execute(select(departures_by_carrier))
    return {row.carrier: (row.departures, row.miles) for row in rows}
