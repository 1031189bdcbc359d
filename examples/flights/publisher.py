"""A service that writes its departures into a table, and serves them as a feed."""

import random
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import islice

import uvicorn
from flights import PARTITIONS, departures, open_departures, read_flights
from sqlalchemy import Engine, func, insert, select
from starlette.applications import Starlette

from zeroeventhub import TableFeed, feed_routes

WRITERS = 4
LARGEST_TRANSACTION = 400


def publish(database: str, port: int, flights: int, seed: int) -> None:
    """Serve the departures and write those that are missing, until killed."""
    engine = open_departures(database)
    feed = TableFeed(
        departures,
        partition="partition",
        partitions=PARTITIONS,
        data=["carrier", "flight", "tail", "origin", "destination", "miles", "scheduled", "delay"],
    )

    @asynccontextmanager
    async def writers(_: Starlette) -> AsyncIterator[None]:
        for number in range(WRITERS):
            arguments = (engine, number, flights, random.Random(seed + number))
            threading.Thread(target=write, args=arguments, daemon=True).start()
        yield

    application = Starlette(routes=feed_routes("/departures", feed, engine), lifespan=writers)
    uvicorn.run(application, port=port, log_level="error", timeout_graceful_shutdown=1)


def write(engine: Engine, writer: int, flights: int, dice: random.Random) -> None:
    """Append this writer's share of the flights, from where it was killed."""
    own = departures.c.flight_number % WRITERS == writer
    with engine.connect() as connection:
        written = connection.scalar(select(func.count()).where(own)) or 0
    rows = read_flights(flights, first=writer + written * WRITERS, step=WRITERS)
    while batch := list(islice(rows, dice.randint(1, LARGEST_TRANSACTION))):
        with engine.begin() as connection:
            connection.execute(insert(departures), batch)
            # The numbers are drawn, and not visible yet: a reader by number alone loses events.
            time.sleep(dice.random() * 0.004)
