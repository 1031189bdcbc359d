"""Consume a feed to its head with this package, and touch what comes in one way or another."""

import uuid
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import httpx
import msgspec
from sqlalchemy import Connection, create_engine

from benchmarks.actors.speaking import perform, task
from zeroeventhub import FIRST, Client, Consumer, CursorStore, PendingPage


@dataclass
class Order:
    """What an event is about."""

    id: int
    customer: str
    email: str
    amount: float
    tax: float
    items: int
    weight: float
    currency: str
    status: str
    channel: str
    city: str
    country: str
    carrier: str
    placed: str
    express: bool


OrderStruct = msgspec.defstruct("OrderStruct", [(one.name, one.type) for one in fields(Order)])
"""The same as msgspec has it."""


class Handlers:
    """Count what arrives, having touched it."""

    def __init__(self) -> None:
        self.events = 0

    def bytes(self, _: Connection, page: PendingPage) -> None:
        """Touch no event."""
        self.events += len(page.events)

    def objects(self, _: Connection, page: PendingPage) -> None:
        """Touch the data of each event."""
        for event in page.events:
            self.events += bool(event.data["id"])

    def dataclasses(self, _: Connection, orders: list[Order]) -> None:
        """Touch each event as what it is about."""
        for order in orders:
            self.events += bool(order.id)

    def structs(self, _: Connection, orders: list[OrderStruct]) -> None:  # type: ignore[valid-type]
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


def new_store(folder: str) -> CursorStore:
    """Return a store of cursors in a database of its own."""
    engine = create_engine(f"sqlite:///{Path(folder) / uuid.uuid4().hex}.db")
    store = CursorStore(engine)
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode = WAL")
    with engine.begin() as connection:
        store.create_tables(connection)
    return store


def main() -> None:
    """Consume as it is told to."""
    wanted = task()
    store, limit, how = new_store(wanted["folder"]), wanted["limit"], wanted["how"]
    with httpx.Client() as http:
        client = Client(wanted["url"], http) if wanted.get("over_httpx") else Client(wanted["url"])

        def work(_: object) -> dict[str, Any]:
            if how == "fetched":
                return {"events": fetched(client, limit)}
            handlers = Handlers()
            apply = getattr(handlers, how)
            Consumer(client, store, "benchmark", follow=False, limit=limit).run(apply)
            return {"events": handlers.events}

        perform(work)


if __name__ == "__main__":
    main()
