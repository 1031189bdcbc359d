"""Consume a feed to its head with this package, and touch what comes in one way or another."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import Connection, create_engine

from benchmarks.actors.speaking import perform, task
from zeroeventhub import FIRST, Client, Consumer, CursorStore, PendingPage


@dataclass
class Order:
    """What an event is about."""

    id: int
    customer: str
    amount: float
    currency: str
    status: str
    city: str
    note: str
    express: bool


class Handlers:
    """Count what arrives, having touched it."""

    def __init__(self) -> None:
        self.events = 0

    def bytes(self, _: Connection, page: PendingPage) -> None:
        """Touch no event."""
        self.events += len(page.events)

    def raw(self, _: Connection, page: PendingPage) -> None:
        """Touch the bytes of each event."""
        for event in page.events:
            self.events += bool(event.raw)

    def objects(self, _: Connection, page: PendingPage) -> None:
        """Touch the data of each event."""
        for event in page.events:
            self.events += bool(event.data["id"])

    def typed(self, _: Connection, orders: list[Order]) -> None:
        """Touch each event as what it is about."""
        for order in orders:
            self.events += bool(order.id)


def fetched(client: Client, limit: int) -> int:
    """Fetch pages, without a consumer; return how many events there were."""
    events, cursor = 0, FIRST
    while True:
        page = client.fetch(0, cursor, limit=limit)
        events += len(page.events)
        cursor = page.cursor
        if page.caught_up:
            return events


def consumed(client: Client, database: str, how: str, limit: int) -> int:
    """Run a consumer; return how many events its handler saw."""
    engine = create_engine(database)
    store, handlers = CursorStore(engine), Handlers()
    with engine.begin() as connection:
        store.create_tables(connection)
    apply: Callable[..., object] = getattr(handlers, how)
    Consumer(client, store, uuid.uuid4().hex, follow=False, limit=limit).run(apply)
    engine.dispose()
    return handlers.events


def main() -> None:
    """Consume as it is told to."""
    wanted = task()

    def work(_: object) -> dict[str, Any]:
        limit, how = wanted["limit"], wanted["how"]
        with httpx.Client() as http:
            client = Client(wanted["url"], http)
            if how == "fetched":
                return {"events": fetched(client, limit)}
            database = Path(wanted["folder"]) / f"{uuid.uuid4().hex}.db"
            return {"events": consumed(client, f"sqlite:///{database}", how, limit)}

    perform(work)


if __name__ == "__main__":
    main()
