"""What each customer has spent: an effect in the database that also stores the cursor."""

import sys

from reading import LEASE, client, opened
from sqlalchemy import Connection, text

from zeroeventhub import Consumer, Event

engine, store = opened("totals.db")
with engine.begin() as connection:
    table = "CREATE TABLE IF NOT EXISTS totals (customer TEXT PRIMARY KEY, spent INTEGER)"
    connection.execute(text(table))


def add(connection: Connection, event: Event) -> None:
    """Add an order, exactly once, because the cursor moves in the same transaction."""
    statement = """INSERT INTO totals VALUES (:customer, :amount)
        ON CONFLICT (customer) DO UPDATE SET spent = spent + excluded.spent"""
    connection.execute(text(statement), event.data["data"])


def replay() -> None:
    """Delete the totals and the cursors in one transaction, so that all events come again."""
    with engine.begin() as connection:
        store.reset(connection, "totals")
        connection.execute(text("DELETE FROM totals"))


if __name__ == "__main__":
    if "--replay" in sys.argv:
        replay()
    Consumer(
        client(), store, "totals", lease=LEASE, limit=20, follow="--replay" not in sys.argv
    ).run(add, handle_signals=True)
