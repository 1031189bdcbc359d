"""What each customer has spent: an effect in the database that keeps the cursor as well."""

import sys

from reading import LEASE, client, opened
from sqlalchemy import Connection, text

from zeroeventhub import Consumer, Event

engine, store = opened("totals.db")
with engine.begin() as connection:
    table = "CREATE TABLE IF NOT EXISTS totals (customer TEXT PRIMARY KEY, spent INTEGER)"
    connection.execute(text(table))


def add(connection: Connection, event: Event) -> None:
    """Add an order. This must not happen twice, and cannot: the cursor moves with it."""
    statement = """INSERT INTO totals VALUES (:customer, :amount)
        ON CONFLICT (customer) DO UPDATE SET spent = spent + excluded.spent"""
    connection.execute(text(statement), event.data["data"])


def replay() -> None:
    """Forget the totals and the cursors in one transaction; then everything comes again."""
    with engine.begin() as connection:
        store.reset(connection, "totals")
        connection.execute(text("DELETE FROM totals"))


if __name__ == "__main__":
    if "--replay" in sys.argv:
        replay()
    Consumer(
        client(), store, "totals", lease=LEASE, limit=20, follow="--replay" not in sys.argv
    ).run(add, handle_signals=True)
