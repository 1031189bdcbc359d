"""The publisher's process: a service that writes its departures and serves them as a feed."""

import logging
import random
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Engine,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    event,
    func,
    insert,
    select,
)
from starlette.applications import Starlette

from zeroeventhub.cli.demo.flights import PARTITIONS, read_flights
from zeroeventhub.cli.options import open_database
from zeroeventhub.cli.serve import run_web
from zeroeventhub.publisher import TableFeed
from zeroeventhub.server import feed_routes

__all__ = ["departures", "open_departures", "publish"]

WRITERS = 4
LARGEST_TRANSACTION = 400

departures = Table(
    "departures",
    MetaData(),
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("flight_number", Integer, nullable=False, unique=True),
    Column("partition", Integer, nullable=False),
    Column("carrier", String(2), nullable=False),
    Column("flight", Integer, nullable=False),
    Column("tail", String(6)),
    Column("origin", String(3), nullable=False),
    Column("destination", String(3), nullable=False),
    Column("miles", Integer, nullable=False),
    Column("scheduled", DateTime(timezone=True), nullable=False),
    Column("delay", Integer),
    Index("departures_by_partition", "partition", "id"),
    sqlite_autoincrement=True,
)


def open_departures(database: str) -> Engine:
    """Open the publisher's database; SQLite with readers beside its writer."""
    engine = open_database(database)
    if engine.dialect.name == "sqlite":

        @event.listens_for(engine, "connect")
        def prepare(connection: Any, _: object) -> None:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA busy_timeout = 60000")

    return engine


def publish(database: str, port: int, flights: int, seed: int) -> None:
    """Serve the departures and go on writing those that are missing, until killed."""
    logging.disable(logging.WARNING)
    engine = open_departures(database)
    feed = TableFeed(
        departures,
        partition="partition",
        partitions=PARTITIONS,
        data=[
            *("carrier", "flight", "tail", "origin", "destination", "miles"),
            *("scheduled", "delay"),
        ],
    )

    @asynccontextmanager
    async def writers(_: Starlette) -> AsyncIterator[None]:
        for number in range(WRITERS):
            arguments = (engine, number, flights, random.Random(seed + number))  # noqa: S311
            threading.Thread(target=_write, args=arguments, daemon=True).start()
        yield

    application = Starlette(routes=feed_routes("/departures", feed, engine), lifespan=writers)
    run_web(application, "127.0.0.1", port)


def _write(engine: Engine, writer: int, flights: int, dice: random.Random) -> None:
    """Append this writer's share of the flights, from where it was when it was killed."""
    own = departures.c.flight_number % WRITERS == writer
    with engine.connect() as connection:
        written = connection.scalar(select(func.count()).where(own)) or 0
    rows = read_flights(flights, first=writer + written * WRITERS, step=WRITERS)
    while batch := list(islice(rows, dice.randint(1, LARGEST_TRANSACTION))):
        with engine.begin() as connection:
            connection.execute(insert(departures), batch)
            # Numbers are drawn here and become visible later: the moment that loses events.
            time.sleep(dice.random() * 0.004)
