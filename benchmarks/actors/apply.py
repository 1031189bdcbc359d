"""Write every event of a feed into a table, with the cursor in the transaction of its page."""

from typing import Any

from sqlalchemy import Connection, create_engine

from benchmarks.actors.speaking import perform, task
from benchmarks.events import effects_table
from zeroeventhub import Client, Consumer, CursorStore, PendingPage


def main() -> None:
    """Apply as it is told to."""
    wanted, effects = task(), effects_table()
    engine = create_engine(wanted["database"])
    store = CursorStore(engine)
    with engine.begin() as connection:
        store.create_tables(connection)
        store.reset(connection, "benchmark")
    applied = 0

    def apply(connection: Connection, page: PendingPage) -> None:
        nonlocal applied
        page.insert_into(effects, connection)
        applied += len(page.events)

    client = Client(wanted["url"])

    def work(_: object) -> dict[str, Any]:
        Consumer(client, store, "benchmark", follow=False, limit=wanted["limit"]).run(apply)
        return {"events": applied}

    perform(work)


if __name__ == "__main__":
    main()
